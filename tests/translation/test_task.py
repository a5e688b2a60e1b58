from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from reluformer.training.config import TrainingConfig
from reluformer.translation.batches import Batch
from reluformer.translation.task import TrainingBatches, ValidationBatches


@dataclass
class Made:
    """Segments whose every source token is the segment's number."""

    lengths: np.ndarray

    @property
    def source_lengths(self) -> np.ndarray:
        return self.lengths

    @property
    def target_lengths(self) -> np.ndarray:
        return self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Pair:
        return Pair(np.full(self.lengths[index], index + 10))


@dataclass
class Pair:
    source: np.ndarray

    @property
    def target(self) -> np.ndarray:
        return self.source


def made(segments: int = 60) -> Made:
    return Made(np.random.default_rng(0).integers(3, 20, segments))


def numbers(batches: list[Batch]) -> list[int]:
    return sorted(int(row[0]) for batch in batches for row in batch.source)


def test_processes_share_the_batch_of_one_with_the_tokens_of_all() -> None:
    alone = TrainingBatches(made(), TrainingConfig(tokens_per_batch=120, accumulate=2))
    shares = [
        TrainingBatches(made(), TrainingConfig(tokens_per_batch=60, accumulate=2), rank, world=2) for rank in (0, 1)
    ]
    for step in (1, 2, 9):
        together = [batch for share in shares for batch in share.batches(step)]
        assert numbers(together) == numbers(alone.batches(step))


def test_a_share_has_at_most_a_row_more_than_the_tokens_of_a_batch() -> None:
    lengths = np.random.default_rng(0).integers(3, 60, 200)
    shares = [TrainingBatches(Made(lengths), TrainingConfig(tokens_per_batch=64), rank, world=3) for rank in range(3)]
    batches = [batch for share in shares for step in range(1, 60) for batch in share.batches(step)]
    assert max(batch.source.numel() for batch in batches) > 64
    assert all((len(batch.source) - 1) * batch.source.shape[1] <= 64 for batch in batches)


def test_batches_depend_on_the_step_alone() -> None:
    config = TrainingConfig(tokens_per_batch=64)
    data = TrainingBatches(made(), config)
    far = [batch.source for batch in data.batches(40)]
    data.batches(3)
    for first, again in zip(far, TrainingBatches(made(), config).batches(40), strict=True):
        assert torch.equal(first, again.source)


def test_a_process_without_a_row_gets_an_empty_batch() -> None:
    data = TrainingBatches(Made(np.array([16, 16])), TrainingConfig(tokens_per_batch=8), rank=1, world=2)
    (batch,) = data.batches(1)
    assert batch.source.shape == (0, 1) and batch.target_tokens == 0


def test_validation_takes_every_segment_once() -> None:
    shares = [list(ValidationBatches(made(), 64, rank, world=2)) for rank in (0, 1)]
    assert numbers(shares[0] + shares[1]) == list(range(10, 70))
    assert len(shares[0]) == len(shares[1])


def test_validation_makes_room_for_a_segment_longer_than_a_batch() -> None:
    (batch,) = ValidationBatches(Made(np.array([100])), 10)
    assert batch.target_tokens == 100


def test_little_is_wasted_on_padding() -> None:
    lengths = np.random.default_rng(1).lognormal(3.2, 0.6, 20_000).astype(int) + 2
    padding = TrainingBatches(Made(lengths), TrainingConfig(tokens_per_batch=4096)).padding
    assert 0 < padding < 0.05
