"""The one operation: reading a key-value memory.

A memory has slots, each a key k_j and a value v_j. Query i reads it with a rule:

    score   s_ij = scale * q_i . k_j + bias_ij
    weight  w_ij = rule(s_i)_j over the slots that query i may see, exactly 0 elsewhere
    read    h_i  = sum_j w_ij v_j

Attention reads slots made from tokens; a feed-forward layer reads slots that were
learned. n_i, the number of slots that query i *sees* (causal and key_mask and mask), is
the only length that a rule may use: the padded length of a batch would leak into it.
A query that sees nothing reads zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

import torch
from torch import Tensor

from reluformer import kernels, rules
from reluformer.errors import ArgumentError
from reluformer.kernels import Bias, RowKeyBias, RowStats, Visibility, nonfinite, reference
from reluformer.rules import Rule

__all__ = ["RowKeyBias", "RowStats", "RuleSpec", "read", "read_learned", "weights"]

RuleSpec = str | Mapping[str, Any] | Rule
"""A rule by name, as a mapping `{"name": ..., option: ...}`, or itself."""

_AXES = {"bias.rows": "(B, H, Tq)", "bias.keys": "(B, H, Tk)", "bias": "(B, H, Tq, Tk)", "mask": "(B, H, Tq, Tk)"}


@overload
def read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rule: RuleSpec = ...,
    *,
    causal: bool = ...,
    key_mask: Tensor | None = ...,
    mask: Tensor | None = ...,
    bias: Bias | None = ...,
    scale: float | None = ...,
    impl: str = ...,
    return_stats: Literal[False] = ...,
) -> Tensor: ...


@overload
def read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rule: RuleSpec = ...,
    *,
    causal: bool = ...,
    key_mask: Tensor | None = ...,
    mask: Tensor | None = ...,
    bias: Bias | None = ...,
    scale: float | None = ...,
    impl: str = ...,
    return_stats: Literal[True],
) -> tuple[Tensor, RowStats]: ...


def read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rule: RuleSpec = "relu",
    *,
    causal: bool = False,
    key_mask: Tensor | None = None,
    mask: Tensor | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    impl: str = "auto",
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, RowStats]:
    """Read a key-value memory: one weighted sum of values for each query.

    Args:
        q: queries, (B, H, Tq, d).
        k: keys of the slots, (B, H, Tk, d).
        v: values of the slots, (B, H, Tk, dv).
        rule: how scores become weights: a name (`rules.names()`), a mapping `{"name": ..., option: ...}`, or a rule.
        causal: query i sees no slot after its own position; with Tq < Tk the queries are the last Tq positions.
        key_mask: boolean (B, Tk), True where a slot is visible.
        mask: boolean, broadcasts to (B, H, Tq, Tk), True where a slot is visible.
        bias: added to the scores and never changes visibility; broadcasts to (B, H, Tq, Tk), or is a `RowKeyBias`.
        scale: the factor of the scores; the default is 1 / sqrt(d).
        impl: the implementation: "auto" (the fastest that can do it), "reference", "sdpa", "cpu" or "triton".
        return_stats: whether to return the row statistics as well.

    Returns:
        What was read, (B, H, Tq, dv); with `return_stats` also a `RowStats` of tensors (B, H, Tq). The output norm of
        `rela` and `softmax_ln` belongs to the layer and is not applied here.

    Raises:
        ArgumentError: an argument does not fit the others, or `impl` cannot do this read.
        UnknownNameError: there is no rule or no implementation of that name.

    Example:
        >>> q = torch.tensor([[[[1.0]]]])
        >>> k = torch.tensor([[[[2.0], [-1.0]]]])
        >>> v = torch.tensor([[[[10.0], [20.0]]]])
        >>> read(q, k, v, rule="relu", scale=1.0)
        tensor([[[[20.]]]])
        >>> out, stats = read(q, k, v, rule="relu", scale=1.0, return_stats=True)
        >>> stats.zero_fraction.item()
        0.5
    """
    rule = rules.get(rule)
    visibility = _checked(q, k, v, causal, key_mask, mask, bias)
    scale = 1 / math.sqrt(max(q.size(-1), 1)) if scale is None else scale
    out, stats = kernels.run(impl, q, k, v, rule, visibility, bias, scale, return_stats)
    if not return_stats:
        return out
    assert stats is not None
    return out, stats


def weights(
    q: Tensor,
    k: Tensor,
    rule: RuleSpec = "relu",
    *,
    causal: bool = False,
    key_mask: Tensor | None = None,
    mask: Tensor | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
) -> tuple[Tensor, RowStats]:
    """Return the weights that `read` would use, as a dense tensor, and their statistics.

    Args:
        q: queries, (B, H, Tq, d).
        k: keys of the slots, (B, H, Tk, d).
        rule: a name, a mapping or a rule, as in `read`.
        causal: as in `read`.
        key_mask: as in `read`.
        mask: as in `read`.
        bias: as in `read`.
        scale: as in `read`.

    Returns:
        The weights (B, H, Tq, Tk), exactly 0 at hidden slots, and their `RowStats`.

    Raises:
        ArgumentError: an argument does not fit the others.
        UnknownNameError: there is no rule of that name.

    Example:
        >>> q = torch.tensor([[[[1.0]]]])
        >>> k = torch.tensor([[[[2.0], [-1.0]]]])
        >>> found, stats = weights(q, k, "relu_plain", scale=1.0)
        >>> found
        tensor([[[[2., 0.]]]])
    """
    rule = rules.get(rule)
    visibility = _checked(q, k, k, causal, key_mask, mask, bias)
    scale = 1 / math.sqrt(max(q.size(-1), 1)) if scale is None else scale
    if visibility.everything:
        return reference.weights(q, k, rule, visibility, bias, scale)
    found, stats = nonfinite.isolated(
        lambda k, _: reference.weights(q, k, rule, visibility, bias, scale), q, k, k, visibility, exact=False
    )
    assert stats is not None
    return found, stats


def read_learned(
    scores: Tensor,
    values: Tensor,
    rule: RuleSpec = "relu_plain",
    *,
    bias: Tensor | None = None,
    value_rows: Callable[[], Tensor] | None = None,
) -> Tensor:
    """Read slots that were learned: rule(scores) V^T + bias, the second half of a feed-forward layer.

    `read` with every slot visible is its specification; two dense products compute it faster than any tiled read.

    Args:
        scores: of each query against the learned keys, (..., slots).
        values: (width, slots), as `nn.Linear` stores them.
        rule: a name, a mapping or a rule, as in `read`.
        bias: (width,), added to what was read.
        value_rows: returns the values as contiguous rows (slots, width). Pass it where no gradient is needed: a read
            of few rows with many zeros then touches only the values of slots that fired.

    Returns:
        What was read, (..., width).

    Example:
        >>> read_learned(torch.tensor([[2.0, -1.0]]), torch.tensor([[10.0, 20.0]]))
        tensor([[20.]])
    """
    return kernels.read_learned(scores, values, rules.get(rule), bias, value_rows)


def _checked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    key_mask: Tensor | None,
    mask: Tensor | None,
    bias: Bias | None,
) -> Visibility:
    """Return the visibility, or raise an error that names the argument and the fix."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise ArgumentError(
                f"{name} must be (batch, heads, length, width), got shape {tuple(tensor.shape)}; "
                "add the missing dimensions with unsqueeze"
            )
        if not tensor.is_floating_point():
            raise ArgumentError(f"{name} must be floating point, got {tensor.dtype}; convert it with .float()")
    batch, heads, queries, width = q.shape
    of_keys = k.shape
    slots = of_keys[2]
    if of_keys != (batch, heads, slots, width):
        raise ArgumentError(
            f"k has shape {tuple(k.shape)}; batch, heads and width must be those of q, ({batch}, {heads}, Tk, {width})"
        )
    if v.shape[:3] != of_keys[:3]:
        raise ArgumentError(
            f"v has shape {tuple(v.shape)}; it needs one value for each key, ({batch}, {heads}, {slots}, dv)"
        )
    if causal and queries > slots:
        raise ArgumentError(
            f"causal=True with {queries} queries and {slots} slots: the queries are the last positions of the "
            "slots, so there cannot be more of them; pass the keys of the whole prefix"
        )
    if key_mask is not None:
        _check_boolean("key_mask", key_mask)
        if key_mask.shape != (batch, slots):
            raise ArgumentError(
                f"key_mask has shape {tuple(key_mask.shape)}; it must be (batch, Tk) = ({batch}, {slots})"
            )
    full = (batch, heads, queries, slots)
    if mask is not None:
        _check_boolean("mask", mask)
        _check_broadcasts("mask", mask, full)
    if isinstance(bias, RowKeyBias):
        _check_bias("bias.rows", bias.rows, full[:3])
        _check_bias("bias.keys", bias.keys, (batch, heads, slots))
    elif bias is not None:
        _check_bias("bias", bias, full)
    return Visibility(queries, slots, q.device, causal, key_mask, mask)


def _check_bias(name: str, tensor: Tensor, full: tuple[int, ...]) -> None:
    if not tensor.is_floating_point():
        raise ArgumentError(
            f"{name} must be floating point, got {tensor.dtype}; a boolean visibility goes into mask or key_mask"
        )
    _check_broadcasts(name, tensor, full)


def _check_boolean(name: str, tensor: Tensor) -> None:
    if tensor.dtype != torch.bool:
        raise ArgumentError(
            f"{name} must be boolean with True = visible, got {tensor.dtype}; convert 0/1 with .bool(), and a "
            "mask of 0 and -inf with mask == 0"
        )


def _check_broadcasts(name: str, tensor: Tensor, full: tuple[int, ...]) -> None:
    aligned = zip(reversed(tensor.shape), reversed(full), strict=False)
    if tensor.ndim > len(full) or any(size not in (1, wanted) for size, wanted in aligned):
        raise ArgumentError(
            f"{name} has shape {tuple(tensor.shape)}, which does not broadcast to {_AXES[name]} = {full}"
        )
