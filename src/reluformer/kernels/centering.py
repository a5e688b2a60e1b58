"""Rules of centred scores, for implementations that never see a whole row of scores.

    s_ij - level_i  =  scale q_i . k_j + rows_i + keys_j        rows_i = -level_i - (what else is common to the row)

The level needs mean and variance of a row's scores. With x_j = (scale k_j, keys_j) and y_i = (q_i, 1) the scores are
y_i . x_j, so their mean is y_i . mean(x), and their variance y_i^T cov(x) y_i: sums over slots of d and of d x d
numbers, for a causal read up to each position. Of many slots that is far less than a second look at the scores.

Shapes: B batch, H heads, Tq queries, Tk slots, d width of x and y.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from reluformer.kernels.bias import Bias, RowKeyBias, parts
from reluformer.kernels.visibility import Visibility
from reluformer.rules import RowCentered

CHUNK = 64
"""Positions of a causal read whose products with each other are taken one by one."""


def centring_bias(
    q: Tensor, k: Tensor, rule: RowCentered, visibility: Visibility, bias: Bias | None, scale: float
) -> Bias | None:
    """The bias with which `rule.core` reads as `rule` does.

    None where a dense mask or bias asks for dense scores, or the rule for weights of its own.
    """
    split = parts(bias, visibility.slots)
    if visibility.mask is not None or split is None or type(rule).weights is not RowCentered.weights:
        return None
    keys = split[1]
    rows = -rule.level(*row_moments(q, k, keys, visibility, scale, rule.spread != 0))
    return rows.unsqueeze(-1) if keys is None else RowKeyBias(rows, keys)


def row_moments(
    q: Tensor, k: Tensor, keys: Tensor | None, visibility: Visibility, scale: float, with_variance: bool
) -> tuple[Tensor, Tensor | None]:
    """Mean and variance of scale q_i . k_j + keys_j over the visible slots, (B, H, Tq), at least in float32.

    Of a row that sees nothing they mean nothing.
    """
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    x, y = k.to(exact) * scale, q.to(exact)
    if keys is not None:
        x = torch.cat([x, keys.to(exact).expand(k.shape[:3]).unsqueeze(-1)], dim=-1)
        y = F.pad(y, (0, 1), value=1.0)
    n = visibility.counts().clamp_min(1).to(exact)  # broadcasts to (B, H, Tq)
    moments = _causal_moments if visibility.hides_future else _moments
    return moments(y, x, visibility, n, with_variance)


def _moments(
    y: Tensor, x: Tensor, visibility: Visibility, n: Tensor, with_variance: bool
) -> tuple[Tensor, Tensor | None]:
    """Of y_i . x_j over the visible slots, (B, H, Tq)."""
    seen = _masked(x, visibility)
    centre = seen.sum(2, keepdim=True) / n.unsqueeze(-1)
    mean = (y * centre).sum(-1)
    if not with_variance:
        return mean, None
    away = _masked(x - centre, visibility)
    if y.size(2) < x.size(-1):  # fewer products with the slots themselves than with their covariance
        return mean, torch.matmul(y, away.transpose(-1, -2)).square().sum(-1) / n
    return mean, _quadratic(y, torch.matmul(away.transpose(-1, -2), away)) / n


def _causal_moments(
    y: Tensor, x: Tensor, visibility: Visibility, n: Tensor, with_variance: bool
) -> tuple[Tensor, Tensor | None]:
    """The same over the slots up to each query's own position.

    Slots are taken less the first visible one, which all queries see: what they have in common then costs no digits.
    """
    origin = _first(x, visibility)
    x = _masked(x - origin, visibility)
    first = visibility.first_position
    centre = x.cumsum(2)[:, :, first:] / n.unsqueeze(-1)
    away, common = (y * centre).sum(-1), (y * origin).sum(-1)
    if not with_variance:
        return away + common, None
    rest = -x.size(2) % CHUNK
    slots = _chunks(F.pad(x, (0, 0, 0, rest)))  # (B, H, N, CHUNK, d)
    queries = _chunks(F.pad(y, (0, 0, first, rest)))
    products = torch.matmul(slots.transpose(-1, -2), slots)[:, :, :-1]
    before = F.pad(products.cumsum(2), (0, 0, 0, 0, 1, 0))  # of all chunks before, (B, H, N, d, d)
    within = torch.matmul(queries, slots.transpose(-1, -2)).tril().square().sum(-1)
    squares = (_quadratic(queries, before) + within).flatten(2)[:, :, first : visibility.slots]
    return away + common, (squares / n - away.square()).clamp_min(0)


def _chunks(x: Tensor) -> Tensor:
    return x.reshape(*x.shape[:2], -1, CHUNK, x.size(-1))


def _quadratic(y: Tensor, form: Tensor) -> Tensor:
    """y_i^T form y_i, (..., Tq)."""
    return (torch.matmul(y, form) * y).sum(-1)


def _first(x: Tensor, visibility: Visibility) -> Tensor:
    """The first visible slot, (B, H, 1, d)."""
    if visibility.key_mask is None:
        return x[:, :, :1]
    place = visibility.key_mask.int().argmax(-1)[:, None, None, None]
    return x.gather(2, place.expand(*x.shape[:2], 1, x.size(-1)))


def _masked(x: Tensor, visibility: Visibility) -> Tensor:
    return x if visibility.key_mask is None else x.masked_fill(~visibility.key_mask[:, None, :, None], 0)
