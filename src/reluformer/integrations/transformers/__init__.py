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
    from reluformer.integrations.transformers.attention import PREFIX as PREFIX
    from reluformer.integrations.transformers.attention import attention_function as attention_function
    from reluformer.integrations.transformers.configuration import ReLUFormerConfig as ReLUFormerConfig
    from reluformer.integrations.transformers.exchange import export_run as export_run
    from reluformer.integrations.transformers.exchange import import_run as import_run
    from reluformer.integrations.transformers.generation import OutlineProcessor as OutlineProcessor
    from reluformer.integrations.transformers.generation import search_settings as search_settings
    from reluformer.integrations.transformers.generation import translator as translator
    from reluformer.integrations.transformers.modeling import (
        ReLUFormerForConditionalGeneration as ReLUFormerForConditionalGeneration,
    )
    from reluformer.integrations.transformers.pipeline import TranslationPipeline as TranslationPipeline
    from reluformer.integrations.transformers.registration import register as register
    from reluformer.integrations.transformers.tokenization import ReLUFormerTokenizer as ReLUFormerTokenizer

_HOME = {
    "PREFIX": "reluformer.integrations.transformers.attention",
    "attention_function": "reluformer.integrations.transformers.attention",
    "ReLUFormerConfig": "reluformer.integrations.transformers.configuration",
    "export_run": "reluformer.integrations.transformers.exchange",
    "import_run": "reluformer.integrations.transformers.exchange",
    "OutlineProcessor": "reluformer.integrations.transformers.generation",
    "search_settings": "reluformer.integrations.transformers.generation",
    "translator": "reluformer.integrations.transformers.generation",
    "ReLUFormerForConditionalGeneration": "reluformer.integrations.transformers.modeling",
    "TranslationPipeline": "reluformer.integrations.transformers.pipeline",
    "register": "reluformer.integrations.transformers.registration",
    "ReLUFormerTokenizer": "reluformer.integrations.transformers.tokenization",
}
_MODULES = ("relufy",)
__all__ = [*_HOME, *_MODULES]


class MissingExtraError(ReluformerError, ImportError):
    """A part of the package that was not installed is needed."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"reluformer.integrations.transformers.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'reluformer.integrations.transformers' has no attribute '{name}'")
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
