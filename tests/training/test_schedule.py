from __future__ import annotations

import math

import pytest

from reluformer.errors import ConfigError
from reluformer.training.config import TrainingConfig
from reluformer.training.optimizer import learning_rate


def rates(at: list[int], **values: object) -> list[float]:
    config = TrainingConfig(lr=0.01, **values)
    return [learning_rate(config, update) for update in at]


def test_warm_up_is_linear_and_reaches_the_highest_rate() -> None:
    assert rates([1, 2, 4], warmup=4) == pytest.approx([0.0025, 0.005, 0.01])


def test_inverse_sqrt_halves_when_updates_are_four_times_the_warm_up() -> None:
    assert rates([4, 16, 64], warmup=4, schedule="inverse_sqrt") == pytest.approx([0.01, 0.005, 0.0025])


def test_cosine_is_half_in_the_middle_and_nearly_zero_at_the_end() -> None:
    middle, last = rates([15, 24], warmup=5, updates=24, schedule="cosine")
    assert middle == pytest.approx(0.005)
    assert last == pytest.approx(0.01 * 0.5 * (1 + math.cos(math.pi * 19 / 20)))


def test_constant_stays() -> None:
    assert rates([1, 100], warmup=0, schedule="constant") == [0.01, 0.01]


def test_inverse_sqrt_without_warm_up_starts_at_the_highest_rate() -> None:
    assert rates([1, 4], warmup=0) == pytest.approx([0.01, 0.005])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"schedule": "cosine", "updates": 10, "warmup": 10}, "warmup"),
        ({"ema_decay": 0.9, "average_last": 2}, "unset one"),
        ({"average_last": 9, "keep_checkpoints": 3}, "keep_checkpoints"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"learning_rate": 1}, "unknown key"),
    ],
)
def test_what_does_not_fit_together_is_refused(values: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        TrainingConfig(**values)
