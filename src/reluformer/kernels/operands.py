"""What a read takes beside q, k and v: which slots are visible, and a bias of the scores.

A bias need not be as large as the scores: `RowKeyBias` has a number for each row and one for each key.
Keys and values may have fewer heads than the queries: so many consecutive heads of queries share one of them.

Shapes: B batch, H heads, Hk heads of keys, Tq queries, Tk slots, S packed sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Window = tuple[int | None, int | None]
"""Slots to the left and to the right of a query's own position; None for all of them."""


@dataclass(frozen=True)
class Visibility:
    """Which slots each query may see: `causal`, `window`, `offsets`, `key_mask` and `mask` together.

    In a causal read, and in one with a window, the queries are the last `queries` of `slots` positions. Whatever
    follows from positions gives each row one range of slots (`ranges`).

    Example:
        >>> Visibility(2, 3, torch.device("cpu"), causal=True).counts()
        tensor([2, 3])
        >>> Visibility(4, 4, torch.device("cpu"), causal=True, window=(1, None)).counts()
        tensor([1, 2, 2, 2])
        >>> Visibility(4, 4, torch.device("cpu"), causal=True, offsets=torch.tensor([0, 3, 4])).counts()
        tensor([1, 2, 3, 1])
    """

    queries: int
    slots: int
    device: torch.device
    causal: bool = False
    key_mask: Tensor | None = None  # (B, Tk), True = visible
    mask: Tensor | None = None  # broadcasts to (B, H, Tq, Tk), True = visible
    window: Window | None = None  # how many slots to the left and to the right of its own position a query sees
    offsets: Tensor | None = None  # (S + 1), where packed sequences begin, and the number of slots

    @property
    def first_position(self) -> int:
        """The position of the first query among the slots."""
        return self.slots - self.queries

    @property
    def everything(self) -> bool:
        """Whether every query sees every slot."""
        return self.key_mask is None and self.mask is None and not self.hides_future and not self.ranged

    @property
    def hides_future(self) -> bool:
        """Whether causality hides anything; a lone last query sees every slot anyway."""
        return self.causal and self.queries > 1

    @property
    def ranged(self) -> bool:
        """Whether a window or packed sequences bound the slots of a row on both sides."""
        return self.offsets is not None or (self.window is not None and self.window != (None, None))

    def ranges(self) -> tuple[Tensor, Tensor]:
        """Returns the first slot that the position of each row lets it see, and the one after its last, (Tq) each."""
        position = torch.arange(self.first_position, self.slots, device=self.device)
        begin, end = torch.zeros_like(position), torch.full_like(position, self.slots)
        if self.offsets is not None:
            offsets = self.offsets.to(device=self.device, dtype=torch.int64)
            sequence = torch.searchsorted(offsets, position, right=True) - 1
            begin, end = offsets[sequence], offsets[sequence + 1]
        left, right = (None, None) if self.window is None else self.window
        right = 0 if self.causal else right
        if left is not None:
            begin = torch.maximum(begin, position - left)
        if right is not None:
            end = torch.minimum(end, position + right + 1)
        return begin, end

    def dense(self) -> Tensor | None:
        """Returns a boolean tensor that broadcasts to (B, H, Tq, Tk), or None if every slot is visible."""
        visible = self.mask
        if self.key_mask is not None:
            keys = self.key_mask[:, None, None, :]
            visible = keys if visible is None else visible & keys
        if self.ranged:
            begin, end = self.ranges()
            slot = torch.arange(self.slots, device=self.device)
            inside = (slot >= begin[:, None]) & (slot < end[:, None])
            return inside if visible is None else visible & inside
        if self.hides_future:
            past = torch.ones(self.queries, self.slots, dtype=torch.bool, device=self.device)
            past = past.tril_(self.first_position)
            visible = past if visible is None else visible & past
        return visible

    def counts(self) -> Tensor:
        """Returns n_i, the number of slots that query i sees; int64, broadcasts to (B, H, Tq)."""
        if self.mask is not None:
            visible = self.dense()
            assert visible is not None
            return visible.expand(*visible.shape[:-1], self.slots).sum(-1)
        if self.ranged:
            begin, end = self.ranges()
            if self.key_mask is None:
                return end - begin
            before = F.pad(self.key_mask.cumsum(-1), (1, 0))
            return (before[:, end] - before[:, begin])[:, None]
        if self.key_mask is not None:
            if self.hides_future:
                return self.key_mask.cumsum(-1)[:, None, self.first_position :]
            return self.key_mask.sum(-1)[:, None, None]
        if self.hides_future:
            return torch.arange(self.first_position + 1, self.slots + 1, device=self.device)
        return torch.full((1,), self.slots, device=self.device)

    def blocks(
        self, size: int, keys: Tensor | None = None, floor: Tensor | None = None
    ) -> Iterator[tuple[slice, slice, Visibility]]:
        """Yield rows, the slots that any of them needs, and what the rows see of these.

        Args:
            size: rows of a block.
            keys: key terms, (B, H, Tk), with `floor`.
            floor: how low the key term of a slot may be and still count for a row, (B, H, Tq).
        """
        begin, end = self.ranges()
        for start in range(0, self.queries, size):
            block = slice(start, min(start + size, self.queries))
            first, last = int(begin[block].min()), int(end[block].max())
            if keys is not None and floor is not None:
                needed = (keys[..., first:last] >= floor[..., block].amin(-1, keepdim=True)).flatten(0, 1).any(0)
                first += int(needed.int().argmax())
            slot = torch.arange(first, last, device=self.device)
            mask = (slot >= begin[block, None]) & (slot < end[block, None])
            if self.mask is not None:
                full = with_rows(self.mask)
                full = full.expand(*full.shape[:-2], self.queries, self.slots)
                mask = mask & full[..., block, first:last]
            seen = None if self.key_mask is None else self.key_mask[:, first:last]
            rows = block.stop - block.start
            yield block, slice(first, last), Visibility(rows, last - first, self.device, False, seen, mask)


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
        """Returns the bias as one tensor that broadcasts to (B, H, Tq, Tk)."""
        return self.rows.unsqueeze(-1) + self.keys.unsqueeze(-2)


