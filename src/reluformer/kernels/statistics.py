"""What a row of weights looks like, in four numbers a row."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RowStats(NamedTuple):
    """Statistics of each row of weights, (B, H, Tq). The first two are differentiable."""

    row_sum: Tensor
    """R = sum of the weights."""
    entropy: Tensor
    """H = log R - (sum w log w) / R, the entropy of the weights divided by R; 0 where R = 0."""
    zero_fraction: Tensor
    """Share of the visible slots whose weight is exactly 0; 0 where nothing is visible."""
    n_visible: Tensor
    """Number of visible slots, int64."""

    @property
    def dead(self) -> Tensor:
        """Rows that read nothing."""
        return self.row_sum == 0


def w_log_w(weights: Tensor) -> Tensor:
    """w log w with value and gradient 0 where w <= 0."""
    positive = weights > 0
    safe = torch.where(positive, weights, torch.ones_like(weights))
    return safe * safe.log()


def entropy_of(row_sum: Tensor, sum_w_log_w: Tensor) -> Tensor:
    """log R - (sum w log w) / R; 0, with gradient 0, where R <= 0."""
    live = row_sum > 0
    safe = torch.where(live, row_sum, torch.ones_like(row_sum))
    return torch.where(live, safe.log() - sum_w_log_w / safe, torch.zeros_like(row_sum))


def row_stats(weights: Tensor, visible: Tensor | None, n_visible: Tensor) -> RowStats:
    """Statistics of dense `weights` (B, H, Tq, Tk), hidden slots already 0."""
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
