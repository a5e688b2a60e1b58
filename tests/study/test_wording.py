"""Conditions and means in words."""

from __future__ import annotations

import math
from typing import Any

import pytest

from reluformer.study.experiment import Condition
from reluformer.study.wording import Figures, Sides, reason


def condition(test: str, metric: str, **options: Any) -> Condition:
    return Condition(part="rules", test=test, metric=metric, a={}, **options)


RULES = Sides("", {"rule": "relu"}, {"rule": "softmax"})
TRAINED = Sides("One slot", {"rule": "relu", "trained": "1024"}, {"rule": "softmax", "trained": "1024"})


@pytest.mark.parametrize(
    ("asked", "sides", "expected"),
    [
        (condition("worse", "loss"), RULES, "relu worse than softmax in validation cross-entropy"),
        (condition("worse", "loss", by=10), RULES, "relu worse than softmax by 10 % in validation cross-entropy"),
        (condition("better", "bleu", by=1), RULES, "relu better than softmax by 1 in BLEU"),
        (
            condition("not_worse", "accuracy@4096"),
            TRAINED,
            "relu not worse than softmax in share of right answers at 4096 (One slot, trained 1024)",
        ),
        (
            condition("above", "margin_active", limit=0.2),
            Sides("", {"rule": "relu"}, None),
            "share of rows beyond the entropy margin of relu above 0.2",
        ),
        (
            condition("above", "speed@relu@softmax", limit=0.9),
            Sides("", {}, None),
            "times as fast in training, relu over softmax above 0.9",
        ),
    ],
)
def test_a_condition_is_a_sentence(asked: Condition, sides: Sides, expected: str) -> None:
    assert reason(asked, sides) == expected


def test_what_was_measured_is_told_once() -> None:
    """Two conditions on the same rule share a line; another place has its own."""
    figures = Figures()
    figures.add("loss", RULES, {0: 2.0, 1: 3.0}, {0: 1.0})
    figures.add("loss", Sides("", {"rule": "relu"}, {"rule": "rela"}), {0: 2.0, 1: 3.0}, {0: math.inf})
    figures.add("accuracy@64", TRAINED, {0: 0.25}, {})
    figures.add("bleu", RULES, {}, {})
    figures.add("speed@relu@softmax", Sides("", {}, None), {0: 1.0}, {})
    assert figures.lines() == (
        "validation cross-entropy: relu 2.500, softmax 1.000, rela diverged",
        "share of right answers at 64 (One slot, trained 1024): relu 0.250",
        "times as fast in training, relu over softmax: 1.00",
    )
