"""An error where a model cannot take a rule.

transformers checks an `attn_implementation` by its name alone: a model whose attention
does not go through the `AttentionInterface` accepts it and goes on with its own softmax.
So the two methods of `PreTrainedModel` that accept a name ask here first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from transformers import PreTrainedModel

from reluformer import rules
from reluformer.errors import ArgumentError
from reluformer.hub.attention import PREFIX, check_rule

_MARK = "_reluformer_guard"


def install(offer: Callable[[str], None]) -> None:
    """Guard `PreTrainedModel`; `offer` makes a rule that was registered meanwhile available."""
    resolve = PreTrainedModel.get_correct_attn_implementation
    choose = PreTrainedModel.set_attn_implementation
    if hasattr(resolve, _MARK):
        return

    @wraps(resolve)
    def get_correct_attn_implementation(
        self: PreTrainedModel, requested_attention: str | None, *args: Any, **options: Any
    ) -> str:
        if not _is_ours(requested_attention):
            return str(resolve(self, requested_attention, *args, **options))
        assert requested_attention is not None
        check(type(self), requested_attention)
        offer(requested_attention.removeprefix(PREFIX))
        return requested_attention

    @wraps(choose)
    def set_attn_implementation(self: PreTrainedModel, attn_implementation: Any, *args: Any, **options: Any) -> None:
        for module, requested in _requests(self, attn_implementation):
            if _is_ours(requested):
                check(type(module), requested)
        choose(self, attn_implementation, *args, **options)

    setattr(get_correct_attn_implementation, _MARK, True)
    for method in (get_correct_attn_implementation, set_attn_implementation):
        setattr(PreTrainedModel, method.__name__, method)


def check(model: type[PreTrainedModel], implementation: str) -> None:
    """Refuse an unknown rule, a rule that is more than a read, and a model with attention of its own."""
    rule = rules.get(implementation.removeprefix(PREFIX))
    check_rule(rule)
    if not model._can_set_attn_implementation():
        raise ArgumentError(
            f"{model.__name__} computes attention by itself, not through transformers' AttentionInterface, so "
            f"attn_implementation='{implementation}' would change nothing; use a model of a family that does, such as "
            "BERT, GPT-2, Llama, Marian or T5"
        )


def _requests(model: PreTrainedModel, implementation: Any) -> Iterator[tuple[PreTrainedModel, Any]]:
    """Each model inside `model` and what is asked of it: one name for all, or a mapping from parts of its config."""
    asked = implementation if isinstance(implementation, dict) else {}
    by_config = {id(getattr(model.config, part) if part else model.config): name for part, name in asked.items()}
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            yield module, by_config.get(id(module.config)) if asked else implementation


def _is_ours(implementation: Any) -> bool:
    return isinstance(implementation, str) and implementation.startswith(PREFIX)
