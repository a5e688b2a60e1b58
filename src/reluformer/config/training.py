"""The configuration of training."""

from __future__ import annotations

from pydantic import Field

from reluformer.config.base import Config


class RegularizerConfig(Config):
    """The paper's two-part regulariser on attention rows. Its weights there are unknown; these are ours."""

    normalization: float = Field(default=0.05, ge=0)
    """Weight of |log sum_j w_ij|, which pulls each row's sum to one."""
    entropy: float = Field(default=0.05, ge=0)
    """Weight of max(H_i - margin log n_i, 0), which makes rows sparser than the margin."""
    margin: float = Field(default=0.7, ge=0)
    """C / log n, the share of the largest possible entropy that costs nothing."""
