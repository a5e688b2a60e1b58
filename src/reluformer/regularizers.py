"""The paper's regulariser on attention rows, from the row statistics of a read.

With R = sum_j w_j and H the entropy of the row,

    normalisation   |log R|
    entropy margin  max(H - 0.7 log n, 0)

each averaged over the live rows of all heads and attention modules. R is floored at 1e-3
wherever it is divided by or taken the logarithm of, so that a nearly dead row has a
bounded gradient; above the floor both terms are exactly the formulas. A dead row (R = 0)
is left out of both and counted. Padded query rows are left out by `row_mask`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from reluformer.config import Config
from reluformer.errors import ArgumentError

if TYPE_CHECKING:
    from reluformer.memory import RowStats

FLOOR = 1e-3
_Value = TypeVar("_Value", Tensor, float)


class RegularizerConfig(Config):
    """The weights of the regulariser's two terms. The paper does not give its weights; these are ours."""

    normalization: float = Field(default=0.05, ge=0, le=1e6)
    """Weight of |log sum_j w_ij|, which pulls each row's sum to one."""
    entropy: float = Field(default=0.05, ge=0, le=1e6)
    """Weight of max(H_i - margin log n_i, 0), which makes rows sparser than the margin."""
    margin: float = Field(default=0.7, ge=0, le=1e6)
    """C / log n, the share of the largest possible entropy that costs nothing."""

    def weighted(self, normalization: _Value, entropy: _Value) -> _Value:
        """Returns the weighted sum of the two terms, which are sums or means over rows."""
        return self.normalization * normalization + self.entropy * entropy


class RegularizerSums(NamedTuple):
    """Sums over rows and their counts, so that parts of a batch can be added before dividing."""

    normalization: Tensor
    entropy: Tensor
    live: Tensor
    """Rows that entered the sums."""
    dead: Tensor
    """Rows left out because they read nothing."""
    active: Tensor
    """Live rows whose entropy exceeds the margin."""

    def loss(self, config: RegularizerConfig) -> Tensor:
        """Returns the weighted sum of both means; 0 without a live row."""
        return config.weighted(self.normalization, self.entropy) / self.live.clamp_min(1)


def sums(stats: RowStats, row_mask: Tensor | None = None, margin: float = 0.7) -> RegularizerSums:
    """Returns the two terms of one read.

    Args:
        stats: row statistics (B, H, T) of the read.
        row_mask: boolean (B, T), True at real queries; None where no query is padding.
        margin: the share of log n that the entropy of a row may reach.

    Raises:
        ArgumentError: row_mask does not fit the statistics.

    Example:
        >>> import reluformer as rf
        >>> _, stats = rf.read(*torch.ones(3, 1, 1, 4, 2), rule="relu_norm", return_stats=True)
        >>> found = sums(stats)
        >>> found.live.item(), found.dead.item()
        (4, 0)
    """
    counted = torch.ones_like(stats.row_sum, dtype=torch.bool)
    if row_mask is not None:
        if row_mask.dtype != torch.bool or row_mask.shape != (stats.row_sum.size(0), stats.row_sum.size(2)):
            raise ArgumentError(
                f"row_mask must be boolean of shape (batch, queries) = "
                f"({stats.row_sum.size(0)}, {stats.row_sum.size(2)}), got {row_mask.dtype} of {tuple(row_mask.shape)}"
            )
        counted = counted & row_mask[:, None, :]
    live = counted & ~stats.dead
    floored = stats.row_sum.clamp_min(FLOOR)
    log_sum = floored.log()
    excess = _floored_entropy(stats, floored) - margin * stats.n_visible.clamp_min(1).log()
    return RegularizerSums(
        normalization=torch.where(live, log_sum.abs(), 0).sum(),
        entropy=torch.where(live, excess.clamp_min(0), 0).sum(),
        live=live.sum(),
        dead=(counted & stats.dead).sum(),
        active=(live & (excess > 0)).sum(),
    )


def total(
    reads: Mapping[str, RowStats], row_masks: Mapping[str, Tensor | None], margin: float = 0.7
) -> RegularizerSums:
    """Returns the sums over all attention modules; row_masks are found by the first part of a read's name."""
    return add(sums(stats, row_masks.get(name.split(".")[0]), margin) for name, stats in reads.items())


def add(parts: Iterable[RegularizerSums]) -> RegularizerSums:
    """Returns the sums of several reads together."""
    columns = list(zip(*parts, strict=True))
    if not columns:
        raise ArgumentError("no read to regularise; call the model with stats=True")
    return RegularizerSums(*(torch.stack(column).sum() for column in columns))


def _floored_entropy(stats: RowStats, floored: Tensor) -> Tensor:
    """Returns log R' - (sum w log w) / R' with R' = max(R, floor); H itself above the floor."""
    live_sum = torch.where(stats.dead, torch.ones_like(stats.row_sum), stats.row_sum)
    sum_w_log_w = stats.row_sum * (live_sum.log() - stats.entropy)
    below = stats.row_sum < FLOOR
    return torch.where(below, floored.log() - sum_w_log_w / floored, stats.entropy)
