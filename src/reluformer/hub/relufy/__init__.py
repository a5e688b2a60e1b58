"""Turning a pretrained softmax model into a ReLU one.

    student, report = relufy(model, texts, tokenizer=tokenizer)
    print(report)

See docs/relufy.md.
"""

from __future__ import annotations

from reluformer.hub.relufy.conversion import relufy
from reluformer.hub.relufy.distillation import Distillation
from reluformer.hub.relufy.report import Report, Stage
from reluformer.hub.relufy.storage import load, save, save_run

__all__ = ["Distillation", "Report", "Stage", "load", "relufy", "save", "save_run"]
