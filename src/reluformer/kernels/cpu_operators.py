"""The operators of torch behind reads on a CPU: how a read and its gradient reach the C++ library.

How an operator is wired. `cpu.read` splits the bias, makes the numbers of the formula (`native_formula`) and calls
`operate`, which calls an operator of torch: `reluformer::cpu_read`, or `cpu_read_stats` with row statistics. In plain
eager mode it calls the kernel of the operator directly (`_Read`), as dispatch costs as much as a small read;
there the level of centred rules is part of the same step. An operator has a schema (`torch.library.define`), a kernel
that packs the fields of a C struct and calls the library (`_forward`, `_backward`), a fake kernel that only allocates
(`_fake_...`), and a gradient (`_save`, `_gradients`), so that torch.compile and torch.export see through it. A gradient
that is differentiated again is computed with operations of PyTorch (`_dense`; see derivatives.py). Another
path through the library needs a schema, a kernel and a fake kernel at the end of this file, a function in
native/library.py, and a line in `operate` that chooses it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reluformer.kernels import derivatives, moments
from reluformer.kernels.native.library import ACTIVATIONS, LOG_N, NOTHING, loaded, packed_rows, tensor3, tensor4
from reluformer.kernels.operands import Visibility
from reluformer.kernels.reference import row_stats, without_autocast
from reluformer.rules import Formula, Level

MODES = {"cpu": 0, "cpu_dense": 1, "cpu_sparse": 2}
"""The numbers of `enum Mode` in native/problem.h: rows of few nonzero weights are read sparsely, none, or all."""
KEPT_PAIRS = 2**29
"""Bytes of nonzero pairs that all reads of a training step together keep for the backward pass. What does not fit is
computed again there, with the same result."""
PAIR_BYTES = 5
KEPT_SHARE = 0.3
"""A read with a larger share of nonzero pairs is hardly read sparsely, so its list is never larger than this."""
CHOSEN_ROWS, LEAST_VISIBLE = 96, 128
"""Rows are read sparsely or not so many at a time, and only if the first of them sees so many slots (sparse_rows.h)."""

_OPERANDS = "Tensor q, Tensor k, Tensor v, Tensor? key_mask, Tensor? row_bias, Tensor? key_bias"
_OPTIONS = (
    "int mode, bool trains, bool causal, float scale, "
    "int activation, bool log_n, float factor, float exponent, float cap, float delta"
)
_GRADIENTS = "Tensor d_out, Tensor? d_row_sum, Tensor? d_entropy, Tensor out, Tensor sums, Tensor pairs"
torch.library.define("reluformer::cpu_read", f"({_OPERANDS}, {_OPTIONS}) -> (Tensor, Tensor, Tensor)")
torch.library.define(
    "reluformer::cpu_read_stats", f"({_OPERANDS}, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
torch.library.define(
    "reluformer::cpu_read_backward",
    f"({_GRADIENTS}, {_OPERANDS}, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def operate(
    operands: tuple[Any, ...], options: tuple[Any, ...], level: Level | None, stats: bool
) -> tuple[Tensor, ...]:
    """Call the operator of a read, or its kernel where nobody watches.

    Args:
        operands: q, k, v in float32, key_mask, row bias and key bias; the last three may be None.
        options: mode, whether gradients will be asked for, causal, scale and the fields of a `NativeFormula`.
        level: a centred level that the read computes itself (see `levels`); there is no row bias then.
        stats: whether row statistics are asked for.

    Returns:
        The read (B, H, Tq, dv); with `stats` row sums, entropies and shares of zeros (B, H, Tq); what is kept.
    """
    if derivatives.eager(operands[0]):
        kernel = _forward_stats if stats else _forward
        output: tuple[Tensor, ...] = _Read.apply(kernel, level, *operands, *options)  # type: ignore[no-untyped-call]
        return output
    assert level is None
    operator = torch.ops.reluformer.cpu_read_stats if stats else torch.ops.reluformer.cpu_read
    watched: tuple[Tensor, ...] = operator(*operands, *options)
    return watched


def levels(q: Tensor, k: Tensor) -> bool:
    """Returns whether `operate` can compute the centred level of a read of q from k, without a key
    bias, in one step.
    """
    return q.dtype == torch.float32 and derivatives.eager(q) and moments.compiled(q, k)


def _like_tokens(x: Tensor, length: int, width: int) -> Tensor:
    """Returns memory for (B, H, length, width), laid out as (B, length, H, width), so that joining
    the heads is free.
    """
    return torch.empty(x.size(0), length, x.size(1), width, dtype=x.dtype, device=x.device).transpose(1, 2)


def _read_fields(
    operands: Sequence[Any],
    options: tuple[Any, ...],
    out: Tensor,
    sums: Tensor | None,
    statistics: tuple[Tensor, ...] = (),
) -> tuple[float, ...]:
    """Returns the fields of the C struct; the caller keeps the tensors alive."""
    q, k, v, key_mask, row_bias, key_bias = operands
    _, _, causal, scale, activation, log_n, factor, exponent, cap, delta = options
    batch, heads, queries, width = q.shape
    return (
        *(batch, heads, queries, k.size(2), width, v.size(3)),
        *(causal, torch.get_num_threads(), loaded().path, activation, log_n),
        *(scale, factor, exponent, delta),
        *(*tensor4(q), *tensor4(k), *tensor4(v), *tensor4(out)),
        *((0, 0) if key_mask is None else (key_mask.data_ptr(), key_mask.stride(0))),
        *(*tensor3(row_bias), *tensor3(key_bias)),
        *((*NOTHING, *NOTHING) if sums is None else (*tensor3(sums[0]), *tensor3(sums[1]))),
        *((0,) * 9 if not statistics else (field for row in statistics for field in tensor3(row))),
        *((0.0, 0, 0) if sums is None or not cap else (cap, sums[2].data_ptr(), sums[3].data_ptr())),
    )


def _prepared(operands: tuple[Any, ...]) -> list[Any]:
    return [None if x is None else packed_rows(x) for x in operands]


class _KeptPairs:
    """Counts the bytes of nonzero pairs that all reads of the process keep until their backward pass."""

    def __init__(self) -> None:
        self.bytes = 0

    def read(self, fields: tuple[float, ...], mode: int, size: int) -> Tensor:
        """Run a forward pass that may keep up to `size` bytes, and return what it kept, as bytes (size)."""
        if not size:
            loaded().sparse_forward(fields, mode, 0, 0)
            return torch.empty(0, dtype=torch.uint8)
        memory = np.zeros(size, np.uint8)  # its pages take memory only once they are written
        allowed = max(min(size, KEPT_PAIRS - self.bytes), _index_bytes(*fields[:4]))
        used = loaded().sparse_forward(fields, mode, memory.ctypes.data, allowed).used
        self.bytes += used
        weakref.finalize(memory, self._release, used)
        return torch.from_numpy(memory)

    def _release(self, used: int) -> None:
        self.bytes -= used


_kept_pairs = _KeptPairs()


def kept_bytes() -> int:
    """Returns the bytes that reads keep for their backward pass at the moment."""
    return _kept_pairs.bytes


def _index_bytes(batch: float, heads: float, queries: float, slots: float) -> int:
    """Returns a bound on the bytes of a list's index: eight a tile, which has more than 64 rows and slots."""
    return 8 * (1 + int(batch * heads) * (int(queries) // 64 + 1) * (int(slots) // 64 + 1))


def _pair_bytes(q: Tensor, k: Tensor, options: tuple[Any, ...]) -> int:
    """Returns the size of the list of pairs: what shapes and options alone decide, so that a compiler knows it."""
    mode, trains, causal, activation = *options[:3], options[4]
    if not trains or mode == MODES["cpu_dense"] or activation == ACTIVATIONS["sigmoid"]:
        return 0
    batch, heads, queries, _ = q.shape
    last_choice = (queries - 1) // CHOSEN_ROWS * CHOSEN_ROWS if causal else queries - 1
    if mode == MODES["cpu"] and k.size(2) - queries + last_choice + 1 < LEAST_VISIBLE:
        return 0
    visible = batch * heads * queries * k.size(2) / (1 + causal)
    index = _index_bytes(batch, heads, queries, k.size(2))
    return index + min(KEPT_PAIRS, int(KEPT_SHARE * PAIR_BYTES * visible))


def _kept_rows(q: Tensor, options: tuple[Any, ...], stats: bool) -> tuple[int, ...]:
    """Returns the shape of what is kept of each row: two sums and, with a cap, best slot (int32) and bias."""
    cap, delta = options[-2:]
    if not stats and not cap and delta < 0:
        return (0,)
    return (4 if cap else 2, *q.shape[:3])


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    operands, options = _prepared(arguments[:6]), arguments[6:]
    q, k, v = operands[:3]
    out = _like_tokens(q, q.size(2), v.size(3))
    sums = q.new_empty(_kept_rows(q, options, stats=False))
    fields = _read_fields(operands, options, out, sums if sums.numel() else None)
    return out, sums, _kept_pairs.read(fields, options[0], _pair_bytes(q, k, options))


def _forward_stats(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    operands, options = _prepared(arguments[:6]), arguments[6:]
    q, k, v = operands[:3]
    out, sums = _like_tokens(q, q.size(2), v.size(3)), q.new_empty(_kept_rows(q, options, stats=True))
    row_sum, entropy, zero_fraction = (torch.empty(q.shape[:3]) for _ in range(3))
    fields = _read_fields(operands, options, out, sums, (row_sum, entropy, zero_fraction))
    pairs = _kept_pairs.read(fields, options[0], _pair_bytes(q, k, options))
    return out, row_sum, entropy, zero_fraction, sums, pairs


def _backward(
    d_out: Tensor,
    d_row_sum: Tensor | None,
    d_entropy: Tensor | None,
    out: Tensor,
    sums: Tensor,
    pairs: Tensor,
    *arguments: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    operands, options = _prepared(arguments[:6]), arguments[6:]
    q, k, v, _, row_bias, key_bias = operands
    d_out, d_row_sum, d_entropy = _prepared((d_out, d_row_sum, d_entropy))
    d_q, d_k, d_v = (_like_tokens(x, x.size(2), x.size(3)) for x in (q, k, v))
    d_row_bias, d_key_bias = _bias_gradients(q, k, row_bias, key_bias)
    fields = (
        *_read_fields(operands, options, out, sums if sums.numel() else None),
        *(*tensor4(d_out), *tensor4(d_q), *tensor4(d_k), *tensor4(d_v)),
        *(*tensor3(d_row_sum), *tensor3(d_entropy)),
        *(NOTHING if row_bias is None else tensor3(d_row_bias)),
        *(NOTHING if key_bias is None else tensor3(d_key_bias)),
    )
    loaded().sparse_backward(fields, options[0], pairs.data_ptr() if pairs.numel() else 0, pairs.numel())
    return d_q, d_k, d_v, d_row_bias, d_key_bias


def _bias_gradients(q: Tensor, k: Tensor, row_bias: Tensor | None, key_bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns memory for the gradients of both biases; it is empty where there is no such bias."""
    rows = torch.empty(q.shape[:3] if row_bias is not None else 0, device=q.device)
    keys = torch.empty(k.shape[:3] if key_bias is not None else 0, device=q.device)
    return rows, keys


def _fake_pairs(arguments: tuple[Any, ...]) -> Tensor:
    q: Tensor = arguments[0]
    k: Tensor = arguments[1]
    return q.new_empty(_pair_bytes(q, k, arguments[6:]), dtype=torch.uint8)


def _fake_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, v = arguments[0], arguments[2]
    sums = q.new_empty(_kept_rows(q, arguments[6:], stats=False))
    return _like_tokens(q, q.size(2), v.size(3)), sums, _fake_pairs(arguments)


def _fake_forward_stats(*arguments: Any) -> tuple[Tensor, ...]:
    q, v = arguments[0], arguments[2]
    rows = tuple(q.new_empty(q.shape[:3]) for _ in range(3))
    sums = q.new_empty(_kept_rows(q, arguments[6:], stats=True))
    return (_like_tokens(q, q.size(2), v.size(3)), *rows, sums, _fake_pairs(arguments))


def _fake_backward(*arguments: Any) -> tuple[Tensor, ...]:
    q, k, v, _, row_bias, key_bias = arguments[6:12]
    tokens = tuple(_like_tokens(x, x.size(2), x.size(3)) for x in (q, k, v))
    return (*tokens, *_bias_gradients(q, k, row_bias, key_bias))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    out, (sums, pairs) = output[0], output[-2:]
    ctx.mark_non_differentiable(*output[3:] if len(output) > 3 else (sums, pairs))
    ctx.set_materialize_grads(False)
    divided = inputs[-1] >= 0
    ctx.save_for_backward(*inputs[:6], out if divided else None, sums, pairs)
    ctx.options = inputs[6:]


def _gradients(
    ctx: Any, d_out: Tensor | None, *d_stats: Tensor | None, level: Level | None = None
) -> tuple[Tensor | None, ...]:
    *operands, out, sums, pairs = ctx.saved_tensors
    q, k, v, key_mask, row_bias, key_bias = operands
    d_row_sum, d_entropy = d_stats[:2] if len(d_stats) > 2 else (None, None)
    if derivatives.recomputes():
        dense = partial(_dense, key_mask, ctx.options, level)
        row_bias = row_bias if level is None else None
        found = derivatives.gradients(dense, (q, k, v, row_bias, key_bias), (d_out, d_row_sum, d_entropy))
        return (*found[:3], None, *found[3:], *(None for _ in ctx.options))
    if d_out is None:
        d_out = q.new_zeros(()).expand(*q.shape[:3], v.size(3))
    backward = _backward if derivatives.eager(d_out) else torch.ops.reluformer.cpu_read_backward
    d_q, d_k, d_v, d_row_bias, d_key_bias = backward(
        d_out, d_row_sum, d_entropy, d_out if out is None else out, sums, pairs, *operands, *ctx.options
    )
    d_biases = (None if row_bias is None else d_row_bias, None if key_bias is None else d_key_bias)
    return (d_q, d_k, d_v, None, *d_biases, *(None for _ in ctx.options))


class _Read(torch.autograd.Function):
    """An operator without its dispatch, with the level of centred rules: `apply(kernel, level, *operands, *options)`.

    What the level makes of the row biases is added to the gradients of queries and keys in place.
    """

    @staticmethod
    def forward(
        ctx: Any, kernel: Callable[..., tuple[Tensor, ...]], level: Level | None, *arguments: Any
    ) -> tuple[Tensor, ...]:
        if level is not None:
            bias, ctx.variance = moments.row_bias(level, *_of_moments(arguments))
            arguments = (*arguments[:4], bias, *arguments[5:])
        output = kernel(*arguments)
        _save(ctx, arguments, output)
        ctx.level = level
        return output

    @staticmethod
    def backward(ctx: Any, *d_output: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.level is None or derivatives.recomputes():
            return None, None, *_gradients(ctx, *d_output, level=ctx.level)
        d_q, d_k, d_v, _, d_row_bias, *rest = _gradients(ctx, *d_output)
        q, k, key_mask, causal, scale = _of_moments((*ctx.saved_tensors[:6], *ctx.options))
        assert d_q is not None and d_k is not None and d_row_bias is not None
        given = (ctx.level, q, k, key_mask, causal, scale, ctx.variance, d_row_bias)
        d_q, d_k = moments.add_gradients_of_row_bias(*given, d_q, d_k)
        return None, None, d_q, d_k, d_v, None, None, *rest


def _of_moments(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Returns q, k, key_mask, causal and scale out of the arguments of an operator."""
    return (*arguments[:2], arguments[3], *arguments[8:10])


def _dense(
    key_mask: Tensor | None,
    options: tuple[Any, ...],
    centred: Level | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    row_bias: Tensor | None,
    key_bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what the operators return, read, row sum and entropy, by operations of PyTorch."""
    _, _, causal, scale, activation, log_n, factor, exponent, cap, delta = options
    name = next(name for name, number in ACTIVATIONS.items() if number == activation)
    level = LOG_N if log_n else Level(cap=cap) if cap else None
    formula = Formula(name, factor, exponent, None if delta < 0 else delta, level)
    visibility = Visibility(q.size(2), k.size(2), q.device, causal, key_mask)
    visible, counts = visibility.dense(), visibility.counts()
    if centred is not None:
        row_bias = moments.composed_row_bias(q, k, centred, visibility, scale)
    with without_autocast(q):
        scores = torch.matmul(q * scale, k.transpose(-1, -2))
        scores = scores if row_bias is None else scores + row_bias.unsqueeze(-1)
        scores = scores if key_bias is None else scores + key_bias.unsqueeze(-2)
        weights = formula.weights(scores, counts.clamp_min(1).unsqueeze(-1).to(q.dtype), visible)
        stats = row_stats(weights, visible, counts)
        return torch.matmul(weights, v), stats.row_sum, stats.entropy


for _name, _kernel, _fake in (
    ("cpu_read", _forward, _fake_forward),
    ("cpu_read_stats", _forward_stats, _fake_forward_stats),
    ("cpu_read_backward", _backward, _fake_backward),
):
    torch.library.impl(f"reluformer::{_name}", "cpu")(_kernel)
    torch.library.register_fake(f"reluformer::{_name}")(_fake)
for _name in ("cpu_read", "cpu_read_stats"):
    torch.library.register_autograd(f"reluformer::{_name}", _gradients, setup_context=_save)
