from __future__ import annotations

import pytest
import torch
from torch import nn

from reluformer.errors import ArgumentError
from reluformer.training.optimizer import MovingAverage, mean_of


def scalar_module(value: float) -> nn.Linear:
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, value)
    return module


def test_moving_average_by_hand() -> None:
    module = scalar_module(0.0)
    average = MovingAverage(module, decay=0.5)
    nn.init.constant_(module.weight, 8.0)
    average.update(1)  # early decay (1 + 1) / (10 + 1)
    assert average.average[0].item() == pytest.approx(8 * 9 / 11)
    average.update(100)
    assert average.average[0].item() == pytest.approx((8 * 9 / 11 + 8) / 2)


def test_in_place_swaps_and_swaps_back_even_after_an_error() -> None:
    module = scalar_module(1.0)
    average = MovingAverage(module, decay=0.5)
    nn.init.constant_(module.weight, 3.0)
    inside = []

    def fail() -> None:
        with average.in_place():
            inside.append(module.weight.item())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert inside == [1.0]
    assert module.weight.item() == 3.0
    assert average.average[0].item() == 1.0


def test_mean_of_several_states() -> None:
    states = [{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, 6.0])}]
    mean = mean_of(states)
    assert mean["w"].tolist() == [2.0, 4.0]
    assert mean["w"].dtype == torch.float32


def test_nothing_has_no_mean() -> None:
    with pytest.raises(ArgumentError, match="no weights"):
        mean_of([])
