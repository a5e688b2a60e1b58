"""The one operation: reading a key-value memory.

A memory has slots, each a key k_j and a value v_j. Query i reads it with a rule:

    score   s_ij = scale * q_i . k_j + bias_ij
    weight  w_ij = rule(s_i)_j over the slots that query i may see, exactly 0 elsewhere
    read    h_i  = sum_j w_ij v_j

Attention reads slots made from tokens; a feed-forward layer reads slots that were
learned. n_i, the number of slots that query i *sees* (causal, window, packed sequences, key_mask
and mask), is the only length that a rule may use: the padded length of a batch would leak into it.
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
from reluformer.kernels import Bias, RowKeyBias, RowStats, Visibility, Window, derivatives, nonfinite, reference, sdpa
from reluformer.kernels.operands import Gate, GateOn, with_gate
from reluformer.rules import Rule

__all__ = ["RowKeyBias", "RowStats", "RuleSpec", "learning_pays", "read", "read_learned", "skipped_share", "weights"]

RuleSpec = str | Mapping[str, Any] | Rule
"""A rule by name, as a mapping `{"name": ..., option: ...}`, or itself."""

_AXES = {
    "bias.rows": "(B, H, Tq)",
    "bias.keys": "(B, H, Tk)",
    "bias": "(B, H, Tq, Tk)",
    "gate": "(B, H, Tk)",
    "mask": "(B, H, Tq, Tk)",
}


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
    window: Window | None = ...,
    offsets: Tensor | None = ...,
    bias: Bias | None = ...,
    gate: Gate | None = ...,
    gate_on: GateOn = ...,
    sink: Tensor | None = ...,
    scale: float | None = ...,
    impl: str = ...,
    approximate: bool = ...,
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
    window: Window | None = ...,
    offsets: Tensor | None = ...,
    bias: Bias | None = ...,
    gate: Gate | None = ...,
    gate_on: GateOn = ...,
    sink: Tensor | None = ...,
    scale: float | None = ...,
    impl: str = ...,
    approximate: bool = ...,
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
    window: Window | None = None,
    offsets: Tensor | None = None,
    bias: Bias | None = None,
    gate: Gate | None = None,
    gate_on: GateOn = "scores",
    sink: Tensor | None = None,
    scale: float | None = None,
    impl: str = "auto",
    approximate: bool = False,
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, RowStats]:
    """Read a key-value memory: one weighted sum of values for each query.

    Args:
        q: queries, (B, H, Tq, d).
        k: keys of the slots, (B, Hk, Tk, d). Hk divides H; so many consecutive heads of queries share the slots of one.
        v: values of the slots, (B, Hk, Tk, dv).
        rule: how scores become weights: a name (`rules.names()`), a mapping `{"name": ..., option: ...}`, or a rule.
        causal: query i sees no slot after its own position; with Tq < Tk the queries are the last Tq positions.
        key_mask: boolean (B, Tk), True where a slot is visible.
        mask: boolean, broadcasts to (B, H, Tq, Tk), True where a slot is visible.
        window: (left, right), how many slots before and after its own position a query sees; None for all of them.
            Queries are the last Tq positions, and with `causal` none sees a slot to its right.
        offsets: integers (S + 1), where each of S packed sequences begins, from 0 to Tk, with a batch of one. A query
            sees its own sequence only.
        bias: added to the scores and never changes visibility; broadcasts to (B, H, Tq, Tk), or is a `RowKeyBias`.
        gate: cumulative sums c of log forget gates over the slots, broadcasts to (B, H, Tk): c_i - c_j is added to the
            scores. For most rules that is a `RowKeyBias`. Rules of centred scores take their level from the scores
            without the gate.
        gate_on: "scores", or "weights" to multiply each weight by exp(c_i - c_j) instead. Then the scores alone decide
            which weights are zero, and a row is not normed after the gate. Only the reference does it.
        sink: (H,), for softmax rules: the score of a slot without value that every query sees and n does not count.
        scale: the factor of the scores; the default is 1 / sqrt(d).
        impl: the implementation: "auto" (the fastest that can do it), "reference", "sdpa", "cpu" or "triton".
        approximate: for softmax with a `gate`: leave out the slots that the gate hides but for a weight below e^-10
            in all, as FoX's adaptive pruning does. Rules with zeros lose nothing and need no such option.
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
    visibility = _visibility(q, k, v, causal, key_mask, mask, window, offsets, bias)
    _check_gate_and_sink(q, k, rule, gate, sink)
    _check_gate_on(gate, gate_on)
    if approximate and (gate is None or gate_on == "weights" or not sdpa.knows(rules.formula_of(rule))):
        raise ArgumentError(
            f"approximate=True is for softmax with a gate, and rule '{rule.name}' is read "
            f"{'without one' if gate is None else 'exactly'}; drop it"
        )
    scale = _default_scale(q) if scale is None else scale
    out, stats = kernels.run(
        impl, q, k, v, rule, visibility, bias, scale, return_stats, gate, sink, approximate, gate_on
    )
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
    window: Window | None = None,
    offsets: Tensor | None = None,
    bias: Bias | None = None,
    gate: Gate | None = None,
    gate_on: GateOn = "scores",
    sink: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, RowStats]:
    """Returns the weights that `read` would use, as a dense tensor, and their statistics.

    Args:
        q: queries, (B, H, Tq, d).
        k: keys of the slots, (B, Hk, Tk, d).
        rule: a name, a mapping or a rule, as in `read`.
        causal: as in `read`.
        key_mask: as in `read`.
        mask: as in `read`.
        window: as in `read`.
        offsets: as in `read`.
        bias: as in `read`.
        gate: as in `read`.
        gate_on: as in `read`.
        sink: as in `read`.
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
    visibility = _visibility(q, k, k, causal, key_mask, mask, window, offsets, bias)
    _check_gate_and_sink(q, k, rule, gate, sink)
    _check_gate_on(gate, gate_on)
    if gate is not None and gate_on == "scores" and not rule.centred:
        bias, gate = with_gate(bias, gate, q.size(2)), None
    scale = _default_scale(q) if scale is None else scale
    if visibility.everything:
        return reference.weights(q, k, rule, visibility, bias, scale, gate, sink, gate_on)
    found, stats = nonfinite.isolated(
        lambda k, _: reference.weights(q, k, rule, visibility, bias, scale, gate, sink, gate_on),
        q,
        k,
        k,
        visibility,
        exact=False,
    )
    assert stats is not None
    return found, stats


def skipped_share(
    q: Tensor,
    k: Tensor,
    rule: RuleSpec = "relu",
    *,
    gate: Gate,
    scale: float | None = None,
) -> float:
    """Returns the share of visible pairs that a causal read proves to have no weight before any score is computed.

    Under a forget gate the CPU kernel skips them; nothing is lost (`kernels/parts.py`). The share is 0 where rule or
    shapes allow no such proof.

    Args:
        q: queries, (B, H, T, d).
        k: keys of the slots, (B, Hk, T, d).
        rule: a name, a mapping or a rule, as in `read`.
        gate: as in `read`.
        scale: as in `read`.

    Raises:
        ArgumentError: an argument does not fit the others.
        UnknownNameError: there is no rule of that name.

    Example:
        >>> q = torch.ones(1, 1, 2048, 4)
        >>> skipped_share(q, q, gate=-torch.arange(2048.0)) > 0.8
        True
    """
    rule = rules.get(rule)
    visibility = _visibility(q, k, k, True, None, None, None, None, None)
    _check_gate_and_sink(q, k, rule, gate, None)
    scale = _default_scale(q) if scale is None else scale
    return kernels.skipped_share(q, k, rule, visibility, gate, scale)


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


def learning_pays(x: Tensor, keys: Tensor, rule: RuleSpec = "relu_plain", bias: Tensor | None = None) -> bool:
    """Returns whether training a read of learned slots is faster through `read` with impl="cpu" than `read_learned` is.

    Args:
        x: the tokens, (..., width).
        keys: the learned keys, (slots, width).
        rule: a name, a mapping or a rule, as in `read`.
        bias: (slots,), added to the scores.

    Example:
        >>> learning_pays(torch.zeros(2, 8), torch.zeros(32, 8))  # too small for the compiled kernel
        False
    """
    return kernels.learning_pays(x, keys, rules.get(rule), bias)


def _default_scale(q: Tensor) -> float:
    return 1 / math.sqrt(max(q.size(-1), 1))


def _visibility(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    key_mask: Tensor | None,
    mask: Tensor | None,
    window: Window | None,
    offsets: Tensor | None,
    bias: Bias | None,
) -> Visibility:
    """Returns what each query sees, or raise an error that names the argument and the fix."""
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
    key_heads, slots = of_keys[1:3]
    if of_keys != (batch, key_heads, slots, width):
        raise ArgumentError(
            f"k has shape {tuple(k.shape)}; batch and width must be those of q, ({batch}, {heads}, Tk, {width})"
        )
    if heads != key_heads and (not key_heads or heads % key_heads):
        raise ArgumentError(
            f"k has {key_heads} heads and q has {heads}; the heads of k must divide those of q, so that equally many "
            "heads of queries share each of them"
        )
    if v.shape[:3] != of_keys[:3]:
        raise ArgumentError(
            f"v has shape {tuple(v.shape)}; it needs one value for each key, ({batch}, {key_heads}, {slots}, dv)"
        )
    if causal and queries > slots:
        raise ArgumentError(
            f"causal=True with {queries} queries and {slots} slots: the queries are the last positions of the "
            "slots, so there cannot be more of them; pass the keys of the whole prefix"
        )
    if window is not None:
        window = _checked_window(window, queries, slots)
    if offsets is not None:
        check_offsets(offsets, batch, queries, slots)
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
    return Visibility(queries, slots, q.device, causal, key_mask, mask, window, offsets)


def _checked_window(window: Window, queries: int, slots: int) -> Window:
    """Returns the window as a pair, or raise an error that names what is wrong with it."""
    pair = tuple(window) if isinstance(window, tuple | list) else ()
    if len(pair) != 2 or not all(
        side is None or (isinstance(side, int) and not isinstance(side, bool)) for side in pair
    ):
        raise ArgumentError(
            f"window must be (left, right), two numbers of slots or None for all of them, got {window!r}; "
            "a causal window of the newest 128 slots is window=(127, 0)"
        )
    if any(side is not None and side < 0 for side in pair):
        raise ArgumentError(f"window={window!r} has a negative width; use 0 for no slot and None for all on that side")
    if queries > slots:
        raise ArgumentError(
            f"window with {queries} queries and {slots} slots: the queries are the last positions of the slots, so "
            "there cannot be more of them; pass the keys of the whole prefix"
        )
    left, right = (None if side is None else min(side, slots) for side in pair)  # positions must not overflow
    return left, right


def check_offsets(offsets: Tensor, batch: int, queries: int, slots: int) -> None:
    """Raise an error that names what is wrong with the offsets of packed sequences, if anything is.

    Args:
        offsets: what was given as offsets.
        batch: B.
        queries: Tq.
        slots: Tk.
    """
    if not isinstance(offsets, Tensor) or offsets.ndim != 1 or offsets.dtype not in (torch.int32, torch.int64):
        found = f"{offsets.dtype} of shape {tuple(offsets.shape)}" if isinstance(offsets, Tensor) else repr(offsets)
        raise ArgumentError(f"offsets must be a tensor of integers (S + 1), got {found}; convert it with .long()")
    if batch != 1:
        raise ArgumentError(
            f"offsets with a batch of {batch}: packed sequences lie one after the other in a batch of one; join them "
            "along the length"
        )
    if queries != slots:
        raise ArgumentError(
            f"offsets with {queries} queries and {slots} slots: packed sequences read themselves, so pass as many "
            "queries as slots"
        )
    if not offsets.is_cpu or not derivatives.concrete(offsets):
        return
    fits = offsets.numel() >= 2 and int(offsets[0]) == 0 and int(offsets[-1]) == slots
    if not fits or bool((offsets[1:] < offsets[:-1]).any()):
        raise ArgumentError(
            f"offsets must rise from 0 to the number of slots, {slots}, got {offsets.tolist()[:8]}"
            f"{' ...' if offsets.numel() > 8 else ''}; pass a 0 and the cumulative lengths"
        )


def _check_gate_and_sink(q: Tensor, k: Tensor, rule: Rule, gate: Gate | None, sink: Tensor | None) -> None:
    if isinstance(gate, RowKeyBias):
        _check_bias("gate.rows", gate.rows, q.shape[:3])
        _check_bias("gate.keys", gate.keys, (*q.shape[:2], k.size(2)))
    elif gate is not None:
        _check_bias("gate", gate, (*q.shape[:2], k.size(2)))
        if not gate.ndim or gate.size(-1) != k.size(2):
            raise ArgumentError(
                f"gate has shape {tuple(gate.shape)}; it needs a number for each of the {k.size(2)} slots: the "
                "cumulative sum of log forget gates"
            )
        if q.size(2) > k.size(2):
            raise ArgumentError(
                f"gate with {q.size(2)} queries and {k.size(2)} slots: the queries are the last positions of the "
                "slots; pass the keys of the whole prefix"
            )
    if sink is None:
        return
    if sink.shape != q.shape[1:2] or not sink.is_floating_point():
        raise ArgumentError(f"sink has shape {tuple(sink.shape)}; it must be one score a head, ({q.size(1)},)")
    if not sdpa.knows(rules.formula_of(rule)):
        raise ArgumentError(
            f"rule '{rule.name}' takes no sink, only softmax and softmax1 do; drop the sink, or choose one of these"
        )


def _check_gate_on(gate: Gate | None, gate_on: str) -> None:
    if gate_on not in ("scores", "weights"):
        raise ArgumentError(f"gate_on={gate_on!r} is unknown; use 'scores' or 'weights'")
    if gate is None and gate_on == "weights":
        raise ArgumentError("gate_on='weights' without a gate; pass gate, or drop it")


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
