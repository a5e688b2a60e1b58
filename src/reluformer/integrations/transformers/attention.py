"""A rule as the attention of any transformers model: `attn_implementation="reluformer:relu"`.

The function below is called by every attention layer that goes through transformers'
`AttentionInterface`. It reads with `memory.read`, so it gets the same kernels, and it
refuses what a read cannot mean instead of leaving it out.

Shapes: B batch, H heads, Hkv heads of keys and values (H is a multiple of it), Tq, Tk, d.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reluformer import memory, rules
from reluformer.errors import ArgumentError
from reluformer.integrations.transformers.masks import Parts, parts_of
from reluformer.rules import Rule

PREFIX = "reluformer:"
"""What stands before the name of a rule in `attn_implementation`."""

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]

_REFUSED = {
    "softcap": "soft capping of scores",
    "s_aux": "attention sinks",
    "sinks": "attention sinks",
    "indices": "a selection of slots by index",
    "block_indices": "a selection of slots by block",
    "cache": "a paged cache",
}
"""Arguments that change what attention means and that a read has no word for."""


def attention_function(rule: str | Rule) -> AttentionFunction:
    """The function that transformers calls in place of its own attention."""
    rule = rules.get(rule)

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        position_bias: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(B,H,Tq,d), (B,Hkv,Tk,d), (B,Hkv,Tk,dv) -> (B,Tq,H,dv), and the weights where they are asked for."""
        check_rule(rule)
        _check_options(module, attention_mask, key.size(2), options)
        parts, bias = visible_parts(module, query, key, attention_mask, is_causal, position_bias)
        query, bias = relufied_scores(module, query, bias, scaling)
        drops = dropout > 0 and module.training
        if drops or _wants_weights(options):
            if drops:
                _warn_of_dropout()
            return _read_densely(rule, query, key, value, parts, bias, scaling, dropout if drops else 0.0)
        out = _read(rule, query, key, value, parts, bias, scaling)
        return out.transpose(1, 2).contiguous(), None

    return attend


def check_rule(rule: Rule) -> None:
    """Refuse a rule that is more than a read: its norm has parameters, and the model has no place for them."""
    if rule.output_norm is not None:
        raise ArgumentError(
            f"attn_implementation='{PREFIX}{rule.name}': the rule's {rule.output_norm} has parameters that the model "
            f"does not hold; take a rule without an output norm, such as '{PREFIX}relu' or '{PREFIX}relu_norm', or "
            "build the model as a ReLUFormer, whose layers own it"
        )


def _check_options(module: nn.Module, mask: Tensor | None, slots: int, options: dict[str, Any]) -> None:
    name = type(module).__name__
    for option, meaning in _REFUSED.items():
        if options.get(option) is not None:
            raise ArgumentError(
                f"{name} asks for {meaning} ({option}=), which no rule of reluformer has; load the model with "
                "attn_implementation='eager'"
            )
    if mask is not None:
        return
    window, borders = options.get("sliding_window"), options.get("cu_seq_lens_q")
    if window is not None and slots > window:
        raise ArgumentError(
            f"{name} has a sliding window of {window} but gives {slots} slots without a mask; load the model with "
            "attn_implementation='eager'"
        )
    if borders is not None and borders.numel() > 2:
        raise ArgumentError(
            f"{name} packs several sequences (cu_seq_lens_q) without a mask; pass position_ids that start again at 0 "
            "and no cu_seq_lens, or pad the batch"
        )


def visible_parts(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    is_causal: bool | None,
    position_bias: Tensor | None,
) -> tuple[Parts, Tensor | None]:
    """Who sees what, and what is added to the scores."""
    batch, queries, slots = query.size(0), query.size(2), key.size(2)
    if mask is None:
        return Parts(causal=_is_causal(module, queries, slots, is_causal)), position_bias
    if not isinstance(mask, Tensor) or mask.ndim != 4:
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ArgumentError(
            f"{type(module).__name__} gives a mask {shape}; a rule takes (B, 1, Tq, Tk), boolean with True = visible, "
            "or floating point to be added to the scores"
        )
    if mask.dtype == torch.bool:
        return parts_of(mask, batch, queries, slots), position_bias
    if not mask.is_floating_point():
        raise ArgumentError(
            f"{type(module).__name__} gives a mask of {mask.dtype}, which could mean either; convert it with .bool(), "
            "True = visible"
        )
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    added = mask.masked_fill(hidden, 0)
    return parts_of(~hidden, batch, queries, slots), added if position_bias is None else added + position_bias


