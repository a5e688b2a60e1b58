"""The rules of docs/protocol.md, each on numbers that it must decide."""

from __future__ import annotations

import math
from typing import Any

import pytest

from reluformer.errors import ConfigError
from reluformer.study import verdicts
from reluformer.study.experiment import Condition
from reluformer.study.verdicts import MeasuredMeans, Sides, compare, reason, student


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


def test_a_condition_may_have_a_margin_of_its_own() -> None:
    worse = seeds(3.05, 3.07, 3.03)  # by 1.7 %
    assert compare(worse, BASE, condition("not_worse"))[0] == "fails"
    outcome, told = compare(worse, BASE, condition("not_worse", margin=2.5))
    assert outcome == "holds" and told.endswith("margin 2.5 %")
    with pytest.raises(ConfigError, match="takes no margin"):
        condition("better", margin=2.5)


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


# ------------------------------------------------------------------ conditions and means in words


def asking(test: str, metric: str, **options: Any) -> Condition:
    return Condition(part="rules", test=test, metric=metric, a={}, **options)


RULES = Sides("", {"rule": "relu"}, {"rule": "softmax"})
TRAINED = Sides("One slot", {"rule": "relu", "trained": "1024"}, {"rule": "softmax", "trained": "1024"})


@pytest.mark.parametrize(
    ("asked", "sides", "expected"),
    [
        (asking("worse", "loss"), RULES, "relu worse than softmax in validation cross-entropy"),
        (asking("worse", "loss", by=10), RULES, "relu worse than softmax by 10 % in validation cross-entropy"),
        (asking("better", "bleu", by=1), RULES, "relu better than softmax by 1 in BLEU"),
        (
            asking("not_worse", "accuracy@4096"),
            TRAINED,
            "relu not worse than softmax in share of right answers at 4096 (One slot, trained 1024)",
        ),
        (
            asking("above", "margin_active", limit=0.2),
            Sides("", {"rule": "relu"}, None),
            "share of rows beyond the entropy margin of relu above 0.2",
        ),
        (
            asking("above", "speed@relu@softmax", limit=0.9),
            Sides("", {}, None),
            "times as fast in training, relu over softmax above 0.9",
        ),
    ],
)
def test_a_condition_is_a_sentence(asked: Condition, sides: Sides, expected: str) -> None:
    assert reason(asked, sides) == expected


def test_what_was_measured_is_told_once() -> None:
    """Two conditions on the same rule share a line; another place has its own."""
    means = MeasuredMeans()
    means.add("loss", RULES, {0: 2.0, 1: 3.0}, {0: 1.0})
    means.add("loss", Sides("", {"rule": "relu"}, {"rule": "rela"}), {0: 2.0, 1: 3.0}, {0: math.inf})
    means.add("accuracy@64", TRAINED, {0: 0.25}, {})
    means.add("bleu", RULES, {}, {})
    means.add("speed@relu@softmax", Sides("", {}, None), {0: 1.0}, {})
    assert means.lines() == (
        "validation cross-entropy: relu 2.500, softmax 1.000, rela diverged",
        "share of right answers at 64 (One slot, trained 1024): relu 0.250",
        "times as fast in training, relu over softmax: 1.00",
    )
