"""Turning a pretrained softmax model into a ReLU one.

    from reluformer import hub

    student, report = hub.relufy(model, texts, tokenizer=tokenizer)
    print(report)
    hub.relufy.save(student, "student", tokenizer, report)

The module is the function `relufy` of it as well: both have the name that says what they
do. transformers is needed for its own models only. See docs/relufy.md.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reluformer.integrations.transformers.relufy.conversion import relufy as relufy
    from reluformer.integrations.transformers.relufy.distillation import Distillation as Distillation
    from reluformer.integrations.transformers.relufy.report import Report as Report
    from reluformer.integrations.transformers.relufy.report import Stage as Stage
    from reluformer.integrations.transformers.relufy.storage import load as load
    from reluformer.integrations.transformers.relufy.storage import save as save
    from reluformer.integrations.transformers.relufy.storage import save_run as save_run

_HOME = {
    "Distillation": "distillation",
    "Report": "report",
    "Stage": "report",
    "load": "storage",
    "relufy": "conversion",
    "save": "storage",
    "save_run": "storage",
}
__all__ = [*_HOME]


class _CallableModule(ModuleType):
    """`hub.relufy(...)` is `hub.relufy.relufy(...)`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.relufy(*args, **options)

    def __getattr__(self, name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        setattr(self, name, value)  # looked up once
        return value


sys.modules[__name__].__class__ = _CallableModule
