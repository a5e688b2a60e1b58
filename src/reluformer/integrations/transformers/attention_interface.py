"""A rule as the attention of any transformers model: `attn_implementation="reluformer:relu"`.

Every attention layer that goes through transformers' `AttentionInterface` calls the
function below. It reads with `memory.read`, so it uses the same kernels. Options that a
read cannot express raise an error; none is ignored.

transformers calls a *mask function* once for each forward pass and passes the attention
mask to every layer. Ours returns the usual boolean mask (B, 1, Tq, Tk), True = visible. It
also attaches the parts of the mask, causal order and key mask, so that fast kernels can
use them. A model that cuts or copies the mask loses only this note: the read stays exact
and is merely slower.

    None          the causal order alone (as for `sdpa`), or a single query that sees everything
    (B,1,Tq,Tk)   everything else; with `MaskParts` if it is causal order and padding

Shapes: B batch, H heads, Hkv heads of keys and values (H is a multiple of it), Tq, Tk, d.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    prepare_padding_mask,
    sdpa_mask,
)

from reluformer import memory, rules
from reluformer.errors import ArgumentError
from reluformer.rules import Rule

PREFIX = "reluformer:"
"""The prefix of a rule's name in `attn_implementation`."""

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]

_REFUSED = {
    "softcap": "soft capping of scores",
    "s_aux": "attention sinks",
    "sinks": "attention sinks",
    "indices": "a selection of slots by index",
    "block_indices": "a selection of slots by block",
    "cache": "a paged cache",
}
"""Arguments that change the meaning of attention and that a read does not support."""
_NOTE = "_reluformer_parts"


class MaskParts(NamedTuple):
    """The arguments of `memory.read` that are equivalent to a dense mask."""

    causal: bool = False
    key_mask: Tensor | None = None  # (B, Tk)
    mask: Tensor | None = None  # broadcasts to (B, H, Tq, Tk)


def mask_function(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Tensor | None:
    """Creates the attention mask; `AttentionMaskInterface` calls it.

    Args:
        batch_size: B.
        q_length: Tq.
        kv_length: Tk.
        q_offset: The position of the first query.
        kv_offset: The position of the first slot.
        mask_function: The pattern of transformers, such as causal or bidirectional.
        attention_mask: (B, tokens so far), True at tokens and False at padding.
        allow_is_causal_skip: If True, causal order alone is returned as None.
        device: The device of the mask.
        options: Further arguments of transformers' own mask functions.

    Returns:
        The mask (B, 1, Tq, Tk), True = visible, or None.
    """
    shape = (batch_size, 1, q_length, kv_length)
    if mask_function is bidirectional_mask_function:
        return _bidirectional(shape, _key_mask(attention_mask, kv_length, kv_offset), device)
    square = q_length in (1, kv_length)
    ends_together = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
    if mask_function is not causal_mask_function or not ends_together:
        made: Tensor | None = sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            allow_is_causal_skip=allow_is_causal_skip and square and options.get("local_size") is not None,
            device=device,
            **{**options, "allow_is_bidirectional_skip": False},
        )
        return made
    keys = _key_mask(attention_mask, kv_length, kv_offset)
    if keys is None and allow_is_causal_skip and square:
        return None
    past = torch.ones(q_length, kv_length, dtype=torch.bool, device=device).tril_(kv_length - q_length)
    dense = past.expand(shape) if keys is None else past & keys[:, None, None, :]
    return _noted(dense, MaskParts(causal=True, key_mask=keys))


def parts_of(mask: Tensor, batch: int, queries: int, slots: int) -> MaskParts:
    """Returns a boolean mask, which broadcasts to (B, H, Tq, Tk), as the arguments of a read."""
    noted = getattr(mask, _NOTE, None)
    if noted is not None and noted[1] == mask._version and mask.shape[2:] == (queries, slots):
        parts: MaskParts = noted[0]
        return parts
    same_for_every_query = mask.size(1) == 1 and (mask.size(2) == 1 or mask.stride(2) == 0)
    if same_for_every_query and mask.size(0) in (1, batch) and mask.size(3) == slots:
        return MaskParts(key_mask=mask[:, 0, 0].expand(batch, slots))
    return MaskParts(mask=mask)


def _bidirectional(shape: tuple[int, ...], keys: Tensor | None, device: torch.device | str) -> Tensor:
    """Returns a mask and never None, which a causal module would take for the causal order."""
    visible = torch.ones((), dtype=torch.bool, device=device) if keys is None else keys[:, None, None, :]
    return _noted(visible.expand(shape), MaskParts(key_mask=keys))


def _key_mask(tokens: Tensor | None, length: int, offset: int) -> Tensor | None:
    """Returns (B, length), True at tokens, or None if nothing is hidden."""
    padded = prepare_padding_mask(tokens, length, offset)
    if padded is None:
        return None
    keys: Tensor = padded[:, offset : offset + length].bool()
    return None if not torch.compiler.is_compiling() and bool(keys.all()) else keys


