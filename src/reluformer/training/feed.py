"""Which batches a process gets in which update: a pure function of (seed, step, rank)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from reluformer.training.config import TrainingConfig
from reluformer.translation.batches import Batch, BatchPlan, Lengths, Pair, collate, sorted_batches
from reluformer.translation.tokenizer import BEGIN, PAD


class Segments(Protocol):
    """Pairs by number, with their lengths; a `SegmentStore` is one."""

    @property
    def source_lengths(self) -> Lengths: ...
    @property
    def target_lengths(self) -> Lengths: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Pair: ...


class Feed:
    """Batches for process `rank` of `world`.

    The plan is made for what all processes hold together, and its rows are dealt out:
    `world` processes with batches of n tokens see what one process sees with n * world.
    """

    def __init__(self, segments: Segments, config: TrainingConfig, rank: int = 0, world: int = 1) -> None:
        self._segments = segments
        self._accumulate = config.accumulate
        self._rank, self._world = rank, world
        self.plan = BatchPlan(
            segments.source_lengths, segments.target_lengths, config.tokens_per_batch * world, config.seed
        )

    @property
    def updates_per_epoch(self) -> float:
        return self.plan.steps_per_epoch / self._accumulate

    def batches(self, step: int) -> list[Batch]:
        """The batches of update number `step`, from 1 on."""
        first = (step - 1) * self._accumulate
        return [self._batch(self.plan.batch(first + i, self._rank, self._world)) for i in range(self._accumulate)]

    def _batch(self, numbers: Sequence[int]) -> Batch:
        return collate([self._segments[number] for number in numbers], PAD, BEGIN) if numbers else empty_batch()


class ValidationFeed:
    """Every segment once, in batches of like length, dealt out to the processes."""

    def __init__(self, segments: Segments, tokens_per_batch: int, rank: int = 0, world: int = 1) -> None:
        self._segments = segments
        longest = max(int(max(segments.source_lengths)), int(max(segments.target_lengths)))
        batches = sorted_batches(segments.source_lengths, segments.target_lengths, max(tokens_per_batch, 2 * longest))
        every = list(batches)
        self._mine = every[rank::world]
        self._empty = -(-len(every) // world) - len(self._mine)

    def __iter__(self) -> Iterator[Batch]:
        """As many on each process, some perhaps empty: sharded weights are gathered by all at once."""
        for numbers in self._mine:
            yield collate([self._segments[number] for number in numbers], PAD, BEGIN)
        for _ in range(self._empty):
            yield empty_batch()


def empty_batch() -> Batch:
    """No rows: the share of a process when there are fewer rows than processes."""
    nothing = torch.zeros(0, 1, dtype=torch.long)
    return Batch(nothing, None, nothing, nothing, None, 0)
