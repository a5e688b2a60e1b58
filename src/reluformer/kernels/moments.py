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

from reluformer.kernels import cpu, derivatives
from reluformer.kernels.native.library import NOTHING, packed_rows, tensor4
from reluformer.kernels.operands import Bias, RowKeyBias, Visibility, row_and_key_parts
from reluformer.kernels.reference import without_autocast
from reluformer.rules import Level

CHUNK = 64
"""Positions of a causal read whose products with each other are taken one by one."""


def level_bias(q: Tensor, k: Tensor, level: Level, visibility: Visibility, bias: Bias | None, scale: float) -> Bias:
    """Return the bias with which a formula without its level reads as it does with it.

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
        mean, variance = row_moments(q, k, keys, visibility, scale, level.needs_variance)
        moved = -level.of(visibility.counts().clamp_min(1).to(mean.dtype), mean, variance)
    else:
        exact = torch.float64 if q.dtype == torch.float64 else torch.float32
        moved = -level.of(visibility.counts().clamp_min(1).to(exact))
        moved = (moved if rows is None else rows + moved).expand(q.shape[:3])
    return moved.unsqueeze(-1) if keys is None else RowKeyBias(moved, keys)


def row_moments(
    q: Tensor, k: Tensor, keys: Tensor | None, visibility: Visibility, scale: float, with_variance: bool
) -> tuple[Tensor, Tensor | None]:
    """Return mean and variance of scale q_i . k_j + keys_j over the visible slots, (B, H, Tq) each.

    They are at least in float32. Those of a row that sees nothing have no meaning.
    """
    with without_autocast(q):
        return _exact_moments(q, k, keys, visibility, scale, with_variance)


def _exact_moments(
    q: Tensor, k: Tensor, keys: Tensor | None, visibility: Visibility, scale: float, with_variance: bool
) -> tuple[Tensor, Tensor | None]:
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    x, y = k.to(exact), q.to(exact)
    if keys is not None:  # as one more column, times 1
        column = keys.to(exact).expand(k.shape[:3]).unsqueeze(-1)
        x, y = torch.cat([x * scale, column], dim=-1), F.pad(y, (0, 1), value=1.0)
        scale = 1.0
    if _compiled(y, x):
        given = (packed_rows(y), packed_rows(x), visibility.key_mask)
        operator = _Moments.apply if derivatives.eager(y) else torch.ops.reluformer.cpu_moments
        mean, variance = operator(*given, visibility.hides_future, scale)  # type: ignore[no-untyped-call]
        return mean, variance if with_variance else None
    mean, variance = _composed(y, x, visibility, with_variance)
    return mean * scale, variance * scale**2 if with_variance else None


def _compiled(y: Tensor, x: Tensor) -> bool:
    """Whether the library can and should do it; few queries are better multiplied with all slots."""
    plain = y.device.type == "cpu" and y.dtype == torch.float32 and cpu.unavailable() is None
    return plain and y.size(2) >= x.size(-1) and derivatives.unsupported() is None


def _composed(y: Tensor, x: Tensor, visibility: Visibility, with_variance: bool) -> tuple[Tensor, Tensor]:
    """Return mean and variance of y_i . x_j over the visible slots by operations of PyTorch, (B, H, Tq) each."""
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
    """Of y_i . x_j over the slots that are visible to all queries, (B, H, Tq)."""
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
    """Sum of y_i . x_j and of its square over the slots up to each query's own position, (B, H, Tq).

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
    """y_i^T form y_i, (..., Tq)."""
    return (torch.matmul(y, form) * y).sum(-1)


def _earlier(x: Tensor) -> Tensor:
    """The sum over all chunks before each, (B, H, N, ...); a product with a triangle is quicker than `cumsum`."""
    triangle = torch.ones(x.size(2), x.size(2), dtype=x.dtype, device=x.device).tril_(-1)
    return torch.matmul(triangle, x.flatten(3)).view(x.shape)