def relufied_scores(
    module: nn.Module, query: Tensor, bias: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor | None]:
    """Queries and bias of an attention whose heads were fitted to another rule (`hub.relufy`), else as they are."""
    scores = getattr(module, "relufied", None)
    if scores is None:
        return query, bias
    scaled, offset = scores(query, query.size(-1) ** -0.5 if scale is None else scale)
    if bias is None:
        return scaled, offset
    bias = bias * scores.scale(query)
    return scaled, bias if offset is None else bias + offset


def _is_causal(module: nn.Module, queries: int, slots: int, is_causal: bool | None) -> bool:
    """Without a mask the module itself says whether it is causal."""
    if queries == 1:
        return False
    causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
    if causal is None:
        raise ArgumentError(
            f"{type(module).__name__} gives neither a mask nor is_causal, so who sees whom is unknown; load the model "
            "with attn_implementation='eager'"
        )
    if causal and queries != slots:
        raise ArgumentError(
            f"{type(module).__name__} is causal and gives {queries} queries for {slots} slots without a mask, so their "
            "positions are unknown; pass an attention_mask"
        )
    return bool(causal)


def _wants_weights(options: dict[str, Any]) -> bool:
    """Asked for as an argument, or by transformers' recorder of outputs, which some models keep it for."""
    if options.get("output_attentions"):
        return True
    if torch.compiler.is_compiling():
        return False
    recorded = _recorder()()
    return bool(recorded) and any(name.endswith("attentions") for name in recorded)


@cache
def _recorder() -> Callable[[], Any]:
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:
        return lambda: None
    recorded: Callable[[], Any] = _active_collector.get
    return recorded


@cache
def _warn_of_dropout() -> None:
    warnings.warn(
        "attention dropout needs every weight, so these reads take the slow reference; set the model's attention "
        "dropout to 0 (attention_dropout, attention_probs_dropout_prob or attn_pdrop) to train with the kernels",
        stacklevel=3,
    )


def _read(
    rule: Rule, query: Tensor, key: Tensor, value: Tensor, parts: Parts, bias: Tensor | None, scale: float | None
) -> Tensor:
    """(B, H, Tq, dv); keys and values that several heads share are copied only where it must be."""
    batch, heads, queries, width = query.shape
    shared = key.size(1)
    if heads == shared:
        return memory.read(query, key, value, rule, parts.causal, parts.key_mask, parts.mask, bias, scale)
    if parts.mask is None and bias is None and not parts.causal:  # heads that share slots are more queries of them
        folded = query.reshape(batch, shared, -1, width)
        out = memory.read(folded, key, value, rule, False, parts.key_mask, scale=scale)
        return out.reshape(batch, heads, queries, -1)
    key, value = for_each_head(query, key, value)
    return memory.read(query, key, value, rule, parts.causal, parts.key_mask, parts.mask, bias, scale)


def _read_densely(
    rule: Rule,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    parts: Parts,
    bias: Tensor | None,
    scale: float | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """(B, Tq, H, dv) and the weights (B, H, Tq, Tk), with dropout on them."""
    key, value = for_each_head(query, key, value)
    weights, _ = memory.weights(query, key, rule, parts.causal, parts.key_mask, parts.mask, bias, scale)
    weights = F.dropout(weights.to(value.dtype), dropout)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def for_each_head(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values once for each head of the queries."""
    heads, shared = query.size(1), key.size(1)
    if heads % shared:
        raise ArgumentError(f"{heads} heads of queries cannot share {shared} heads of keys; it must divide them")
    if heads == shared:
        return key, value
    return key.repeat_interleave(heads // shared, 1), value.repeat_interleave(heads // shared, 1)
