"""Batches: which segments make up which step, as a pure function of (seed, step).

Segments of about equal length on both sides share a bucket. An epoch shuffles each bucket,
lays the buckets end to end, cuts that line into batches, and shuffles the batches. The cuts
depend on bucket sizes alone, so every epoch has the same number of steps, and the batch of
any step is found without looking at the steps before it. Resuming exactly, and splitting a
batch over processes, then need no state at all.

Where sources have weights, an epoch holds places instead of segments: weight times as many as
the source has segments. A place draws anew in each epoch from a few segments of like length.
Buckets and cuts depend on the places alone, so all of the above holds for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reluformer.errors import ArgumentError

Lengths = npt.NDArray[np.integer] | Sequence[int]
Indices = npt.NDArray[np.int64]
SourceWeights = Sequence[tuple[int, float]]
"""For each source its number of segments and its weight."""
_STRIP_BATCHES = 3  # least padding on sentences and on documents, for 2048 to 8192 tokens a batch


class BatchPlan:
    """A batch plan knows the batches of all steps of a training.

    `tokens_per_batch` bounds rows times the longest row, on the longer of the two sides:
    neither the source nor the target of a batch has more cells than that, padding included.

    Args:
        source_lengths: Source tokens of every segment, (N,).
        target_lengths: Target tokens of every segment, (N,).
        tokens_per_batch: The most cells of a batch on either side.
        seed: Another seed gives another order.
        weights: How many segments each source has, in order, and how often an epoch shows each of them on
            average. Default: all of them once.

    Raises:
        ArgumentError: The longest segment does not fit into a batch, or the lengths do not match.

    Example:
        >>> from reluformer.translation.batches import BatchPlan
        >>> plan = BatchPlan([3, 5, 3, 5], [3, 5, 3, 5], tokens_per_batch=10, seed=0)
        >>> plan.steps_per_epoch
        2
        >>> sorted(plan.batch(0) + plan.batch(1))
        [0, 1, 2, 3]
    """

    def __init__(
        self,
        source_lengths: Lengths,
        target_lengths: Lengths,
        tokens_per_batch: int,
        seed: int,
        weights: SourceWeights = (),
    ) -> None:
        self._source, self._target = _checked(source_lengths, target_lengths, tokens_per_batch)
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self._places: WeightedPlaces | None = None
        source, target = self._source, self._target
        if any(weight != 1 for _, weight in weights):
            line = np.argsort(_buckets(source, target, tokens_per_batch), kind="stable")
            self._places = WeightedPlaces(line, weights)
            source, target = self._places.longest(source), self._places.longest(target)
        self._bucket = _buckets(source, target, tokens_per_batch)
        line = np.argsort(self._bucket, kind="stable")
        self._cuts = _cuts(_upper(source)[line], _upper(target)[line], tokens_per_batch)
        self._epoch: tuple[int, Indices, Indices] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in which every segment occurs exactly once, or as often as its weight says."""
        return len(self._cuts) - 1

    def batch(self, step: int, rank: int = 0, world: int = 1) -> list[int]:
        """Returns the numbers of the segments of a step.

        The shares of all ranks together are the batch. A share is empty only if the batch has
        fewer rows than `world`.

        Args:
            step: The global step, from 0.
            rank: The process whose share is wanted.
            world: The number of processes.
        """
        if step < 0 or not 0 <= rank < world:
            raise ArgumentError(
                f"no batch for step={step}, rank={rank}, world={world}; step >= 0 and 0 <= rank < world"
            )
        epoch, position = divmod(step, self.steps_per_epoch)
        segments, order = self._plan(epoch)
        place = order[position]
        rows: list[int] = segments[self._cuts[place] : self._cuts[place + 1]].tolist()
        return rows[rank::world]

    @property
    def padding(self) -> float:
        """The share of cells that are padding, both sides together, over the first epoch."""
        segments, _ = self._plan(0)
        return padded_share(np.split(segments, self._cuts[1:-1]), self._source, self._target)

    def _plan(self, epoch: int) -> tuple[Indices, Indices]:
        """Returns all segments of an epoch in a line, and the order of its batches; the last epoch is kept."""
        if self._epoch is None or self._epoch[0] != epoch:
            # raw bits, because numpy keeps those equal between versions, but not its own shuffling
            bits = np.random.PCG64(np.random.SeedSequence([self.seed, epoch]))
            ties = bits.random_raw(len(self._bucket))
            segments = np.lexsort((ties, self._bucket)).astype(np.int64)
            order = np.argsort(bits.random_raw(self.steps_per_epoch), kind="stable")
            if self._places is not None:
                segments = self._places.draw(bits)[segments]
            self._epoch = (epoch, segments, order.astype(np.int64))
        return self._epoch[1], self._epoch[2]


