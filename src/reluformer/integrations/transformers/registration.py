"""`register()` makes the rules, the model, the tokenizer and the pipeline known to transformers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache, wraps
from typing import Any

from torch import nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    pipelines,
)
from transformers.pipelines import PIPELINE_REGISTRY

from reluformer import rules
from reluformer.errors import ArgumentError
from reluformer.integrations.transformers.attention_interface import (
    PREFIX,
    attention_function,
    check_rule,
    mask_function,
)
from reluformer.integrations.transformers.language_modeling import ReLUFormerForCausalLM, ReLUFormerLanguageConfig
from reluformer.integrations.transformers.modeling import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.integrations.transformers.pipeline import TASK, TranslationPipeline
from reluformer.integrations.transformers.tokenization import ReLUFormerLanguageTokenizer, ReLUFormerTokenizer

_GUARDED = "_reluformer_guarded"
_FAMILIES = "use a model of a family that does, such as BERT, GPT-2, Llama, Marian or T5"


def register() -> None:
    """Registers every rule as attn_implementation="reluformer:NAME", and our models.

    Afterwards AutoConfig, AutoModelForSeq2SeqLM, AutoModelForCausalLM and AutoTokenizer load
    exported models, and `pipeline` supports the task "translation" again. Call it again after
    registering rules of your own; calling it twice is harmless.

    Example:
        >>> from transformers import AutoModelForSeq2SeqLM, BertConfig, BertModel
        >>> from reluformer import hub
        >>> hub.register()
        >>> type(AutoModelForSeq2SeqLM.from_pretrained("exported")).__name__
        'ReLUFormerForConditionalGeneration'
        >>> sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 32}
        >>> BertModel(BertConfig(attn_implementation="reluformer:relu", **sizes)).config._attn_implementation
        'reluformer:relu'
    """
    for name in rules.names():
        _offer(name)
    guard_models(_offer)
    AutoConfig.register(ReLUFormerConfig.model_type, ReLUFormerConfig, exist_ok=True)
    AutoModelForSeq2SeqLM.register(ReLUFormerConfig, ReLUFormerForConditionalGeneration, exist_ok=True)
    AutoTokenizer.register(ReLUFormerConfig, tokenizer_class=ReLUFormerTokenizer, exist_ok=True)
    AutoConfig.register(ReLUFormerLanguageConfig.model_type, ReLUFormerLanguageConfig, exist_ok=True)
    AutoModelForCausalLM.register(ReLUFormerLanguageConfig, ReLUFormerForCausalLM, exist_ok=True)
    AutoTokenizer.register(ReLUFormerLanguageConfig, tokenizer_class=ReLUFormerLanguageTokenizer, exist_ok=True)
    PIPELINE_REGISTRY.supported_tasks.pop(TASK, None)  # registering a task twice is a warning
    getattr(pipelines, "REMOVED_TASKS", {}).pop(TASK, None)  # transformers 5 knows the name only to refuse it
    PIPELINE_REGISTRY.register_pipeline(TASK, TranslationPipeline, pt_model=AutoModelForSeq2SeqLM, type="text")


def _offer(name: str) -> None:
    AttentionInterface.register(PREFIX + name, attention_function(name))
    AttentionMaskInterface.register(PREFIX + name, mask_function)


def guard_models(offer: Callable[[str], None]) -> None:
    """Wraps the methods of `PreTrainedModel` that accept an attention implementation.

    transformers checks an `attn_implementation` by its name alone: a model whose attention
    does not go through the `AttentionInterface` accepts it and continues with its softmax.
    The wrapped methods raise an error instead.

    Args:
        offer: A function that registers a rule which was added after `register()`.
    """
    resolve = PreTrainedModel.get_correct_attn_implementation
    choose = PreTrainedModel.set_attn_implementation
    finish = PreTrainedModel.post_init
    if hasattr(resolve, _GUARDED):
        return

    @wraps(resolve)
    def get_correct_attn_implementation(
        self: PreTrainedModel, requested_attention: str | None, *args: Any, **options: Any
    ) -> str:
        if not _is_ours(requested_attention):
            return str(resolve(self, requested_attention, *args, **options))
        assert requested_attention is not None
        check_model(type(self), requested_attention)
        offer(requested_attention.removeprefix(PREFIX))
        return requested_attention

    @wraps(choose)
    def set_attn_implementation(self: PreTrainedModel, attn_implementation: Any, *args: Any, **options: Any) -> None:
        for model, requested in _requests(self, attn_implementation):
            if _is_ours(requested):
                check_model(type(model), requested)
                check_layers(model)
        choose(self, attn_implementation, *args, **options)

    @wraps(finish)
    def post_init(self: PreTrainedModel) -> None:
        if _is_ours(self.config._attn_implementation):
            check_layers(self)
        finish(self)

    setattr(get_correct_attn_implementation, _GUARDED, True)
    for method in (get_correct_attn_implementation, set_attn_implementation, post_init):
        setattr(PreTrainedModel, method.__name__, method)


def check_model(model: type[PreTrainedModel], implementation: str) -> None:
    """Raises an error for a rule or a class of models that cannot be combined.

    Raises:
        UnknownNameError: No rule has this name.
        ArgumentError: The rule has an output norm, or the model does not use the interface.
    """
    check_rule(rules.get(implementation.removeprefix(PREFIX)))
    if not model._can_set_attn_implementation():
        raise ArgumentError(
            f"{model.__name__} computes attention by itself, not through transformers' AttentionInterface, so "
            f"attn_implementation='{implementation}' would change nothing; {_FAMILIES}"
        )


def check_layers(model: PreTrainedModel) -> None:
    """Raises an error if some attention layers of the model would keep their softmax."""
    for module in _own_modules(model):
        kind: Any = type(module)
        if _has_softmax_of_its_own(kind):
            raise ArgumentError(
                f"{type(model).__name__}: its {kind.__name__} computes a softmax by itself, not through "
                f"transformers' AttentionInterface, so a rule would change only a part of its attention; {_FAMILIES}"
            )


@cache
def _has_softmax_of_its_own(kind: Any) -> bool:
    """Decides by the source code of the class; transformers has no better mark."""
    if "Attention" not in kind.__name__:
        return False
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):
        return False
    return re.search(r"[sS]oftmax\(", source) is not None and "get_interface(" not in source


def _own_modules(module: nn.Module) -> Iterator[nn.Module]:
    """Yields the modules of a model without those of inner models, which are checked on their own."""
    for child in module.children():
        if not isinstance(child, PreTrainedModel):
            yield child
            yield from _own_modules(child)


def _requests(model: PreTrainedModel, implementation: Any) -> Iterator[tuple[PreTrainedModel, Any]]:
    """Yields each inner model with the implementation that is requested for it."""
    asked = implementation if isinstance(implementation, dict) else {}
    by_config = {id(getattr(model.config, part) if part else model.config): name for part, name in asked.items()}
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            yield module, by_config.get(id(module.config)) if asked else implementation


def _is_ours(implementation: Any) -> bool:
    return isinstance(implementation, str) and implementation.startswith(PREFIX)