Bias = Tensor | RowKeyBias
Gate = Tensor | RowKeyBias
"""Cumulative sums of log forget gates, or what they add to the scores of queries at any positions."""
GateOn = Literal["scores", "weights"]
"""What a gate acts on: c_i - c_j is added to a score, or its exponential multiplies a weight."""


def dense_bias(bias: Bias | None) -> Tensor | None:
    """Returns `bias` as a tensor that broadcasts to (B, H, Tq, Tk)."""
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


def with_gate(bias: Bias | None, gate: Gate, queries: int) -> Bias:
    """Returns `bias` with a forget gate: gate_i - gate_j is added to the scores.

    Args:
        bias: None, a row bias, a key bias, both, or a dense one.
        gate: cumulative sums of log forget gates over the slots, broadcasts to (B, H, Tk), or what they add.
        queries: number of queries, which are the last positions.
    """
    moved = gate if isinstance(gate, RowKeyBias) else RowKeyBias(gate[..., gate.size(-1) - queries :], -gate)
    split = row_and_key_parts(bias, moved.keys.size(-1))
    if split is None:
        return dense_bias(bias) + moved.dense()  # type: ignore[operator]
    return RowKeyBias(*(new if old is None else old + new for old, new in zip(split, moved, strict=True)))


def per_key_head(x: Tensor, heads: int) -> Tensor:
    """Returns x (B, H, T, ...) as (B, heads, H / heads * T, ...), so that queries with the same keys stand in a row."""
    rows = x.size(1) * x.size(2) // heads
    return x if x.size(1) == heads else x.reshape(x.size(0), heads, rows, *x.shape[3:])


def grouped_product(a: Tensor, b: Tensor) -> Tensor:
    """Returns a (B, H, T, m) times b (B, Hk, m, n), (B, H, T, n), without repeating b for the heads of a."""
    if a.size(1) == b.size(1):
        return torch.matmul(a, b)
    return torch.matmul(per_key_head(a, b.size(1)), b).view(*a.shape[:3], b.size(-1))


def with_rows(mask: Tensor) -> Tensor:
    """Returns a mask or bias of the slots alone, (Tk,), as one of rows, (1, Tk); others as they are."""
    return mask if mask.ndim > 1 else mask.reshape(1, -1)
