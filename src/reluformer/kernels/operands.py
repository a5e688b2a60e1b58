"""What a read takes beside q, k and v: which slots are visible, and a bias of the scores.

A bias need not be as large as the scores: `RowKeyBias` has a number for each row and one for each key.

Shapes: B batch, H heads, Tq queries, Tk slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Visibility:
    """Which slots each query may see: `causal` and `key_mask` and `mask` together.

    In a causal read the queries are the last `queries` of `slots` positions.

    Example:
        >>> Visibility(2, 3, torch.device("cpu"), causal=True).counts()
        tensor([2, 3])
    """

    queries: int
    slots: int
    device: torch.device
    causal: bool = False
    key_mask: Tensor | None = None  # (B, Tk), True = visible
    mask: Tensor | None = None  # broadcasts to (B, H, Tq, Tk), True = visible

    @property
    def first_position(self) -> int:
        """The position of the first query among the slots."""
        return self.slots - self.queries

    @property
    def everything(self) -> bool:
        """Whether every query sees every slot."""
        return self.key_mask is None and self.mask is None and not self.hides_future

    @property
    def hides_future(self) -> bool:
        """Whether causality hides anything; a lone last query sees every slot anyway."""
        return self.causal and self.queries > 1

    def dense(self) -> Tensor | None:
        """Return a boolean tensor that broadcasts to (B, H, Tq, Tk), or None if every slot is visible."""
        visible = self.mask
        if self.key_mask is not None:
            keys = self.key_mask[:, None, None, :]
            visible = keys if visible is None else visible & keys
        if self.hides_future:
            past = torch.ones(self.queries, self.slots, dtype=torch.bool, device=self.device)
            past = past.tril_(self.first_position)
            visible = past if visible is None else visible & past
        return visible

    def counts(self) -> Tensor:
        """Return n_i, the number of slots that query i sees; int64, broadcasts to (B, H, Tq)."""
        if self.mask is not None:
            visible = self.dense()
            assert visible is not None
            return visible.expand(*visible.shape[:-1], self.slots).sum(-1)
        if self.key_mask is not None:
            if self.hides_future:
                return self.key_mask.cumsum(-1)[:, None, self.first_position :]
            return self.key_mask.sum(-1)[:, None, None]
        if self.hides_future:
            return torch.arange(self.first_position + 1, self.slots + 1, device=self.device)
        return torch.full((1,), self.slots, device=self.device)


class RowKeyBias(NamedTuple):
    """A bias rows_i + keys_j of the scores, which is never stored as a matrix.

    With rows = -c * position and keys = c * position it is a penalty on the distance of two positions.

    Args:
        rows: broadcasts to (B, H, Tq).
        keys: broadcasts to (B, H, Tk).

    Example:
        >>> RowKeyBias(torch.tensor([0.0, 1.0]), torch.tensor([10.0, 20.0])).dense()
        tensor([[10., 20.],
                [11., 21.]])
    """

    rows: Tensor
    keys: Tensor

    def dense(self) -> Tensor:
        """Return the bias as one tensor that broadcasts to (B, H, Tq, Tk)."""
        return self.rows.unsqueeze(-1) + self.keys.unsqueeze(-2)


Bias = Tensor | RowKeyBias


def dense_bias(bias: Bias | None) -> Tensor | None:
    """Return `bias` as a tensor that broadcasts to (B, H, Tq, Tk)."""
    return bias.dense() if isinstance(bias, RowKeyBias) else bias


def row_and_key_parts(bias: Bias | None, slots: int) -> tuple[Tensor | None, Tensor | None] | None:
    """Split `bias` into its row part (..., Tq) and its key part (..., Tk); return None if it is dense."""
    if bias is None:
        return None, None
    if isinstance(bias, RowKeyBias):
        return bias.rows, bias.keys
    if bias.ndim < 2 or bias.size(-2) == 1:
        return None, bias.expand(*bias.shape[:-1], slots).squeeze(-2) if bias.ndim > 1 else bias
    return (bias.squeeze(-1), None) if bias.size(-1) == 1 else None


def with_rows(mask: Tensor) -> Tensor:
    """Return a mask or bias of the slots alone, (Tk,), as one of rows, (1, Tk); others as they are."""
    return mask if mask.ndim > 1 else mask.reshape(1, -1)
