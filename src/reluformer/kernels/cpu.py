"""Reads on a CPU through the C++ library, without ever storing the scores.

The kernel reads every rule whose `rules.Formula` has an activation that the library knows (`ACTIVATIONS`). Its memory
grows with the number of tokens in both passes, not with the square of it.

How an operator is wired. `kernels.run` asks `refusal` (can this read be done?) and for `impl="auto"` also `pays` (is
it faster here?), turns the level of a row into a bias of the row, and calls `read`. That splits the bias, makes the
numbers of the formula (`native_formula`) and calls an operator of torch: `reluformer::cpu_read`, or
`reluformer::cpu_read_stats` with row statistics. In plain eager mode it calls the kernel of the operator directly
(`_Read`), as dispatch costs as much as a small read. An operator has a schema (`torch.library.define`), a kernel that
packs the fields of a C struct and calls the library (`_forward`, `_backward`), a fake kernel that only allocates
(`_fake_...`), and a gradient (`_save`, `_gradients`), so that torch.compile and torch.export see through it. A gradient
that is differentiated again is computed with operations of PyTorch (`_dense`; see derivatives.py). Another
path through the library needs a schema, a kernel and a fake kernel at the end of this file, a function in
native/library.py, and a line in `read` that chooses it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reluformer.kernels import derivatives
from reluformer.kernels.native import library
from reluformer.kernels.native.library import NOTHING, Library, LibraryError, packed_rows, tensor3, tensor4
from reluformer.kernels.operands import Bias, Visibility, row_and_key_parts
from reluformer.kernels.reference import RowStats, row_stats, without_autocast
from reluformer.rules import Formula, Level
from reluformer.rules.formula import Activation

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ACTIVATIONS: dict[Activation, int] = {"relu": 0, "relu_squared": 1, "sigmoid": 2, "rectified_exp": 3}
"""The numbers of `enum Activation` in native/problem.h."""
LOG_N = Level(growth=1.0)
"""The level that the library computes by itself."""

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
MODES = {"cpu": 0, "cpu_dense": 1, "cpu_sparse": 2}
"""The numbers of `enum Mode` in native/problem.h: rows of few nonzero weights are read sparsely, none, or all."""
KEPT_PAIRS = 2**29
"""Bytes of nonzero pairs that all reads of a training step together keep for the backward pass. What does not fit is
computed again there, with the same result."""
PAIR_BYTES = 5
KEPT_SHARE = 0.3
"""A read with a larger share of nonzero pairs is hardly read sparsely, so its list is never larger than this."""
LEARNED_ROWS = 256
LEARNED_SCORES = 2**18
"""Training of learned slots goes through the kernel from so many rows and scores on: `python
benchmarks/learned_slots.py` measures it anew."""
CHOSEN_ROWS, LEAST_VISIBLE = 96, 128
"""Rows are read sparsely or not so many at a time, and only if the first of them sees so many slots (sparse_rows.h)."""
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
    """Return why the kernel cannot be used on this machine, or None if it can."""
    return _missing


def loaded() -> Library:
    """Return the library; ask `unavailable` before."""
    assert _library is not None, _missing
    return _library


class NativeFormula(NamedTuple):
    """A formula as the C++ library takes it: the last operands of the operators, in this order."""

    activation: int
    log_n: bool
    """Whether log n is taken off the scores."""
    factor: float
    exponent: float
    cap: float
    """How far the best score of a row lies above its level at least; 0 where that is left to the scores."""
    delta: float
    """Negative where the weights are not divided."""


def native_formula(formula: Formula) -> NativeFormula | None:
    """Return the numbers of `formula` for the library, or None if it has no such activation.

    A level that is not log n itself is a bias of the rows, which `kernels.run` adds; its cap stays.
    """
    activation = ACTIVATIONS.get(formula.activation)
    if activation is None:
        return None
    delta = -1.0 if formula.delta is None else formula.delta
    log_n = formula.level is not None and formula.level == LOG_N
    cap = 0.0 if formula.level is None or formula.level.cap is None else formula.level.cap
    return NativeFormula(activation, log_n, formula.factor, formula.exponent, cap, delta)


def description(how: str = ", rows with few weights sparsely") -> str:
    """Return one line for `reluformer doctor`."""
    if reason := unavailable():
        return f"not available: {reason}"
    found = loaded()
    threads = f"{torch.get_num_threads()} of torch's threads" if found.threaded else "one thread: no GOMP_parallel"
    return f"available: {library.PATHS[found.path]} instructions, {threads}{how}"


def refusal(
    q: Tensor, formula: Formula | None, visibility: Visibility, bias: Bias | None, mode: str = "cpu"
) -> str | None:
    """Return why this read cannot go through the kernel, or None if it can."""
    if reason := unavailable() or derivatives.unsupported():
        return reason
    if q.device.type != "cpu":
        return f"the tensors are on {q.device}"
    if q.dtype not in DTYPES:
        return f"it computes in float32, not {q.dtype}"
    if visibility.mask is not None:
        return "it takes causal and key_mask, but no dense mask"
    if row_and_key_parts(bias, visibility.slots) is None:
        return "it takes a key bias (..., 1, Tk), a row bias (..., Tq, 1) or a RowKeyBias, but no dense bias"
    if formula is None or native_formula(formula) is None:
        return f"the rule is not one of its formulas; it knows the activations {', '.join(ACTIVATIONS)}"
    if formula.activation == "sigmoid" and formula.level is not None and formula.level.cap is not None:
        return "a cap is for activations with exact zeros, not for a sigmoid"
    if mode == "cpu_sparse" and formula.activation == "sigmoid":
        return "no weight of a sigmoid is zero"
    return None


def pays(q: Tensor, k: Tensor, v: Tensor, formula: Formula, visibility: Visibility, stats: bool) -> bool:
    """Return whether the kernel is expected to beat the reference; see the constants."""
    if q.device.type != "cpu" or unavailable():
        return False
    hidden = not visibility.everything
    if formula.centred:
        return visibility.queries >= max(CENTRED, q.size(-1)) * (1 if hidden else 2)
    scores = q.size(0) * q.size(1) * visibility.queries * visibility.slots
    if visibility.queries <= FEW:
        trains = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        return not stats and not trains and (hidden or scores >= FEW_SCORES)
    return stats or hidden or scores >= SCORES


def read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    formula: Formula,
    visibility: Visibility,
    bias: Bias | None,
    scale: float,
    stats: bool,
    mode: str = "cpu",
) -> tuple[Tensor, RowStats | None]:
    """Read (B,H,Tq,d), (B,H,Tk,d), (B,H,Tk,dv) -> (B,H,Tq,dv), with the row statistics if `stats`.

    The formula has no level, one that is log n itself, or nothing of it but its cap. `mode` is one of `MODES`.
    """
    known, split = native_formula(formula), row_and_key_parts(bias, visibility.slots)
    assert known is not None and split is not None
    batch, heads, queries, _ = q.shape
    row_bias, key_bias = split
    if known.cap and row_bias is None:
        row_bias = q.new_zeros(())  # its gradient is what the library moves to the best slots
    row_bias = None if row_bias is None else _float(row_bias).expand(batch, heads, queries)
    key_bias = None if key_bias is None else _float(key_bias).expand(batch, heads, visibility.slots)
    operands = (_float(q), _float(k), _float(v), visibility.key_mask, row_bias, key_bias)
    trains = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in operands)
    options = (MODES[mode], trains, visibility.hides_future, scale, *known)
    if derivatives.eager(q):
        kernel = _forward_stats if stats else _forward
        output = _Read.apply(kernel, *operands, *options)  # type: ignore[no-untyped-call]
    elif stats:
        output = torch.ops.reluformer.cpu_read_stats(*operands, *options)
    else:
        output = torch.ops.reluformer.cpu_read(*operands, *options)
    out = _back(output[0], v)
    if not stats:
        return out, None
    row_sum, entropy, zero_fraction = output[1:4]
    n_visible = visibility.counts().expand(row_sum.shape)
    return out, RowStats(row_sum, entropy, zero_fraction, n_visible)


def learning_pays(x: Tensor, slots: int, formula: Formula) -> bool:
    """Return whether training a read of learned slots from tokens x (..., width) is expected to beat dense products.

    The kernel computes no product of a weight that is zero, nor any of the gradients that belong to it.
    """
    rows = x.numel() // max(x.size(-1), 1)
    if rows < LEARNED_ROWS or rows * slots < LEARNED_SCORES or formula.activation not in ("relu", "relu_squared"):
        return False
    if x.device.type != "cpu" or x.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
        return False
    plain = formula.level is None and formula.delta is None
    return plain and unavailable() is None and derivatives.unsupported() is None and derivatives.eager(x)


def gathering_pays(weights: Tensor, width: int) -> bool:
    """Return whether `gather_values` is expected to beat a dense product with values (slots, width)."""
    if unavailable() or weights.device.type != "cpu" or weights.dtype != torch.float32 or weights.requires_grad:
        return False
    slots = weights.size(-1)
    if weights.numel() > GATHERED_ROWS * slots or slots * width < GATHERED_VALUES:
        return False
    return int(torch.count_nonzero(weights)) <= (1 - GATHERED_ZEROS) * weights.numel()


def gather_values(weights: Tensor, values: Tensor) -> Tensor:
    """Multiply weights (..., slots) with values (slots, width), touching only the values of slots that fired.

    This is the second product of a read of learned slots, without gradient. Both tensors are float32.
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
    """Return the bytes that reads keep for their backward pass at the moment."""
    return _kept_pairs.bytes