class WeightedPlaces:
    """The places of an epoch in which sources have weights.

    Segments of a source stand in a line, with neighbours of like length. A source of n segments and weight w has
    m = round(n w) places, at least one. Place j covers the stretch from j n/m to (j + 1) n/m of the line, and draws a
    point of it. So every segment is shown w times an epoch on average, exactly w times if w is a whole number, and
    otherwise a number of times next to w.

    Args:
        line: All segments, (N,), ordered so that neighbours are alike.
        weights: The number of segments of each source and its weight; segments of a source have consecutive numbers.

    Raises:
        ArgumentError: The sources do not have N segments together, or a weight is not above 0.
    """

    def __init__(self, line: Indices, weights: SourceWeights) -> None:
        if sum(count for count, _ in weights) != len(line) or any(weight <= 0 for _, weight in weights):
            raise ArgumentError(
                f"weights {list(weights)} do not fit {len(line)} segments; give the segments of each source and a "
                "weight above 0"
            )
        parts, first = [], 0
        for count, weight in weights:
            if count:
                own = line[(line >= first) & (line < first + count)]
                parts.append((own, max(1, round(count * weight))))
            first += count
        self._line: Indices = np.concatenate([own for own, _ in parts])
        starts = np.cumsum([0, *(len(own) for own, _ in parts)])
        self._first: Indices = np.concatenate([np.full(m, start) for start, (_, m) in zip(starts, parts, strict=False)])
        self._size: Indices = np.concatenate([np.full(m, len(own)) for own, m in parts])
        self._count: Indices = np.concatenate([np.full(m, m) for _, m in parts])
        self._number: Indices = np.concatenate([np.arange(m) for _, m in parts])
        self._source: Indices = np.concatenate([np.full(m, source) for source, (_, m) in enumerate(parts)])
        self._low = self._first + self._number * self._size // self._count
        self._high = self._first - (-(self._number + 1) * self._size // self._count)

    def longest(self, lengths: Indices) -> Indices:
        """Returns the greatest length that each place may draw, (places,)."""
        along = np.append(lengths[self._line], 0)  # a stretch may end where the line does
        borders = np.stack([self._low, self._high], axis=1).ravel()
        longest: Indices = np.maximum.reduceat(along, borders)[::2]
        return longest

    def draw(self, bits: np.random.PCG64) -> Indices:
        """Returns the segment of each place, (places,), from as many raw numbers."""
        share = (bits.random_raw(len(self._low)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        # Places of a source that has more of them than segments draw the same point, so that none is preferred.
        share = np.where(self._count > self._size, share[self._source], share)
        point = ((self._number + share) * self._size / self._count).astype(np.int64) + self._first
        drawn: Indices = self._line[np.clip(point, self._low, self._high - 1)]
        return drawn


def sorted_batches(source_lengths: Lengths, target_lengths: Lengths, tokens_per_batch: int) -> Iterator[list[int]]:
    """Yields every segment once, in batches of similar length with short targets first, for validation."""
    source, target = _checked(source_lengths, target_lengths, tokens_per_batch)
    line = np.argsort(_buckets(source, target, tokens_per_batch), kind="stable")
    for start, end in pairwise(_cuts(source[line], target[line], tokens_per_batch)):
        yield line[start:end].tolist()


def padded_share(batches: Sequence[Indices], source: Lengths, target: Lengths) -> float:
    """Returns the share of cells that are padding when these batches are collated, both sides together."""
    cells = tokens = 0
    for batch in batches:
        for lengths in (np.asarray(source)[batch], np.asarray(target)[batch]):
            cells += len(batch) * int(lengths.max())
            tokens += int(lengths.sum())
    return 1 - tokens / cells


def _checked(source: Lengths, target: Lengths, tokens_per_batch: int) -> tuple[Indices, Indices]:
    sources: Indices = np.asarray(source, dtype=np.int64)
    targets: Indices = np.asarray(target, dtype=np.int64)
    if sources.ndim != 1 or sources.shape != targets.shape or not len(sources):
        raise ArgumentError(f"expected a source and a target length a segment, got {sources.shape} and {targets.shape}")
    if min(sources.min(), targets.min()) < 1:
        raise ArgumentError("a segment has at least one token on each side")
    longest = _upper(np.array([max(sources.max(), targets.max())]))[0]
    if longest > tokens_per_batch:
        raise ArgumentError(
            f"tokens_per_batch={tokens_per_batch} has no room for the longest segment; "
            f"use at least {longest}, or shorter segments"
        )
    return sources, targets


def _upper(lengths: Indices) -> Indices:
    """Rounds lengths up to those that buckets have: every one below 64, then steps of about 3 %."""
    width: Indices = 2 ** np.maximum(np.floor(np.log2(lengths)).astype(np.int64) - 5, 0)
    upper: Indices = -(-lengths // width) * width
    return upper


def _buckets(source: Indices, target: Indices, tokens_per_batch: int) -> Indices:
    """Returns the bucket of each segment, numbered so that neighbours are alike on both sides.

    Target lengths are gathered into strips of a few batches each; a strip is swept by source
    length, upwards and downwards by turns.
    """
    source, target = _upper(source), _upper(target)
    _, which = np.unique(target, return_inverse=True)
    strip_of_length, tokens = [0], 0
    for tokens_of_length in np.bincount(which, weights=np.maximum(source, target)):
        tokens += int(tokens_of_length)
        full = tokens >= _STRIP_BATCHES * tokens_per_batch
        strip_of_length.append(strip_of_length[-1] + full)
        tokens = 0 if full else tokens
    strip = np.array(strip_of_length)[which]
    swept = np.where(strip % 2 == 0, source, -source)
    order = np.lexsort((target, swept, strip))
    line = np.stack([strip, swept, target])[:, order]
    begins = np.concatenate([[False], (line[:, 1:] != line[:, :-1]).any(axis=0)])
    bucket = np.empty(len(order), dtype=np.int64)
    bucket[order] = np.cumsum(begins)
    return bucket


def _cuts(source: Indices, target: Indices, tokens_per_batch: int) -> Indices:
    """Returns where a line of segments is cut so that every batch is as large as `tokens_per_batch` allows."""
    longer = np.maximum(source, target)
    cuts = [0]
    while cuts[-1] < len(longer):
        start = cuts[-1]
        window = longer[start : start + tokens_per_batch // int(longer[start])]
        cells = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)
        cuts.append(start + int(np.searchsorted(cells, tokens_per_batch, side="right")))
    return np.array(cuts, dtype=np.int64)


class TokenPair(Protocol):
    """A token pair has the token ids of a source and its target, each with its end token; a `Segment` is one."""

    @property
    def source(self) -> npt.NDArray[np.integer]: ...
    @property
    def target(self) -> npt.NDArray[np.integer]: ...


@dataclass(frozen=True)
class Batch:
    """A batch has rows padded on the right. Masks are True where a token is, None where nothing is padded."""

    source: Tensor
    """(B, S) int64"""
    source_mask: Tensor | None
    """(B, S) bool"""
    target_in: Tensor
    """(B, T) int64: the begin token, then the target without its last"""
    target_out: Tensor
    """(B, T) int64: what is to be predicted"""
    target_mask: Tensor | None
    """(B, T) bool"""
    target_tokens: int
    """The number of tokens to predict, without padding."""

    @property
    def inputs(self) -> tuple[Tensor | None, ...]:
        """The arguments of the training objective."""
        return self.source, self.target_in, self.target_out, self.source_mask, self.target_mask

    @property
    def row_masks(self) -> dict[str, Tensor | None]:
        """The masks of real queries, by the part of the model that reads."""
        return {"encoder": self.source_mask, "decoder": self.target_mask}

    @property
    def cells(self) -> int:
        """The number of positions of both sides, padding included."""
        return self.source.numel() + self.target_in.numel()

    @property
    def padding(self) -> int:
        """The number of positions of both sides that hold padding."""
        masks = (mask for mask in (self.source_mask, self.target_mask) if mask is not None)
        return sum(mask.numel() - int(mask.sum()) for mask in masks)

    def to(self, device: torch.device | str) -> Batch:
        """Returns the same batch on `device`."""
        return Batch(
            self.source.to(device),
            None if self.source_mask is None else self.source_mask.to(device),
            self.target_in.to(device),
            self.target_out.to(device),
            None if self.target_mask is None else self.target_mask.to(device),
            self.target_tokens,
        )


def collate(items: Sequence[TokenPair], pad_id: int, begin_id: int) -> Batch:
    """Pads segments to one batch.

    Args:
        items: The segments, B of them.
        pad_id: The token that fills the rows.
        begin_id: The token that every target begins with.

    Returns:
        The source (B, S) and the target (B, T) with their masks.

    Raises:
        ArgumentError: There are no segments.
    """
    if not items:
        raise ArgumentError("a batch needs at least one segment")
    source, source_mask = _padded([item.source for item in items], pad_id)
    target_out, target_mask = _padded([item.target for item in items], pad_id)
    target_in = target_out.roll(1, dims=1)
    target_in[:, 0] = begin_id
    if target_mask is not None:
        # the end token that the roll moved one place on is no input
        target_in.masked_fill_(~target_mask, pad_id)
    target_tokens = sum(len(item.target) for item in items)
    return Batch(source, source_mask, target_in, target_out, target_mask, target_tokens)


def _padded(rows: Sequence[npt.NDArray[np.integer]], pad_id: int) -> tuple[Tensor, Tensor | None]:
    lengths = np.array([len(row) for row in rows])
    cells = np.full((len(rows), lengths.max()), pad_id, dtype=np.int64)
    for cell_row, row in zip(cells, rows, strict=True):
        cell_row[: len(row)] = row
    mask = None if (lengths == lengths[0]).all() else torch.from_numpy(np.arange(lengths.max()) < lengths[:, None])
    return torch.from_numpy(cells), mask
