"""The specification: dense scores, the rule, one product. Any device, any dtype, any rule.

    s = scale * q k^T + bias;  w = rule(s) on visible slots, 0 elsewhere;  out = w v

Every other implementation is compared to this one in float64. It is also made not to be
slower than the obvious four lines: the scale is applied to q and the row scale of a
pointwise rule to the read, both far smaller than the scores, and no copy of the scores
is kept for the backward pass.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from reluformer.kernels.operands import Bias, Visibility, dense_bias
from reluformer.rules import Pointwise, Rule


def read(
    q: Tensor, k: Tensor, v: Tensor, rule: Rule, visibility: Visibility, bias: Bias | None, scale: float, stats: bool
) -> tuple[Tensor, RowStats | None]:
    """Read (B,H,Tq,d), (B,H,Tk,d), (B,H,Tk,dv) -> (B,H,Tq,dv), with the row statistics if `stats`."""
    if stats:
        dense, statistics = weights(q, k, rule, visibility, bias, scale)
        return torch.matmul(dense.to(v.dtype), v), statistics
    if not isinstance(rule, Pointwise):
        scores, n = _scores(q, k, bias, scale, rule), _counts(visibility, q)
        return torch.matmul(rule.weights(scores, n, visibility.dense()).to(v.dtype), v), None
    if visibility.everything and not torch.compiler.is_dynamo_compiling():  # a number from a tensor breaks its graph
        n, row_scale, folds = _uniform(type(rule), rule, visibility.slots)
        if folds and bias is None and row_scale is not None:
            scale, row_scale = scale * row_scale, None  # c ReLU(s) = ReLU(c s)
        out = torch.matmul(rule.activate(_scores(q, k, bias, scale, rule), n).to(v.dtype), v)
        return (out if row_scale is None else out * row_scale), None
    n = _counts(visibility, q)
    out = torch.matmul(rule.activations(_scores(q, k, bias, scale, rule), n, visibility.dense()).to(v.dtype), v)
    row_factor = rule.row_scale(n)
    return (out if row_factor is None else out * row_factor.to(out.dtype)), None


@lru_cache(maxsize=1024)
def _uniform(kind: type[Pointwise], rule: Pointwise, slots: int) -> tuple[Tensor, float | None, bool]:
    """Return what a read of all slots needs: n, the row scale, and whether the scale of the scores may take it.

    n is a scalar tensor, which decides no dtype. `kind` is the class of the rule: equal hashes of rules without
    options would be compared one by one.
    """
    n = torch.tensor(float(max(slots, 1)), dtype=torch.float64, device="cpu")
    row_scale = rule.row_scale(n)
    return n, None if row_scale is None else float(row_scale), rule.homogeneity == 1


def weights(
    q: Tensor, k: Tensor, rule: Rule, visibility: Visibility, bias: Bias | None, scale: float
) -> tuple[Tensor, RowStats]:
    """Return the weights themselves, (B, H, Tq, Tk), and their statistics."""
    visible = visibility.dense()
    dense = rule.weights(_scores(q, k, bias, scale, rule), _counts(visibility, q), visible)
    return dense, row_stats(dense, visible, visibility.counts())


def _scores(q: Tensor, k: Tensor, bias: Bias | None, scale: float, rule: Rule) -> Tensor:
    """Return scale * q k^T + bias, at least in float32; for rules of centred scores the products are, too."""
    if rule.wide_scores:
        with without_autocast(q):
            scores = torch.matmul(widened(q) * scale, widened(k).transpose(-1, -2))
    else:
        scores = widened(torch.matmul(q * scale, k.transpose(-1, -2)))
    added = dense_bias(bias)
    return scores if added is None else scores + added


def _counts(visibility: Visibility, q: Tensor) -> Tensor:
    """Return n_i as rules take it: at least 1, floating point, (..., Tq, 1)."""
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    return visibility.counts().clamp_min(1).unsqueeze(-1).to(exact)


def widened(x: Tensor) -> Tensor:
    """Return `x` at least in float32: rules divide by n, which bfloat16 cannot count."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Return a context in which products of widened tensors stay wide; autocast would round them back."""
    kind = x.device.type
    autocasts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if autocasts else nullcontext()


# ------------------------------------------------------------------ statistics of a row


class RowStats(NamedTuple):
    """Four numbers about each row of weights, (B, H, Tq) each. The first two are differentiable.

    Example:
        >>> weights = torch.tensor([[[[1.0, 3.0, 0.0, 0.0]]]])
        >>> stats = row_stats(weights, None, torch.tensor([4]))
        >>> stats.row_sum.item(), stats.zero_fraction.item(), stats.n_visible.item()
        (4.0, 0.5, 4)
    """

    row_sum: Tensor
    """R, the sum of the weights."""
    entropy: Tensor
    """H = log R - (sum w log w) / R, the entropy of the weights over their sum; 0 where R = 0."""
    zero_fraction: Tensor
    """The share of the visible slots whose weight is exactly 0; 0 where nothing is visible."""
    n_visible: Tensor
    """The number of visible slots, int64."""

    @property
    def dead(self) -> Tensor:
        """Whether a row reads nothing; boolean, (B, H, Tq)."""
        return self.row_sum == 0


def w_log_w(weights: Tensor) -> Tensor:
    """Return w log w, with value and gradient 0 where w <= 0."""
    positive = weights > 0
    safe = torch.where(positive, weights, torch.ones_like(weights))
    return safe * safe.log()


def entropy_of(row_sum: Tensor, sum_w_log_w: Tensor) -> Tensor:
    """Return log R - (sum w log w) / R; 0, with gradient 0, where R <= 0."""
    live = row_sum > 0
    safe = torch.where(live, row_sum, torch.ones_like(row_sum))
    return torch.where(live, safe.log() - sum_w_log_w / safe, torch.zeros_like(row_sum))


def row_stats(weights: Tensor, visible: Tensor | None, n_visible: Tensor) -> RowStats:
    """Return the statistics of dense weights.

    Args:
        weights: (B, H, Tq, Tk), 0 at hidden slots.
        visible: boolean, broadcasts to weights; None where every slot is visible.
        n_visible: number of visible slots, broadcasts to (B, H, Tq).
    """
    row_sum = weights.sum(-1)
    zeros = weights.detach() == 0
    if visible is not None:
        zeros = zeros & visible
    n_visible = n_visible.expand(row_sum.shape)
    return RowStats(
        row_sum=row_sum,
        entropy=entropy_of(row_sum, w_log_w(weights).sum(-1)),
        zero_fraction=zeros.sum(-1) / n_visible.clamp_min(1),
        n_visible=n_visible,
    )