def _index_bytes(batch: float, heads: float, queries: float, slots: float) -> int:
    """At least what the index of a list takes: eight bytes a tile, which has more than 64 rows and slots."""
    return 8 * (1 + int(batch * heads) * (int(queries) // 64 + 1) * (int(slots) // 64 + 1))


def _pair_bytes(q: Tensor, k: Tensor, options: tuple[Any, ...]) -> int:
    """Return the size of the list of pairs: what shapes and options alone decide, so that a compiler knows it."""
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
    """Return the shape of what is kept of each row: two sums and, with a cap, best slot (int32) and bias."""
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
    """Memory for them; empty where there is no such bias."""
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


def _gradients(ctx: Any, d_out: Tensor | None, *d_stats: Tensor | None) -> tuple[Tensor | None, ...]:
    *operands, out, sums, pairs = ctx.saved_tensors
    q, k, v, key_mask, row_bias, key_bias = operands
    d_row_sum, d_entropy = d_stats[:2] if len(d_stats) > 2 else (None, None)
    if derivatives.recomputes():
        dense = partial(_dense, key_mask, ctx.options)
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
    """An operator without its dispatch: `apply(kernel, *operands, *options)`."""

    @staticmethod
    def forward(ctx: Any, kernel: Callable[..., tuple[Tensor, ...]], *arguments: Any) -> tuple[Tensor, ...]:
        output = kernel(*arguments)
        _save(ctx, arguments, output)
        return output

    @staticmethod
    def backward(ctx: Any, *d_output: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *_gradients(ctx, *d_output)


def _dense(
    key_mask: Tensor | None,
    options: tuple[Any, ...],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    row_bias: Tensor | None,
    key_bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the operators return, read, row sum and entropy, by operations of PyTorch."""
    _, _, causal, scale, activation, log_n, factor, exponent, cap, delta = options
    name = next(name for name, number in ACTIVATIONS.items() if number == activation)
    level = LOG_N if log_n else Level(cap=cap) if cap else None
    formula = Formula(name, factor, exponent, None if delta < 0 else delta, level)
    visibility = Visibility(q.size(2), k.size(2), q.device, causal, key_mask)
    visible, counts = visibility.dense(), visibility.counts()
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
