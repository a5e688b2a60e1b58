"""ReLU and softmax as two rules of one key-value memory.

    import reluformer as rf

    out = rf.read(q, k, v, rule="relu", causal=True)
    model = rf.ReLUFormer(rf.ModelConfig.preset("tiny", vocab_size=8000))

Names are imported when they are first used, so `import reluformer` alone is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reluformer import rules as rules
    from reluformer.bounding import bounds as bounds
    from reluformer.errors import ReluformerError as ReluformerError
    from reluformer.kernels import RowKeyBias as RowKeyBias
    from reluformer.loading import load as load
    from reluformer.loading import train as train
    from reluformer.memory import read as read
    from reluformer.memory import weights as weights
    from reluformer.models.config import ImageConfig as ImageConfig
    from reluformer.models.config import LanguageConfig as LanguageConfig
    from reluformer.models.config import ModelConfig as ModelConfig
    from reluformer.models.encoder_decoder import ReLUFormer as ReLUFormer
    from reluformer.models.image_model import ImageModel as ImageModel
    from reluformer.models.language_model import LanguageModel as LanguageModel
    from reluformer.translation.recipe import Recipe as Recipe

__version__ = "0.1.0"

_HOME = {
    "ImageConfig": "reluformer.models.config",
    "ImageModel": "reluformer.models.image_model",
    "LanguageConfig": "reluformer.models.config",
    "LanguageModel": "reluformer.models.language_model",
    "ModelConfig": "reluformer.models.config",
    "ReLUFormer": "reluformer.models.encoder_decoder",
    "ReluformerError": "reluformer.errors",
    "RowKeyBias": "reluformer.kernels",
    "Recipe": "reluformer.translation.recipe",
    "bounds": "reluformer.bounding",
    "load": "reluformer.loading",
    "read": "reluformer.memory",
    "train": "reluformer.loading",
    "weights": "reluformer.memory",
}
_MODULES = (
    "bounding",
    "config",
    "conformance",
    "context_parallel",
    "errors",
    "hub",
    "images",
    "integrations",
    "kernels",
    "language",
    "layers",
    "memory",
    "models",
    "regularizers",
    "rules",
    "study",
    "telemetry",
    "training",
    "translation",
)
__all__ = ["__version__", "rules", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"reluformer.{name}")
    else:
        raise AttributeError(f"module 'reluformer' has no attribute '{name}'")
    globals()[name] = value  # looked up once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
