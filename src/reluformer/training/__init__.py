"""Training: a recipe in, a model out, interruptible at any moment.

launch        train(): the whole of it
start         with a checkpoint, given weights or random ones; what is deleted for it, and what never is
loop          Trainer: update, log, validate, checkpoint
objective     cross entropy that never holds all logits, and the regulariser
feed          which batches in which update
schedule      the learning rate
averaging     moving averages, means of checkpoints
checkpoint    to go on from, atomically
run           the directory of a run
divergence    where a loss stopped being a number
progress      what a person sees
processes     what several processes tell each other
resume_check  proof that a killed training goes on bit for bit
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "DivergedError": "reluformer.training.divergence",
    "TrainingResult": "reluformer.training.launch",
    "train": "reluformer.training.launch",
}
__all__ = ["DivergedError", "TrainingResult", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'reluformer.training' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)
