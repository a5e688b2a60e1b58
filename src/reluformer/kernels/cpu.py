"""Pointwise rules, and those divided by their row sum, through the C++ library, without ever storing the scores.

The kernel is two operators of torch, `reluformer::cpu_read` and `reluformer::cpu_read_stats`,
with fake implementations and gradients, so that torch.compile and torch.export see through it.
The memory of both passes grows with the number of tokens, not with its square.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from reluformer.errors import ArgumentError
from reluformer.kernels import bias as biases
from reluformer.kernels.bias import Bias
from reluformer.kernels.native import library
from reluformer.kernels.native.library import NOTHING, Library, LibraryError, packed_rows, tensor3, tensor4
from reluformer.kernels.statistics import RowStats
from reluformer.kernels.visibility import Visibility
from reluformer.rules import (
    RectifiedExp,
    Rela,
    Relu,
    Relu2,
    ReluPlain,
    ReluSeqlen,
    RowCentered,
    RowNormalized,
    Rule,
    Sigmoid,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
RELU, RELU_SQUARED, SIGMOID, RELU_EXP = range(4)

# Where the kernel overtakes the reference: `python benchmarks/crossover.py` measures it anew.
SCORES = 2**18
"""Scores (B H Tq Tk) of a read of all slots. With statistics, or where slots are hidden, which the kernel skips, it is
ahead at any size, few queries aside."""
FEW = 8
"""Up to so many queries the kernel reads slot by slot (problem.h). That path is for inference: the backward pass
works on tiles, and the reference is faster there."""
FEW_SCORES = 2**14
CENTRED = 64
"""Rules of centred scores need the moments of their rows first, which pay from so many queries on, and from as many as
a head is wide; twice as many where no slot is hidden."""
GATHERED_ROWS = 4
GATHERED_ZEROS = 0.75
GATHERED_VALUES = 2**18
"""`gather_values` is for at most so many rows with at least this share of zeros and this many numbers in the values."""


def _load() -> tuple[Library | None, str | None]:
    """The library, or why there is none."""
    try:
        return library.load(), None
    except LibraryError as error:
        return None, str(error)


_library, _missing = _load()  # once, at import: a compiler that traces a read must not meet it


def unavailable() -> str | None:
    """Why the kernel cannot be used here; None where it can."""
    return _missing


def loaded() -> Library:
    """The library; ask `unavailable` before."""
    assert _library is not None, _missing
    return _library


class Formula(NamedTuple):
    """act(s) * factor * n^-exponent, divided by delta + its row sum where delta >= 0."""

    activation: int
    factor: float = 1.0
    exponent: float = 0.0
    delta: float = -1.0


def formula(rule: Rule) -> Formula | None:
    """What the kernel computes for `rule`; None where it cannot, as for a subclass that may mean anything."""
    if isinstance(rule, RowNormalized) and type(rule).weights is RowNormalized.weights:
        inner = formula(rule.inner)
        return None if inner is None else Formula(inner.activation, inner.factor, inner.exponent, rule.delta)
    kind = type(rule)
    if kind is ReluPlain or kind is Rela:
        return Formula(RELU)
    if kind is Relu:
        return Formula(RELU, math.sqrt(2) / cast(Relu, rule).gamma, 0.5)
    if kind is ReluSeqlen:
        return Formula(RELU, 1.0, cast(ReluSeqlen, rule).alpha)
    if kind is Relu2:
        return Formula(RELU_SQUARED, math.sqrt(2 / 3) / cast(Relu2, rule).gamma, 0.5)
    if kind is RectifiedExp:
        return Formula(RELU_EXP)
    return Formula(SIGMOID) if kind is Sigmoid else None


def description() -> str:
    """One line for `reluformer doctor`."""
    if reason := unavailable():
        return f"not available: {reason}"
    found = loaded()
    threads = f"{torch.get_num_threads()} of torch's threads" if found.threaded else "one thread: no GOMP_parallel"
    return f"available: {library.PATHS[found.path]} instructions, {threads}, products of its own"


def refusal(q: Tensor, rule: Rule, visibility: Visibility, bias: Bias | None) -> str | None:
    """Why this read cannot go through the kernel; None where it can."""
    if reason := unavailable():
        return reason
    if q.device.type != "cpu":
        return f"the tensors are on {q.device}"
    if q.dtype not in DTYPES:
        return f"it computes in float32, not {q.dtype}"
    if visibility.mask is not None:
        return "it takes causal and key_mask, but no dense mask"
    if biases.parts(bias, visibility.slots) is None:
        return "it takes a key bias (..., 1, Tk), a row bias (..., Tq, 1) or a RowKeyBias, but no dense bias"
    if formula(rule) is None:
        return f"rule '{rule.name}' is not one of its formulas"
    return None


def pays(q: Tensor, k: Tensor, v: Tensor, rule: Rule, visibility: Visibility, stats: bool) -> bool:
    """Whether the kernel is expected to beat the reference; see the constants."""
    if q.device.type != "cpu" or unavailable():
        return False
    hidden = not visibility.everything
    if isinstance(rule, RowCentered):
        return visibility.queries >= max(CENTRED, q.size(-1)) * (1 if hidden else 2)
    scores = q.size(0) * q.size(1) * visibility.queries * visibility.slots
    if visibility.queries <= FEW:
        trains = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        return not stats and not trains and (hidden or scores >= FEW_SCORES)
    return stats or hidden or scores >= SCORES


def read(
    q: Tensor, k: Tensor, v: Tensor, rule: Rule, visibility: Visibility, bias: Bias | None, scale: float, stats: bool
) -> tuple[Tensor, RowStats | None]:
    """(B,H,Tq,d), (B,H,Tk,d), (B,H,Tk,dv) -> (B,H,Tq,dv), and the row statistics if asked."""
    if reason := refusal(q, rule, visibility, bias):
        raise ArgumentError(f"impl='cpu' cannot do this read: {reason}; use impl='auto'")
    known, split = formula(rule), biases.parts(bias, visibility.slots)
    assert known is not None and split is not None
    batch, heads, queries, _ = q.shape
    row_bias, key_bias = (
        None if part is None else _float(part).expand(batch, heads, length)
        for part, length in zip(split, (queries, visibility.slots), strict=True)
    )
    operands = (_float(q), _float(k), _float(v), visibility.key_mask, row_bias, key_bias)
    options = (visibility.hides_future, scale, *known)
    if not stats:
        out, _ = torch.ops.reluformer.cpu_read(*operands, *options)
        return _back(out, v), None
    out, row_sum, entropy, zero_fraction, _ = torch.ops.reluformer.cpu_read_stats(*operands, *options)
    n_visible = visibility.counts().expand(row_sum.shape)
    return _back(out, v), RowStats(row_sum, entropy, zero_fraction, n_visible)


def gathering_pays(weights: Tensor, width: int) -> bool:
    """Whether `gather_values` is expected to beat a dense product with values (slots, width)."""
    if unavailable() or weights.device.type != "cpu" or weights.dtype != torch.float32 or weights.requires_grad:
        return False
    slots = weights.size(-1)
    if weights.numel() > GATHERED_ROWS * slots or slots * width < GATHERED_VALUES:
        return False
    return int(torch.count_nonzero(weights)) <= (1 - GATHERED_ZEROS) * weights.numel()


def gather_values(weights: Tensor, values: Tensor) -> Tensor:
    """weights (..., slots) @ values (slots, width), contiguous, reading only the values of slots that fired.

    The second product of a feed-forward memory; without gradient.
    """
    rows = weights.reshape(-1, weights.size(-1)).contiguous()
    out = torch.empty(rows.size(0), values.size(1))
    loaded().weigh_values(loaded().path, out, rows, values)
    return out.view(*weights.shape[:-1], values.size(1))


def _float(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float32 else x.float()


def _back(out: Tensor, v: Tensor) -> Tensor:
    return out if out.dtype == v.dtype else out.to(v.dtype)


# ------------------------------------------------------------------ the operators

_OPERANDS = "Tensor q, Tensor k, Tensor v, Tensor? key_mask, Tensor? row_bias, Tensor? key_bias"
_OPTIONS = "bool causal, float scale, int activation, float factor, float exponent, float delta"
_GRADIENTS = "Tensor d_out, Tensor? d_row_sum, Tensor? d_entropy, Tensor out, Tensor sums"
torch.library.define("reluformer::cpu_read", f"({_OPERANDS}, {_OPTIONS}) -> (Tensor, Tensor)")
torch.library.define(
    "reluformer::cpu_read_stats", f"({_OPERANDS}, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
torch.library.define(
    "reluformer::cpu_read_backward",
    f"({_GRADIENTS}, {_OPERANDS}, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def _like_tokens(x: Tensor, length: int, width: int) -> Tensor:
    """(B, H, length, width) in the memory of (B, length, H, width), so that joining the heads is free."""
    return torch.empty(x.size(0), length, x.size(1), width, dtype=x.dtype, device=x.device).transpose(1, 2)


def _read_fields(
    operands: Sequence[Any],
    options: tuple[Any, ...],
    out: Tensor,
    sums: Tensor | None,
    statistics: tuple[Tensor, ...] = (),
) -> tuple[float, ...]:
    """The fields of the C struct; the caller keeps the tensors alive."""
    q, k, v, key_mask, row_bias, key_bias = operands
    causal, scale, activation, factor, exponent, delta = options
    batch, heads, queries, width = q.shape
    return (
        *(batch, heads, queries, k.size(2), width, v.size(3)),
        *(causal, torch.get_num_threads(), loaded().path, activation, activation == SIGMOID),
        *(scale, factor, exponent, delta),
        *(*tensor4(q), *tensor4(k), *tensor4(v), *tensor4(out)),
        *((0, 0) if key_mask is None else (key_mask.data_ptr(), key_mask.stride(0))),
        *(*tensor3(row_bias), *tensor3(key_bias)),
        *((*NOTHING, *NOTHING) if sums is None else (*tensor3(sums[0]), *tensor3(sums[1]))),
        *(field for row in statistics or (None, None, None) for field in tensor3(row)),
    )


def _prepared(operands: tuple[Any, ...]) -> list[Any]:
    return [None if x is None else packed_rows(x) for x in operands]


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    operands, options = _prepared(arguments[:6]), arguments[6:]
    q, v = operands[0], operands[2]
    out = _like_tokens(q, q.size(2), v.size(3))
    divided = options[-1] >= 0
    sums = torch.empty((2, *q.shape[:3]) if divided else 0)
    loaded().forward(*_read_fields(operands, options, out, sums if divided else None))
    return out, sums


def _forward_stats(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    operands, options = _prepared(arguments[:6]), arguments[6:]
    q, v = operands[0], operands[2]
    out, sums = _like_tokens(q, q.size(2), v.size(3)), torch.empty(2, *q.shape[:3])
    row_sum, entropy, zero_fraction = (torch.empty(q.shape[:3]) for _ in range(3))
    fields = _read_fields(operands, options, out, sums, (row_sum, entropy, zero_fraction))
    loaded().forward(*fields)
    return out, row_sum, entropy, zero_fraction, sums


def _backward(
    d_out: Tensor, d_row_sum: Tensor | None, d_entropy: Tensor | None, out: Tensor, sums: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    operands, options = _prepared(arguments[:6]), arguments[6:]
    q, k, v, _, row_bias, key_bias = operands
    d_out, d_row_sum, d_entropy = _prepared((d_out, d_row_sum, d_entropy))
    d_q, d_k, d_v = (_like_tokens(x, x.size(2), x.size(3)) for x in (q, k, v))
    d_row_bias, d_key_bias = _bias_gradients(q, k, row_bias, key_bias)
    loaded().backward(
        *_read_fields(operands, options, out, sums if sums.numel() else None),
        *(*tensor4(d_out), *tensor4(d_q), *tensor4(d_k), *tensor4(d_v)),
        *(*tensor3(d_row_sum), *tensor3(d_entropy)),
        *(NOTHING if row_bias is None else tensor3(d_row_bias)),
        *(NOTHING if key_bias is None else tensor3(d_key_bias)),
    )
    return d_q, d_k, d_v, d_row_bias, d_key_bias


def _bias_gradients(q: Tensor, k: Tensor, row_bias: Tensor | None, key_bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Memory for them; empty where there is no such bias."""
    rows = torch.empty(q.shape[:3] if row_bias is not None else 0, device=q.device)
    keys = torch.empty(k.shape[:3] if key_bias is not None else 0, device=q.device)
    return rows, keys


