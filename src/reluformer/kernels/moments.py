"""Mean and variance of every row of scores, without the scores, and the level of a row made from them.

For scores y_i . x_j the mean is y_i . mean(x) and the variance y_i^T cov(x) y_i: sums over slots of d and of d x d
numbers, in a causal read up to each position. Of many slots that is far less work than the scores themselves. In
float32 on a CPU the compiled library does it (native/moments.h), elsewhere a few products of torch.

A kernel never sees a whole row of scores, so it takes the level of a row as a bias of the row:

    s_ij - level_i  =  scale q_i . k_j + keys_j + rows_i        rows_i = (row part of the bias) - level_i

What all scores of a row have in common is dropped where the level is centred, as it is part of the mean.

Shapes: B batch, H heads, Tq queries, Tk slots, d width of x and y; C slots of a chunk, N chunks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from reluformer.kernels import derivatives
from reluformer.kernels.native.library import NOTHING, loaded, packed_rows, tensor4, unavailable
from reluformer.kernels.operands import Bias, RowKeyBias, Visibility, row_and_key_parts
from reluformer.kernels.reference import without_autocast
from reluformer.rules import Level

CHUNK = 64
"""Positions of a causal read whose products with each other are taken one by one."""


def level_bias(q: Tensor, k: Tensor, level: Level, visibility: Visibility, bias: Bias | None, scale: float) -> Bias:
    """Returns the bias with which a formula without its level reads as it does with it.

    Args:
        q: (B, H, Tq, d).
        k: (B, H, Tk, d).
        level: the level of the rows.
        visibility: causal and key_mask; no dense mask.
        bias: None, a row bias, a key bias or both; no dense bias.
        scale: the factor of the scores.
    """
    split = row_and_key_parts(bias, visibility.slots)
    assert visibility.mask is None and split is not None
    rows, keys = split
    if level.centred:
        moved = _centred_bias(q, k, keys, level, visibility, scale)
    else:
        exact = torch.float64 if q.dtype == torch.float64 else torch.float32
        moved = -level.of(visibility.counts().clamp_min(1).to(exact))
        moved = (moved if rows is None else rows + moved).expand(q.shape[:3])
    return moved.unsqueeze(-1) if keys is None else RowKeyBias(moved, keys)


def _centred_bias(
    q: Tensor, k: Tensor, keys: Tensor | None, level: Level, visibility: Visibility, scale: float
) -> Tensor:
    """Returns what takes a centred level off each row, (B, H, Tq): one pass of the library where it can do it."""
    with without_autocast(q):
        y, x, factor = _with_column(q, k, keys, scale)
        if compiled(y, x):
            given = (packed_rows(y), packed_rows(x), visibility.key_mask, visibility.hides_future, factor)
            operator = _RowBias.apply if derivatives.eager(y) else torch.ops.reluformer.cpu_level
            moved: Tensor = operator(*given, *_numbers(level))[0]  # type: ignore[no-untyped-call]
            return moved
        return composed_row_bias(y, x, level, visibility, factor)


def row_moments(
    q: Tensor, k: Tensor, keys: Tensor | None, visibility: Visibility, scale: float, with_variance: bool
) -> tuple[Tensor, Tensor | None]:
    """Returns mean and variance of scale q_i . k_j + keys_j over the visible slots, (B, H, Tq) each.

    They are at least in float32. Those of a row that sees nothing have no meaning.
    """
    with without_autocast(q):
        y, x, factor = _with_column(q, k, keys, scale)
        if compiled(y, x):
            given = (packed_rows(y), packed_rows(x), visibility.key_mask)
            operator = _Moments.apply if derivatives.eager(y) else torch.ops.reluformer.cpu_moments
            mean, variance = operator(*given, visibility.hides_future, factor)  # type: ignore[no-untyped-call]
        else:
            mean, variance = _scaled_moments(y, x, visibility, factor, with_variance)
        return mean, variance if with_variance else None


def _with_column(q: Tensor, k: Tensor, keys: Tensor | None, scale: float) -> tuple[Tensor, Tensor, float]:
    """Returns y, x and a factor of which the scores are the products, at least in float32; keys are one more column."""
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    x, y = k.to(exact), q.to(exact)
    if keys is None:
        return y, x, scale
    column = keys.to(exact).expand(k.shape[:3]).unsqueeze(-1)
    return F.pad(y, (0, 1), value=1.0), torch.cat([x * scale, column], dim=-1), 1.0


def compiled(y: Tensor, x: Tensor) -> bool:
    """Returns whether the library can and should do it; few queries are better multiplied with all slots."""
    plain = y.device.type == "cpu" and y.dtype == torch.float32 and unavailable() is None
    return plain and y.size(2) >= x.size(-1) and derivatives.unsupported() is None


def composed_row_bias(y: Tensor, x: Tensor, level: Level, visibility: Visibility, scale: float) -> Tensor:
    """Returns what takes a centred level off each row by operations of PyTorch, (B, H, Tq)."""
    mean, variance = _scaled_moments(y, x, visibility, scale, level.needs_variance)
    n = visibility.counts().clamp_min(1).to(mean.dtype)
    return -level.of(n, mean, variance if level.needs_variance else None)


def _scaled_moments(
    y: Tensor, x: Tensor, visibility: Visibility, scale: float, with_variance: bool
) -> tuple[Tensor, Tensor]:
    mean, variance = _composed(y, x, visibility, with_variance)
    return mean * scale, variance * scale**2


def _composed(y: Tensor, x: Tensor, visibility: Visibility, with_variance: bool) -> tuple[Tensor, Tensor]:
    """Returns mean and variance of y_i . x_j over the visible slots by operations of PyTorch, (B, H, Tq) each."""
    n = visibility.counts().clamp_min(1).to(y.dtype)  # broadcasts to (B, H, Tq)
    x = _masked(x, visibility)  # also what the first slot is, where none is visible
    if not visibility.hides_future:
        return _moments(y, x, visibility, n, with_variance)
    # What slots have in common with one that all queries see costs no digits; which one changes nothing.
    origin = _first(x, visibility).detach()
    sums, squares = _causal_sums(y, _masked(x - origin, visibility), visibility)
    away = sums / n
    return away + (y * origin).sum(-1), (squares / n - away.square()).clamp_min(0)


def _moments(y: Tensor, x: Tensor, visibility: Visibility, n: Tensor, with_variance: bool) -> tuple[Tensor, Tensor]:
    """Returns mean and variance of y_i . x_j over the slots that are visible to all queries, (B, H, Tq)."""
    slots = n.unsqueeze(-1)
    centre = _masked(x, visibility).sum(2, keepdim=True) / slots
    mean = torch.matmul(y, centre.transpose(-1, -2)).squeeze(-1)
    if not with_variance:
        return mean, mean
    away = _masked(x - centre, visibility)
    if y.size(2) < x.size(-1):  # fewer products with the slots themselves than with their covariance
        return mean, torch.matmul(y, away.transpose(-1, -2)).square().sum(-1) / n
    return mean, _quadratic(y, torch.matmul(away.transpose(-1, -2), away)) / n


def _causal_sums(y: Tensor, x: Tensor, visibility: Visibility) -> tuple[Tensor, Tensor]:
    """Returns the sums of y_i . x_j and of its square over the slots up to each query's own position, (B, H, Tq).

    Slots of earlier chunks come in as their sum and the sum of their x_j x_j^T, those of the own chunk one by one.
    """
    first, rest = visibility.first_position, -visibility.slots % CHUNK
    shape = (*x.shape[:2], -1, CHUNK, x.size(-1))
    queries = F.pad(y, (0, 0, first, rest)).reshape(shape)
    slots = F.pad(x, (0, 0, 0, rest)).reshape(shape)
    own = torch.matmul(queries, slots.transpose(-1, -2)).tril()
    before = _earlier(slots.sum(-2, keepdim=True))
    form = _earlier(torch.matmul(slots.transpose(-1, -2), slots))
    sums = torch.matmul(queries, before.transpose(-1, -2)).squeeze(-1) + own.sum(-1)
    squares = _quadratic(queries, form) + own.square().sum(-1)
    asked = slice(first, visibility.slots)
    return sums.flatten(2)[:, :, asked], squares.flatten(2)[:, :, asked]


def _quadratic(y: Tensor, form: Tensor) -> Tensor:
    """Returns y_i^T form y_i, (..., Tq)."""
    return (torch.matmul(y, form) * y).sum(-1)


def _earlier(x: Tensor) -> Tensor:
    """Returns the sum over all chunks before each, (B, H, N, ...); a triangular product is quicker than `cumsum`."""
    triangle = torch.ones(x.size(2), x.size(2), dtype=x.dtype, device=x.device).tril_(-1)
    return torch.matmul(triangle, x.flatten(3)).view(x.shape)


def _first(x: Tensor, visibility: Visibility) -> Tensor:
    """Returns the first visible slot, (B, H, 1, d)."""
    if visibility.key_mask is None:
        return x[:, :, :1]
    place = visibility.key_mask.int().argmax(-1)[:, None, None, None]
    return x.gather(2, place.expand(*x.shape[:2], 1, x.size(-1)))


def _masked(x: Tensor, visibility: Visibility) -> Tensor:
    return x if visibility.key_mask is None else x.masked_fill(~visibility.key_mask[:, None, :, None], 0)


# ------------------------------------------------------------------ the same in the library

_OPERANDS = "Tensor y, Tensor x, Tensor? key_mask, bool causal, float scale"
_LEVEL = "float threshold, float growth, float spread, float chance, float floor"
torch.library.define("reluformer::cpu_moments", f"({_OPERANDS}) -> (Tensor, Tensor)")
torch.library.define(
    "reluformer::cpu_moments_backward",
    f"(Tensor d_mean, Tensor d_variance, Tensor variance, {_OPERANDS}) -> (Tensor, Tensor)",
)
torch.library.define("reluformer::cpu_level", f"({_OPERANDS}, {_LEVEL}) -> (Tensor, Tensor)")
torch.library.define(
    "reluformer::cpu_level_backward", f"(Tensor d_bias, Tensor variance, {_OPERANDS}, {_LEVEL}) -> (Tensor, Tensor)"
)
_NO_LEVEL = (0.0,) * 5


def _run(
    operands: tuple[Any, ...],
    level: tuple[float, ...],
    moments: tuple[Tensor | None, ...],
    d_operands: tuple[Tensor, ...],
    bias: Tensor | None,
    d_bias: Tensor | None,
) -> None:
    """Call the library. `moments` are mean, variance and their gradients; what is None is not given or not wanted."""
    y, x, key_mask, causal, scale = operands
    batch, heads, queries, width = y.shape
    mask = None if key_mask is None else packed_rows(key_mask)
    loaded().moments(
        *(batch, heads, queries, x.size(2), width, causal, torch.get_num_threads(), loaded().path, scale),
        *(*tensor4(y), *tensor4(x)),
        *((0, 0) if mask is None else (mask.data_ptr(), mask.stride(0))),
        *(_address(tensor) for tensor in moments),
        *((field for tensor in d_operands for field in tensor4(tensor)) if d_operands else (0, *NOTHING) * 2),
        *(*level, _address(bias), _address(d_bias)),
    )


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _forward(*operands: Any) -> tuple[Tensor, Tensor]:
    mean, variance = _rows(operands[0]), _rows(operands[0])
    _run(operands, _NO_LEVEL, (mean, variance, None, None), (), None, None)
    return mean, variance


def _backward(d_mean: Tensor, d_variance: Tensor, variance: Tensor, *operands: Any) -> tuple[Tensor, Tensor]:
    d_y, d_x = torch.zeros_like(operands[0]), torch.zeros_like(operands[1])
    given = (None, variance, d_mean.contiguous(), d_variance.contiguous())
    _run(operands, _NO_LEVEL, given, (d_y, d_x), None, None)
    return d_y, d_x


def _forward_level(*arguments: Any) -> tuple[Tensor, Tensor]:
    bias, variance = _rows(arguments[0]), _rows(arguments[0])
    _run(arguments[:5], arguments[5:], (None, variance, None, None), (), bias, None)
    return bias, variance


def _backward_level(d_bias: Tensor, variance: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    d_y, d_x = torch.zeros_like(arguments[0]), torch.zeros_like(arguments[1])
    _run(arguments[:5], arguments[5:], (None, variance, None, None), (d_y, d_x), None, d_bias.contiguous())
    return d_y, d_x


def _rows(y: Tensor) -> Tensor:
    """Returns a zero for each row, as the library writes nothing to rows without slots."""
    return torch.zeros(y.shape[:3])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(output[1], *inputs[:3])
    ctx.options = inputs[3:]


def _keep_level(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(output[1])
    _keep(ctx, inputs, output)


def _differentiate(ctx: Any, d_mean: Tensor, d_variance: Tensor) -> tuple[Tensor | None, ...]:
    if derivatives.recomputes():
        _, y, x, key_mask = ctx.saved_tensors
        causal, scale = ctx.options

        def scaled(y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            visibility = Visibility(y.size(2), x.size(2), y.device, causal, key_mask)
            return _scaled_moments(y, x, visibility, scale, with_variance=True)

        return (*derivatives.gradients(scaled, (y, x), (d_mean, d_variance)), None, None, None)
    backward = _backward if derivatives.eager(d_mean) else torch.ops.reluformer.cpu_moments_backward
    d_y, d_x = backward(d_mean, d_variance, *ctx.saved_tensors, *ctx.options)
    return d_y, d_x, None, None, None


def _differentiate_level(ctx: Any, d_bias: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    nothing = (None,) * (1 + len(ctx.options))
    if derivatives.recomputes():
        _, y, x, key_mask = ctx.saved_tensors
        causal, scale, threshold, growth, spread, chance, floor = ctx.options
        level = Level(threshold, growth, True, spread, floor, None, chance)

        def bias(y: Tensor, x: Tensor) -> tuple[Tensor]:
            visibility = Visibility(y.size(2), x.size(2), y.device, causal, key_mask)
            return (composed_row_bias(y, x, level, visibility, scale),)

        return (*derivatives.gradients(bias, (y, x), (d_bias,)), *nothing)
    backward = _backward_level if derivatives.eager(d_bias) else torch.ops.reluformer.cpu_level_backward
    return (*backward(d_bias, *ctx.saved_tensors, *ctx.options), *nothing)


def row_bias(
    level: Level, y: Tensor, x: Tensor, key_mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Returns the bias that takes a centred level off each row of scale y_i . x_j, and the variances, (B, H, Tq) each.

    Ask `compiled` before. There is no gradient but by `add_gradients_of_row_bias`.
    """
    return _forward_level(packed_rows(y), packed_rows(x), key_mask, causal, scale, *_numbers(level))


