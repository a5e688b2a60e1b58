"""Biases of scores that need not be as large as the scores."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class RowKeyBias(NamedTuple):
    """rows_i + keys_j: with rows = c and keys = -c, how far apart two positions are."""

    rows: Tensor
    """Broadcasts to (B, H, Tq)."""
    keys: Tensor
    """Broadcasts to (B, H, Tk)."""

    def dense(self) -> Tensor:
        """As one tensor that broadcasts to (B, H, Tq, Tk)."""
        return self.rows.unsqueeze(-1) + self.keys.unsqueeze(-2)


Bias = Tensor | RowKeyBias


def dense_bias(bias: Bias | None) -> Tensor | None:
    """As a tensor that broadcasts to (B, H, Tq, Tk)."""
    return bias.dense() if isinstance(bias, RowKeyBias) else bias


def parts(bias: Bias | None, slots: int) -> tuple[Tensor | None, Tensor | None] | None:
    """Its row part (..., Tq) and key part (..., Tk); None where it is neither."""
    if bias is None:
        return None, None
    if isinstance(bias, RowKeyBias):
        return bias.rows, bias.keys
    if bias.ndim < 2 or bias.size(-2) == 1:
        return None, bias.expand(*bias.shape[:-1], slots).squeeze(-2) if bias.ndim > 1 else bias
    return (bias.squeeze(-1), None) if bias.size(-1) == 1 else None
