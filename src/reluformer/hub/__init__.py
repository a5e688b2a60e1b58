"""Hugging Face transformers: rules as attention of any model, and ReLUFormer as one of its models.

    from reluformer import hub

    hub.register()
    model = AutoModel.from_pretrained(..., attn_implementation="reluformer:relu")

Needs the extra `[hf]`; transformers is imported when a name is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from reluformer.errors import ReluformerError

if TYPE_CHECKING:
    from reluformer.hub.attention import PREFIX as PREFIX
    from reluformer.hub.attention import attention_function as attention_function
    from reluformer.hub.configuration import ReLUFormerConfig as ReLUFormerConfig
    from reluformer.hub.exchange import export_run as export_run
    from reluformer.hub.exchange import import_run as import_run
    from reluformer.hub.generation import OutlineProcessor as OutlineProcessor
    from reluformer.hub.generation import search_settings as search_settings
    from reluformer.hub.generation import translator as translator
    from reluformer.hub.modeling import ReLUFormerForConditionalGeneration as ReLUFormerForConditionalGeneration
    from reluformer.hub.pipeline import TranslationPipeline as TranslationPipeline
    from reluformer.hub.registration import register as register
    from reluformer.hub.tokenization import ReLUFormerTokenizer as ReLUFormerTokenizer

_HOME = {
    "PREFIX": "reluformer.hub.attention",
    "attention_function": "reluformer.hub.attention",
    "ReLUFormerConfig": "reluformer.hub.configuration",
    "export_run": "reluformer.hub.exchange",
    "import_run": "reluformer.hub.exchange",
    "OutlineProcessor": "reluformer.hub.generation",
    "search_settings": "reluformer.hub.generation",
    "translator": "reluformer.hub.generation",
    "ReLUFormerForConditionalGeneration": "reluformer.hub.modeling",
    "TranslationPipeline": "reluformer.hub.pipeline",
    "register": "reluformer.hub.registration",
    "ReLUFormerTokenizer": "reluformer.hub.tokenization",
}
_MODULES = ("relufy",)
__all__ = [*_HOME, *_MODULES]


class MissingExtraError(ReluformerError, ImportError):
    """A part of the package that was not installed is needed."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"reluformer.hub.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'reluformer.hub' has no attribute '{name}'")
    try:
        value = getattr(importlib.import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingExtraError(
            f"reluformer.hub.{name} needs transformers; install it with: pip install 'reluformer[hf]'"
        ) from None
    globals()[name] = value  # looked up once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
