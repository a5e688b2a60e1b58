from __future__ import annotations

import pytest

from reluformer.study import estimate as estimating
from reluformer.study.experiment import load
from reluformer.study.plan import Run, make_plan

RULES = len(load("ffn").parts["rules"].grid["rule"].choices)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that were measured; every cell or update takes two seconds."""
    runs: list[Run] = []

    def seconds(run: Run) -> float:
        runs.append(run)
        return 2.0

    monkeypatch.setattr(estimating, "_seconds_a_cell", seconds)
    monkeypatch.setattr(estimating, "_seconds_an_update", seconds)
    return runs


def test_what_differs_in_seed_length_or_learning_rate_alone_is_measured_once(measured: list[Run]) -> None:
    plan, told = make_plan(["ffn"], "small", 3), list[str]()
    found = estimating.estimate(plan, list(plan.runs), told.append)
    trainings = [run for run in plan.runs.values() if run.kind == "training"]
    assert len(trainings) == 5 * RULES and len(measured) == RULES, "of each rule two trials and three seeds"
    assert [line.split(":")[0] for line in told] == [f"{i} of {RULES}" for i in range(1, RULES + 1)]
    assert (found.kinds, found.measured) == (RULES, RULES)
    cells = sum(run.content["training"]["updates"] * 1500 for run in trainings)
    assert (found.runs, found.target_tokens) == (8 * RULES, cells)
    assert found.seconds == 2 * cells + 3 * RULES * estimating.OTHER_SECONDS["examination"]


def test_other_sizes_rules_and_terms_are_measured_on_their_own(measured: list[Run]) -> None:
    plan = make_plan(["recall", "regularizer"], "small", 1)
    estimating.estimate(plan, list(plan.runs))
    recalls = [run.content for run in measured if run.kind == "recall"]
    assert {content["training"]["slots"] for content in recalls} == {128, 1024}
    assert len({(str(c["task"]), str(c["rule"]), c["training"]["slots"]) for c in recalls}) == len(recalls)
    terms = [run.content["training"].get("regularizer") for run in measured if run.kind == "training"]
    assert len(terms) == 10 and len([term for term in terms if term]) == 6


def test_a_long_update_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = []
    monkeypatch.setattr(estimating, "LONG_SECONDS", 0.0)
    assert estimating._seconds(lambda: updates.append(1)) >= 0
    assert len(updates) == 1


def test_what_patience_does_not_reach_is_taken_to_be_like_its_neighbours(
    measured: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimating, "PATIENCE", -1.0)
    plan = make_plan(["ffn", "recall"], "small", 1)
    found = estimating.estimate(plan, list(plan.runs))
    assert {run.kind for run in measured} == {"training", "recall"} and len(measured) == found.measured == 2
    assert found.kinds > 30
    everything = 2 * sum(estimating._amount(run) for run in plan.runs.values() if run.kind in ("training", "recall"))
    assert found.seconds == everything + RULES * estimating.OTHER_SECONDS["examination"]


def test_neighbours_are_of_the_same_kind() -> None:
    plan = make_plan(["ffn", "recall"], "small", 1)
    trainings = [run for run in plan.runs.values() if run.kind == "training"][:3]
    kinds = [*trainings, *[run for run in plan.runs.values() if run.kind == "recall"][:3]]
    assert [estimating._nearest(i, kinds, [0, 2, 5]) for i in range(6)] == [0, 0, 2, 5, 5, 5]
