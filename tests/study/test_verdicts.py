"""The rules of docs/protocol.md, each on numbers that it must decide."""

from __future__ import annotations

import math
from typing import Any

import pytest

from reluformer.study import verdicts
from reluformer.study.experiment import Condition
from reluformer.study.intervals import student
from reluformer.study.verdicts import compare


def condition(test: str, metric: str = "loss", **options: Any) -> Condition:
    return Condition(part="rules", test=test, metric=metric, a={"rule": "relu"}, b={"rule": "softmax"}, **options)


def seeds(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


@pytest.mark.parametrize(
    ("confidence", "degrees", "expected"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.90, 2, 2.920), (0.95, 9, 2.262), (0.99, 30, 2.750)],
)
def test_quantiles_of_student(confidence: float, degrees: int, expected: float) -> None:
    """Against the printed tables, to their digits."""
    assert student(confidence, degrees) == pytest.approx(expected, abs=6e-4)


BASE = seeds(3.00, 3.02, 2.98)


@pytest.mark.parametrize(
    ("a", "expected"),
    [
        (seeds(2.90, 2.92, 2.88), {"better": "holds", "worse": "fails", "equivalent": "fails", "not_worse": "holds"}),
        (seeds(3.10, 3.12, 3.08), {"better": "fails", "worse": "holds", "equivalent": "fails", "not_worse": "fails"}),
        (
            seeds(3.001, 3.018, 2.983),
            {"better": "fails", "worse": "fails", "equivalent": "holds", "not_worse": "holds"},
        ),
        (seeds(2.80, 3.30, 3.00), dict.fromkeys(("better", "worse", "equivalent", "not_worse"), "undecided")),
    ],
    ids=["clearly-lower", "clearly-higher", "the-same", "scattered"],
)
def test_losses_beside_each_other(a: dict[int, float], expected: dict[str, str]) -> None:
    """Lower is better, the margin is 1 % of 3.0."""
    for test, outcome in expected.items():
        assert compare(a, BASE, condition(test))[0] == outcome, test


def test_bleu_is_better_when_higher_and_its_margin_is_half_a_point() -> None:
    base = seeds(30.0, 31.0, 32.0)
    assert compare(seeds(31.2, 32.1, 33.2), base, condition("better", "bleu"))[0] == "holds"
    assert compare(seeds(30.1, 31.0, 31.9), base, condition("equivalent", "bleu"))[0] == "holds"


def test_worse_by_ten_percent() -> None:
    assert compare(seeds(3.40, 3.42, 3.38), BASE, condition("worse", by=10.0))[0] == "holds"
    assert compare(seeds(3.20, 3.22, 3.18), BASE, condition("worse", by=10.0))[0] == "fails"


def test_fewer_than_three_seeds_decide_nothing() -> None:
    outcome, told = compare(seeds(1.0, 1.0), seeds(3.0, 3.0), condition("better"))
    assert outcome == "undecided"
    assert "3 seeds are needed" in told


@pytest.mark.parametrize("test", ["better", "worse", "equivalent", "not_worse"])
def test_one_seed_has_no_interval(test: str) -> None:
    assert compare(seeds(2.97), seeds(3.0), condition(test)) == (
        "undecided",
        "1 % better, one seed; 3 seeds are needed",
    )


def test_seeds_are_paired() -> None:
    """A difference far below the spread between seeds is found, and only seeds that both have count."""
    assert compare(seeds(1.0, 2.0, 3.0), seeds(1.05, 2.05, 3.05), condition("better"))[0] == "holds"
    assert compare({0: 1.0, 1: 2.0, 7: 3.0}, seeds(1.05, 2.05, 3.05), condition("better"))[0] == "undecided"


def test_divergence_is_worse_than_anything() -> None:
    gone = seeds(math.inf, math.inf, math.inf)
    assert compare(gone, BASE, condition("worse", by=10.0))[0] == "holds"
    assert compare(gone, BASE, condition("not_worse"))[0] == "fails"
    assert compare(BASE, gone, condition("better"))[0] == "holds"
    assert compare(gone, gone, condition("better"))[0] == "undecided"
    assert compare(seeds(math.inf, 2.0, 2.0), BASE, condition("worse"))[0] == "undecided"
    assert compare(seeds(math.inf, 3.5, 3.5), BASE, condition("worse", by=10.0))[0] == "holds"
    assert compare(seeds(math.inf, 3.001, 3.021), BASE, condition("worse", by=10.0))[0] == "undecided"
    assert compare(seeds(math.inf, 3.001, 2.981), BASE, condition("not_worse"))[0] == "undecided"
    assert compare(seeds(3.0, 3.0, 3.0), seeds(math.inf, 3.0, 3.0), condition("not_worse"))[0] == "holds"


def test_seeds_where_both_diverged_tell_nothing() -> None:
    outcome, told = compare(seeds(*[math.inf] * 3), seeds(math.inf, math.inf, 3.0), condition("worse"))
    assert outcome == "undecided"
    assert "3 seeds are needed" in told


def test_what_decides_an_equivalence_is_told() -> None:
    _, told = compare(seeds(3.001, 3.018, 2.983), BASE, condition("not_worse"))
    assert "90 % [" in told and told.endswith("margin 1 %")


@pytest.mark.parametrize(
    ("values", "above", "below"),
    [((0.9, 0.91, 0.92), "holds", "fails"), ((0.1, 0.2, 0.1), "fails", "holds"), ((0.1, 0.9, 0.5), *["undecided"] * 2)],
)
def test_limits(values: tuple[float, ...], above: str, below: str) -> None:
    for test, outcome in (("above", above), ("below", below)):
        assert verdicts.against_limit(seeds(*values), condition(test, "margin_active", limit=0.5))[0] == outcome