def _noted(mask: Tensor, parts: MaskParts) -> Tensor:
    if not torch.compiler.is_compiling():
        setattr(mask, _NOTE, (parts, mask._version))
    return mask


def attention_function(rule: str | Rule) -> AttentionFunction:
    """Returns the function that transformers calls in place of its own attention.

    Args:
        rule: A rule or its name.

    Returns:
        A function of queries (B,H,Tq,d), keys (B,Hkv,Tk,d) and values (B,Hkv,Tk,dv). It
        returns (B,Tq,H,dv), and the weights (B,H,Tq,Tk) if they are requested.

    Raises:
        UnknownNameError: No rule has this name.

    Example:
        >>> import torch
        >>> attend = attention_function("relu")
        >>> queries, slots = torch.rand(1, 4, 3, 8), torch.rand(1, 2, 3, 8)  # two heads share the slots of one
        >>> out, weights = attend(torch.nn.Identity(), queries, slots, slots, None, is_causal=True)
        >>> out.shape, weights
        (torch.Size([1, 3, 4, 8]), None)
    """
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
        """(B,H,Tq,d), (B,Hkv,Tk,d), (B,Hkv,Tk,dv) -> (B,Tq,H,dv), and the weights if they are requested."""
        check_rule(rule)
        _check_options(module, attention_mask, key.size(2), options)
        parts, bias = mask_parts(module, query, key, attention_mask, is_causal, position_bias)
        query, bias = relufied_scores(module, query, bias, scaling)
        drops = dropout > 0 and module.training
        if drops or _wants_weights(options):
            if drops:
                warn_of_dropout()
            return _read_densely(rule, query, key, value, parts, bias, scaling, dropout if drops else 0.0)
        out = _read(rule, query, key, value, parts, bias, scaling)
        return out.transpose(1, 2).contiguous(), None

    return attend


def check_rule(rule: Rule) -> None:
    """Raises an error if the rule has an output norm, for whose parameters the model has no place."""
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


def mask_parts(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    is_causal: bool | None,
    position_bias: Tensor | None,
) -> tuple[MaskParts, Tensor | None]:
    """Returns the parts of the attention mask, and the bias that is added to the scores."""
    batch, queries, slots = query.size(0), query.size(2), key.size(2)
    if mask is None:
        return MaskParts(causal=_is_causal(module, queries, slots, is_causal)), position_bias
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
    """Applies the scales and offsets that `hub.relufy` fitted to the heads of this attention, if any."""
    scores = getattr(module, "relufied", None)
    if scores is None:
        return query, bias
    scaled, offset = scores(query, query.size(-1) ** -0.5 if scale is None else scale)
    if bias is None:
        return scaled, offset
    bias = bias * scores.scale(query)
    return scaled, bias if offset is None else bias + offset


def _is_causal(module: nn.Module, queries: int, slots: int, is_causal: bool | None) -> bool:
    """Returns whether the read is causal; without a mask, the argument or the module decides."""
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
    """Returns True if the caller, or transformers' recorder of outputs, requests the weights."""
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
def warn_of_dropout() -> None:
    """Warns once that dropout of attention weights takes the slow reference."""
    warnings.warn(
        "attention dropout needs every weight, so these reads take the slow reference; set the model's attention "
        "dropout to 0 (attention_dropout, attention_probs_dropout_prob or attn_pdrop) to train with the kernels",
        stacklevel=3,
    )


def _read(
    rule: Rule, query: Tensor, key: Tensor, value: Tensor, parts: MaskParts, bias: Tensor | None, scale: float | None
) -> Tensor:
    """Returns (B, H, Tq, dv); heads that share keys and values read them without a copy."""
    _check_heads(query, key)
    return memory.read(
        query, key, value, rule, bias=bias, scale=scale, causal=parts.causal, key_mask=parts.key_mask, mask=parts.mask
    )


def _read_densely(
    rule: Rule,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    parts: MaskParts,
    bias: Tensor | None,
    scale: float | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Returns (B, Tq, H, dv) and the weights (B, H, Tq, Tk), after dropout."""
    key, value = repeat_heads(query, key, value)
    weights, _ = memory.weights(
        query, key, rule, bias=bias, scale=scale, causal=parts.causal, key_mask=parts.key_mask, mask=parts.mask
    )
    weights = F.dropout(weights.to(value.dtype), dropout)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def repeat_heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Repeats keys and values for each head of the queries."""
    _check_heads(query, key)
    group = query.size(1) // key.size(1)
    return (key, value) if group == 1 else (key.repeat_interleave(group, 1), value.repeat_interleave(group, 1))


def _check_heads(query: Tensor, key: Tensor) -> None:
    heads, shared = query.size(1), key.size(1)
    if heads % shared:
        raise ArgumentError(f"{heads} heads of queries cannot share {shared} heads of keys; it must divide them")
