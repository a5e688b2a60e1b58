"""Training: one trainer for all models, which can be interrupted at any moment and resumes bit for bit.

task        what the trainer has to know about a task: model, data, loss
fit         fit(): a task and a directory in, a trained model out; starts or resumes a run
loop        the training loop: update, log, validate, save a checkpoint
state       the counters that a checkpoint keeps
objective   cross entropy that never holds all logits, and the regulariser
optimizer   AdamW, learning rate, rule warm-up and averages of weights
checkpoint  checkpoints, written whole or not at all
run         the run directory: recipe, log, status, checkpoints and models
divergence  the error for a loss that is not finite: where it began and what may help
progress    what a person sees, and TensorBoard
processes   communication between the processes of one training
config      the section `training` of a recipe
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "DivergedError": "reluformer.training.divergence",
    "TrainingResult": "reluformer.training.fit",
    "train": "reluformer.translation.task",  # scripts for version 0.1 import it from here; it is `reluformer.train`
}
__all__ = ["DivergedError", "TrainingResult", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'reluformer.training' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)
