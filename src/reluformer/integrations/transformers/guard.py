"""An error where a model cannot take a rule.

transformers checks an `attn_implementation` by its name alone: a model whose attention
does not go through the `AttentionInterface` accepts it and goes on with its own softmax.
So the methods of `PreTrainedModel` that accept a name, and the one that ends the making of
a model, ask here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache, wraps
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from reluformer import rules
from reluformer.errors import ArgumentError
from reluformer.integrations.transformers.attention import PREFIX, check_rule

_MARK = "_reluformer_guard"
_FAMILIES = "use a model of a family that does, such as BERT, GPT-2, Llama, Marian or T5"


def install(offer: Callable[[str], None]) -> None:
    """Guard `PreTrainedModel`; `offer` makes a rule that was registered meanwhile available."""
    resolve = PreTrainedModel.get_correct_attn_implementation
    choose = PreTrainedModel.set_attn_implementation
    finish = PreTrainedModel.post_init
    if hasattr(resolve, _MARK):
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

    setattr(get_correct_attn_implementation, _MARK, True)
    for method in (get_correct_attn_implementation, set_attn_implementation, post_init):
        setattr(PreTrainedModel, method.__name__, method)


def check_model(model: type[PreTrainedModel], implementation: str) -> None:
    """Refuse an unknown rule, a rule that is more than a read, and a model with attention of its own."""
    check_rule(rules.get(implementation.removeprefix(PREFIX)))
    if not model._can_set_attn_implementation():
        raise ArgumentError(
            f"{model.__name__} computes attention by itself, not through transformers' AttentionInterface, so "
            f"attn_implementation='{implementation}' would change nothing; {_FAMILIES}"
        )


def check_layers(model: PreTrainedModel) -> None:
    """Refuse a model some of whose layers would keep their softmax."""
    for module in _own_modules(model):
        kind: Any = type(module)
        if _has_softmax_of_its_own(kind):
            raise ArgumentError(
                f"{type(model).__name__}: its {kind.__name__} computes a softmax by itself, not through "
                f"transformers' AttentionInterface, so a rule would change only a part of its attention; {_FAMILIES}"
            )


@cache
def _has_softmax_of_its_own(kind: Any) -> bool:
    """By its source, which is all there is to tell it by."""
    if "Attention" not in kind.__name__:
        return False
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):
        return False
    return re.search(r"[sS]oftmax\(", source) is not None and "get_interface(" not in source


def _own_modules(module: nn.Module) -> Iterator[nn.Module]:
    """The modules of a model but not those of models inside it, which have an implementation of their own."""
    for child in module.children():
        if not isinstance(child, PreTrainedModel):
            yield child
            yield from _own_modules(child)


def _requests(model: PreTrainedModel, implementation: Any) -> Iterator[tuple[PreTrainedModel, Any]]:
    """Each model inside `model` and what is asked of it: one name for all, or a mapping from parts of its config."""
    asked = implementation if isinstance(implementation, dict) else {}
    by_config = {id(getattr(model.config, part) if part else model.config): name for part, name in asked.items()}
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            yield module, by_config.get(id(module.config)) if asked else implementation


def _is_ours(implementation: Any) -> bool:
    return isinstance(implementation, str) and implementation.startswith(PREFIX)