def _first(x: Tensor, visibility: Visibility) -> Tensor:
    """The first visible slot, (B, H, 1, d)."""
    if visibility.key_mask is None:
        return x[:, :, :1]
    place = visibility.key_mask.int().argmax(-1)[:, None, None, None]
    return x.gather(2, place.expand(*x.shape[:2], 1, x.size(-1)))


def _masked(x: Tensor, visibility: Visibility) -> Tensor:
    return x if visibility.key_mask is None else x.masked_fill(~visibility.key_mask[:, None, :, None], 0)


# ------------------------------------------------------------------ the same in the library

_OPERANDS = "Tensor y, Tensor x, Tensor? key_mask, bool causal, float scale"
torch.library.define("reluformer::cpu_moments", f"({_OPERANDS}) -> (Tensor, Tensor)")
torch.library.define(
    "reluformer::cpu_moments_backward",
    f"(Tensor d_mean, Tensor d_variance, Tensor variance, {_OPERANDS}) -> (Tensor, Tensor)",
)


def _fields(y: Tensor, x: Tensor, key_mask: Tensor | None, causal: bool, scale: float) -> tuple[float, ...]:
    """The first fields of the C struct; the caller keeps the tensors alive."""
    batch, heads, queries, width = y.shape
    threads, path = torch.get_num_threads(), cpu.loaded().path
    mask = (0, 0) if key_mask is None else (key_mask.data_ptr(), key_mask.stride(0))
    return (batch, heads, queries, x.size(2), width, causal, threads, path, scale, *tensor4(y), *tensor4(x), *mask)


def _forward(y: Tensor, x: Tensor, key_mask: Tensor | None, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    mask = None if key_mask is None else packed_rows(key_mask)
    mean, variance = torch.zeros(y.shape[:3]), torch.zeros(y.shape[:3])
    nowhere = (0, *NOTHING)
    places = (mean.data_ptr(), variance.data_ptr(), 0, 0)
    cpu.loaded().moments(*_fields(y, x, mask, causal, scale), *places, *nowhere, *nowhere)
    return mean, variance


def _backward(
    d_mean: Tensor,
    d_variance: Tensor,
    variance: Tensor,
    y: Tensor,
    x: Tensor,
    key_mask: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    mask = None if key_mask is None else packed_rows(key_mask)
    d_y, d_x = torch.zeros_like(y), torch.zeros_like(x)
    d_mean, d_variance = d_mean.contiguous(), d_variance.contiguous()
    places = (0, variance.data_ptr(), d_mean.data_ptr(), d_variance.data_ptr())
    cpu.loaded().moments(*_fields(y, x, mask, causal, scale), *places, *tensor4(d_y), *tensor4(d_x))
    return d_y, d_x


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(output[1], *inputs[:3])
    ctx.options = inputs[3:]


def _differentiate(ctx: Any, d_mean: Tensor, d_variance: Tensor) -> tuple[Tensor | None, ...]:
    if derivatives.recomputes():
        _, y, x, key_mask = ctx.saved_tensors
        causal, scale = ctx.options

        def scaled(y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            visibility = Visibility(y.size(2), x.size(2), y.device, causal, key_mask)
            mean, variance = _composed(y, x, visibility, with_variance=True)
            return mean * scale, variance * scale**2

        return (*derivatives.gradients(scaled, (y, x), (d_mean, d_variance)), None, None, None)
    backward = _backward if derivatives.eager(d_mean) else torch.ops.reluformer.cpu_moments_backward
    d_y, d_x = backward(d_mean, d_variance, *ctx.saved_tensors, *ctx.options)
    return d_y, d_x, None, None, None


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


torch.library.impl("reluformer::cpu_moments", "cpu")(_forward)
torch.library.impl("reluformer::cpu_moments_backward", "cpu")(_backward)
torch.library.register_fake("reluformer::cpu_moments")(
    lambda y, *_: (y.new_empty(y.shape[:3]), y.new_empty(y.shape[:3]))
)
torch.library.register_fake("reluformer::cpu_moments_backward")(
    lambda d_mean, d_variance, variance, y, x, *_: (torch.empty_like(y), torch.empty_like(x))
)
torch.library.register_autograd("reluformer::cpu_moments", _differentiate, setup_context=_keep)
