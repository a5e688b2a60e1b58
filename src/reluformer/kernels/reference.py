"""The specification: dense scores, the rule, one product. Any device, any dtype, any rule.

    s = scale * q k^T + bias;  w = rule(s) on visible slots, 0 elsewhere;  out = w v

Every other implementation is compared to this one in float64. It is also made not to be
slower than the obvious four lines: the scale is applied to q and the row scale of a
pointwise rule to the read, both far smaller than the scores, and no copy of the scores
is kept for the backward pass.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from reluformer.kernels.bias import Bias, dense_bias
from reluformer.kernels.precision import widened, without_autocast
from reluformer.kernels.statistics import RowStats, row_stats
from reluformer.kernels.visibility import Visibility
from reluformer.rules import Pointwise, RowCentered, Rule


def read(
    q: Tensor, k: Tensor, v: Tensor, rule: Rule, visibility: Visibility, bias: Bias | None, scale: float, stats: bool
) -> tuple[Tensor, RowStats | None]:
    """(B,H,Tq,d), (B,H,Tk,d), (B,H,Tk,dv) -> (B,H,Tq,dv), and the row statistics if asked."""
    if stats:
        dense, statistics = weights(q, k, rule, visibility, bias, scale)
        return torch.matmul(dense.to(v.dtype), v), statistics
    if not isinstance(rule, Pointwise):
        scores, n = _scores(q, k, bias, scale, rule), _counts(visibility, q)
        return torch.matmul(rule.weights(scores, n, visibility.dense()).to(v.dtype), v), None
    if visibility.everything:
        n, row_scale = _uniform(rule, visibility.slots)
        if rule.homogeneity == 1 and bias is None and row_scale is not None:
            scale, row_scale = scale * row_scale, None  # c ReLU(s) = ReLU(c s)
        out = torch.matmul(rule.activate(_scores(q, k, bias, scale, rule), n).to(v.dtype), v)
        return (out if row_scale is None else out * row_scale), None
    n = _counts(visibility, q)
    out = torch.matmul(rule.activations(_scores(q, k, bias, scale, rule), n, visibility.dense()).to(v.dtype), v)
    row_factor = rule.row_scale(n)
    return (out if row_factor is None else out * row_factor.to(out.dtype)), None


@lru_cache(maxsize=1024)
def _uniform(rule: Pointwise, slots: int) -> tuple[Tensor, float | None]:
    """n as a scalar tensor, which decides no dtype, and the row scale, when every row sees all slots."""
    n = torch.tensor(float(max(slots, 1)), dtype=torch.float64, device="cpu")
    row_scale = rule.row_scale(n)
    return n, None if row_scale is None else float(row_scale)


def weights(
    q: Tensor, k: Tensor, rule: Rule, visibility: Visibility, bias: Bias | None, scale: float
) -> tuple[Tensor, RowStats]:
    """The weights themselves, (B, H, Tq, Tk), and their statistics."""
    visible = visibility.dense()
    dense = rule.weights(_scores(q, k, bias, scale, rule), _counts(visibility, q), visible)
    return dense, row_stats(dense, visible, visibility.counts())


def _scores(q: Tensor, k: Tensor, bias: Bias | None, scale: float, rule: Rule) -> Tensor:
    """scale * q k^T + bias, at least in float32; where they are centred, of products in float32 as well."""
    if isinstance(rule, RowCentered):
        with without_autocast(q):
            scores = torch.matmul(widened(q) * scale, widened(k).transpose(-1, -2))
    else:
        scores = widened(torch.matmul(q * scale, k.transpose(-1, -2)))
    added = dense_bias(bias)
    return scores if added is None else scores + added


def _counts(visibility: Visibility, q: Tensor) -> Tensor:
    """n_i as the rules want it: at least 1, floating point, (..., Tq, 1)."""
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    return visibility.counts().clamp_min(1).unsqueeze(-1).to(exact)