def add_gradients_of_row_bias(
    level: Level,
    y: Tensor,
    x: Tensor,
    key_mask: Tensor | None,
    causal: bool,
    scale: float,
    variance: Tensor,
    d_bias: Tensor,
    d_y: Tensor,
    d_x: Tensor,
) -> tuple[Tensor, Tensor]:
    """Returns d_y and d_x with what the gradient d_bias makes of them added, in place unless somebody watches.

    `variance` is what `row_bias` returned.
    """
    operands = (packed_rows(y), packed_rows(x), key_mask, causal, scale)
    if derivatives.eager(d_bias):
        _run(operands, _numbers(level), (None, variance, None, None), (d_y, d_x), None, d_bias.contiguous())
        return d_y, d_x
    more_y, more_x = torch.ops.reluformer.cpu_level_backward(d_bias, variance, *operands, *_numbers(level))
    return d_y + more_y, d_x + more_x


def _numbers(level: Level) -> tuple[float, ...]:
    return level.threshold, level.growth, level.spread, level.chance, level.floor


class _Moments(torch.autograd.Function):
    """The operator without its dispatch."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        output = _forward(*arguments)
        _keep(ctx, arguments, output)
        return output

    @staticmethod
    def backward(ctx: Any, *d_output: Any) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, *d_output)


class _RowBias(torch.autograd.Function):
    """The operator of levels without its dispatch."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        output = _forward_level(*arguments)
        _keep_level(ctx, arguments, output)
        return output

    @staticmethod
    def backward(ctx: Any, *d_output: Any) -> tuple[Tensor | None, ...]:
        return _differentiate_level(ctx, *d_output)


def _fake_rows(y: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return y.new_empty(y.shape[:3]), y.new_empty(y.shape[:3])


for _name, _kernel, _fake in (
    ("cpu_moments", _forward, _fake_rows),
    ("cpu_moments_backward", _backward, lambda _m, _v, _variance, y, x, *_: (torch.empty_like(y), torch.empty_like(x))),
    ("cpu_level", _forward_level, _fake_rows),
    ("cpu_level_backward", _backward_level, lambda _b, _variance, y, x, *_: (torch.empty_like(y), torch.empty_like(x))),
):
    torch.library.impl(f"reluformer::{_name}", "cpu")(_kernel)
    torch.library.register_fake(f"reluformer::{_name}")(_fake)
torch.library.register_autograd("reluformer::cpu_moments", _differentiate, setup_context=_keep)
torch.library.register_autograd("reluformer::cpu_level", _differentiate_level, setup_context=_keep_level)
