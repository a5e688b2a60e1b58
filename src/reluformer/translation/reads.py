"""Reads of one position by the beams of a source, which share the source's slots.

The semantics are those of `memory.read` with queries that are scaled already. A reader
puts what does not change from layer to layer or step to step where it costs nothing.

Shapes: B sources, H heads, K beams, N slots, d head width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from reluformer.kernels import sdpa
from reluformer.layers import TokenSlots
from reluformer.rules import ReluPlain, Rule


class Visible(NamedTuple):
    """Which slots each query sees and how many they are, as far as the reader needs it."""

    table: Tensor | None
    n: Tensor | None


class Source(NamedTuple):
    """The slots of the encoded sources, (B, H, N, d) each, in the form that their reader wants."""

    keys: Tensor
    values: Tensor
    visible: Visible

    def select(self, sources: Tensor) -> Source:
        """Keep these of the B sources."""
        keys, values = self.keys.index_select(0, sources), self.values.index_select(0, sources)
        kept = (None if part is None else part.index_select(0, sources) for part in self.visible)
        return Source(keys, values, Visible(*kept))


class Reader:
    """Any rule, as it is registered."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def table(self, visible: Tensor) -> Tensor:
        """Boolean visibility in the form that `read` wants."""
        return visible

    def seen(self, table: Tensor) -> Tensor:
        """Back from `table`."""
        return table

    def visible(self, table: Tensor | None, n: Tensor) -> Visible:
        """What all layers of a step share: `table` broadcasts to (B, H, K, N), n to (B, H, K, 1)."""
        return Visible(table, n)

    def source(self, slots: TokenSlots) -> Source:
        """The encoded source, ready to be read at every step."""
        table = None if slots.mask is None else self.table(slots.mask[:, None, None])
        visible = self.visible(table, _visible_counts(slots))
        return Source(slots.keys.contiguous(), slots.values.contiguous(), visible)

    def read(self, q: Tensor, keys: Tensor, values: Tensor, visible: Visible, offset: Tensor | None = None) -> Tensor:
        """(B, H, K, d) queries, (B, H, N, d) keys and values -> (B, H, K, d); `offset` (1, H, 1, 1)."""
        scores = _products(q, keys.transpose(-1, -2))
        weights = self.weights(scores if offset is None else scores.add_(offset), visible)
        return _products(weights.to(values.dtype), values)

    def weights(self, scores: Tensor, visible: Visible) -> Tensor:
        """(B, H, K, N) scores, which may be overwritten -> weights."""
        assert visible.n is not None
        return self.rule.weights(scores.to(visible.n.dtype), visible.n, visible.table)


class ReluReader(Reader):
    """ReLU(s) times a factor of the row, which goes into the table, or with padding into a source's values."""

    def table(self, visible: Tensor) -> Tensor:
        return visible.float()

    def seen(self, table: Tensor) -> Tensor:
        return table != 0

    def visible(self, table: Tensor | None, n: Tensor) -> Visible:
        assert isinstance(self.rule, ReluPlain)
        scale = self.rule.row_scale(n)
        return Visible(scale if table is None else table if scale is None else table * scale, None)

    def source(self, slots: TokenSlots) -> Source:
        scale = self.visible(None, _visible_counts(slots)).table
        values = slots.values if slots.mask is None else slots.values * slots.mask[:, None, :, None]
        values = values if scale is None else values * scale.to(values.dtype)
        return Source(slots.keys.contiguous(), values.contiguous(), Visible(None, None))

    def weights(self, scores: Tensor, visible: Visible) -> Tensor:
        weights = scores.relu_()
        return weights if visible.table is None else weights.mul_(visible.table)


class SoftmaxReader(Reader):
    """Softmax: the table is a bias, so low that hidden slots get exactly 0."""

    def table(self, visible: Tensor) -> Tensor:
        return torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, -1e30)

    def seen(self, table: Tensor) -> Tensor:
        return table == 0

    def visible(self, table: Tensor | None, n: Tensor) -> Visible:
        return Visible(table, None)

    def weights(self, scores: Tensor, visible: Visible) -> Tensor:
        return torch.softmax(scores if visible.table is None else scores.add_(visible.table), -1)


def reader_of(rule: Rule) -> Reader:
    """The reader for `rule`; a subclass that changes the mathematics falls back to the general one."""
    if isinstance(rule, ReluPlain) and type(rule).activate is ReluPlain.activate:
        return ReluReader(rule)
    if sdpa.reads(rule):
        return SoftmaxReader(rule)
    return Reader(rule)


def _visible_counts(slots: TokenSlots) -> Tensor:
    """n of each source as the rules want it, (B, 1, 1, 1)."""
    batch, _, length, _ = slots.keys.shape
    exact = torch.float64 if slots.keys.dtype == torch.float64 else torch.float32
    if slots.mask is None:
        return torch.full((batch, 1, 1, 1), float(length), dtype=exact, device=slots.keys.device)
    return slots.mask.sum(-1).clamp_min(1).to(exact).view(batch, 1, 1, 1)


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Matrix products of each source and head; `bmm` starts quicker than `matmul`."""
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1)).view(*a.shape[:3], b.size(-1))