def _fake_forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    q, v, delta = arguments[0], arguments[2], arguments[-1]
    sums = q.new_empty(2, *q.shape[:3]) if delta >= 0 else q.new_empty(0)
    return _like_tokens(q, q.size(2), v.size(3)), sums


def _fake_forward_stats(*arguments: Any) -> tuple[Tensor, ...]:
    q, v = arguments[0], arguments[2]
    rows = tuple(q.new_empty(q.shape[:3]) for _ in range(3))
    return (_like_tokens(q, q.size(2), v.size(3)), *rows, q.new_empty(2, *q.shape[:3]))


def _fake_backward(*arguments: Any) -> tuple[Tensor, ...]:
    q, k, v, _, row_bias, key_bias = arguments[5:11]
    tokens = tuple(_like_tokens(x, x.size(2), x.size(3)) for x in (q, k, v))
    return (*tokens, *_bias_gradients(q, k, row_bias, key_bias))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    out, sums = output[0], output[-1]
    ctx.mark_non_differentiable(*output[3:] if len(output) > 2 else (sums,))
    ctx.set_materialize_grads(False)
    divided = inputs[-1] >= 0
    ctx.save_for_backward(*inputs[:6], out if divided else None, sums)
    ctx.options = inputs[6:]


def _gradients(ctx: Any, d_out: Tensor | None, *d_stats: Tensor | None) -> tuple[Tensor | None, ...]:
    *operands, out, sums = ctx.saved_tensors
    q, _, v = operands[:3]
    if d_out is None:
        d_out = q.new_zeros(()).expand(*q.shape[:3], v.size(3))
    d_row_sum, d_entropy = d_stats[:2] if len(d_stats) > 1 else (None, None)
    d_q, d_k, d_v, d_row_bias, d_key_bias = torch.ops.reluformer.cpu_read_backward(
        d_out, d_row_sum, d_entropy, d_out if out is None else out, sums, *operands, *ctx.options
    )
    row_bias, key_bias = operands[4:]
    d_biases = (None if row_bias is None else d_row_bias, None if key_bias is None else d_key_bias)
    return (d_q, d_k, d_v, None, *d_biases, *(None for _ in ctx.options))


for _name, _kernel, _fake in (
    ("cpu_read", _forward, _fake_forward),
    ("cpu_read_stats", _forward_stats, _fake_forward_stats),
    ("cpu_read_backward", _backward, _fake_backward),
):
    torch.library.impl(f"reluformer::{_name}", "cpu")(_kernel)
    torch.library.register_fake(f"reluformer::{_name}")(_fake)
for _name in ("cpu_read", "cpu_read_stats"):
    torch.library.register_autograd(f"reluformer::{_name}", _gradients, setup_context=_save)
