"""Which slots each query may see: causal and key_mask and mask, all at once.

Shapes: B batch, H heads, Tq queries, Tk slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Visibility:
    """Queries are the last `queries` of `slots` positions when `causal`."""

    queries: int
    slots: int
    device: torch.device
    causal: bool = False
    key_mask: Tensor | None = None  # (B, Tk), True = visible
    mask: Tensor | None = None  # broadcasts to (B, H, Tq, Tk), True = visible

    @property
    def first_position(self) -> int:
        """Position of the first query among the slots."""
        return self.slots - self.queries

    @property
    def everything(self) -> bool:
        """No slot is hidden from any query."""
        return self.key_mask is None and self.mask is None and not self.hides_future

    @property
    def hides_future(self) -> bool:
        """Causality matters: a lone last query sees every slot anyway."""
        return self.causal and self.queries > 1

    def dense(self) -> Tensor | None:
        """Boolean, broadcasts to (B, H, Tq, Tk); None = everything."""
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
        """n_i, the number of slots each query sees; int64, broadcasts to (B, H, Tq)."""
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
