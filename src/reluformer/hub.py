"""The public names of the integration with Hugging Face transformers, and the ONNX export.

    from reluformer import hub

    hub.register()
    model = AutoModel.from_pretrained(..., attn_implementation="reluformer:relu")

The names need the extra `[hf]`. transformers is imported when a name is first used, so
`import reluformer.hub` alone is cheap. `relufy` needs transformers only for its models.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from reluformer.errors import MissingExtraError

if TYPE_CHECKING:
    from reluformer.integrations import onnx as onnx
    from reluformer.integrations.transformers.attention_interface import PREFIX as PREFIX
    from reluformer.integrations.transformers.attention_interface import attention_function as attention_function
    from reluformer.integrations.transformers.language_modeling import ReLUFormerForCausalLM as ReLUFormerForCausalLM
    from reluformer.integrations.transformers.language_modeling import (
        ReLUFormerLanguageConfig as ReLUFormerLanguageConfig,
    )
    from reluformer.integrations.transformers.modeling import ReLUFormerConfig as ReLUFormerConfig
    from reluformer.integrations.transformers.modeling import (
        ReLUFormerForConditionalGeneration as ReLUFormerForConditionalGeneration,
    )
    from reluformer.integrations.transformers.pipeline import OutlineProcessor as OutlineProcessor
    from reluformer.integrations.transformers.pipeline import TranslationPipeline as TranslationPipeline
    from reluformer.integrations.transformers.pipeline import generator as generator
    from reluformer.integrations.transformers.pipeline import search_settings as search_settings
    from reluformer.integrations.transformers.pipeline import translator as translator
    from reluformer.integrations.transformers.registration import register as register
    from reluformer.integrations.transformers.relufy.conversion import RelufyReport as RelufyReport
    from reluformer.integrations.transformers.relufy.conversion import load_relufied as load_relufied
    from reluformer.integrations.transformers.relufy.conversion import relufy as relufy
    from reluformer.integrations.transformers.relufy.conversion import save_relufied as save_relufied
    from reluformer.integrations.transformers.relufy.conversion import save_relufied_run as save_relufied_run
    from reluformer.integrations.transformers.relufy.distillation import Distillation as Distillation
    from reluformer.integrations.transformers.run_export import export_run as export_run
    from reluformer.integrations.transformers.run_export import import_run as import_run
    from reluformer.integrations.transformers.tokenization import (
        ReLUFormerLanguageTokenizer as ReLUFormerLanguageTokenizer,
    )
    from reluformer.integrations.transformers.tokenization import ReLUFormerTokenizer as ReLUFormerTokenizer

_MODULES = {
    "attention_interface": ("PREFIX", "attention_function"),
    "language_modeling": ("ReLUFormerForCausalLM", "ReLUFormerLanguageConfig"),
    "pipeline": ("OutlineProcessor", "TranslationPipeline", "generator", "search_settings", "translator"),
    "modeling": ("ReLUFormerConfig", "ReLUFormerForConditionalGeneration"),
    "registration": ("register",),
    "relufy.conversion": ("RelufyReport", "load_relufied", "relufy", "save_relufied", "save_relufied_run"),
    "relufy.distillation": ("Distillation",),
    "run_export": ("export_run", "import_run"),
    "tokenization": ("ReLUFormerLanguageTokenizer", "ReLUFormerTokenizer"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = ["onnx", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name == "onnx":
        return importlib.import_module("reluformer.integrations.onnx")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'reluformer.hub' has no attribute '{name}'")
    try:
        module = importlib.import_module(f"reluformer.integrations.transformers.{_MODULE_OF[name]}")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise MissingExtraError(
            f"reluformer.hub.{name} needs transformers; install it with: pip install 'reluformer[hf]'"
        ) from None
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
