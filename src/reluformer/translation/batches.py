"""Batches: which segments make up which step, as a pure function of (seed, step).

Segments of about equal length on both sides share a bucket. An epoch shuffles each bucket,
lays the buckets end to end, cuts that line into batches, and shuffles the batches. The cuts
depend on bucket sizes alone, so every epoch has the same number of steps, and the batch of
any step is found without looking at the steps before it. Resuming exactly, and splitting a
batch over processes, then need no state at all.
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

    def __init__(self, source_lengths: Lengths, target_lengths: Lengths, tokens_per_batch: int, seed: int) -> None:
        self._source, self._target = _checked(source_lengths, target_lengths, tokens_per_batch)
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self._bucket = _buckets(self._source, self._target, tokens_per_batch)
        line = np.argsort(self._bucket, kind="stable")
        self._cuts = _cuts(_upper(self._source)[line], _upper(self._target)[line], tokens_per_batch)
        self._epoch: tuple[int, Indices, Indices] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in which every segment occurs exactly once."""
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
            self._epoch = (epoch, segments, order.astype(np.int64))
        return self._epoch[1], self._epoch[2]


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
