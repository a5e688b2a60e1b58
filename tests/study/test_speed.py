"""Every rule takes its turn, the tiers read what they say, and a plan is estimated from a few updates."""

from __future__ import annotations

import pytest
import torch

from reluformer import kernels, memory
from reluformer.study import speed
from reluformer.study.experiment import load
from reluformer.study.measures import EVALUATION
from reluformer.study.plan import Run, make_plan
from reluformer.study.trainings import Context

RULES = len(load("ffn").parts["rules"].grid["rule"].choices)


def test_the_eager_tier_reads_through_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    picked = kernels.run

    def told(impl: str, *rest: object) -> object:
        used.append(impl)
        return picked(impl, *rest)

    monkeypatch.setattr(kernels, "run", told)
    q = torch.randn(1, 1, 4, 8)
    for name in ("kernel", "eager"):
        with speed.tier(name):
            memory.read(q, q, q, "softmax")
    memory.read(q, q, q, "softmax")
    assert used == ["auto", "reference", "auto"]


def test_a_run_measures_training_translation_and_memory(context: Context) -> None:
    model = {"vocab_size": 50, "width": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "slots": 16}
    rules = {"softmax": {"rule": "softmax"}, "reluformer": {"rule": "relu", "regularizer": True}}
    content = {"model": model, "rules": rules, "tiers": ["eager"], "lengths": [8], "tokens": 16, "rounds": 1, "seed": 0}
    result = speed.run(Run({"study": 1, "kind": "speed", **content}), context)
    for what in ("training", "translation"):
        assert result[what]["eager 8"]["softmax"]["ratio"] == 1
        assert result[what]["eager 8"]["reluformer"]["tokens_per_second"] > 0
    assert result["memory"]["eager 8"]["reluformer"] > 0


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that were measured; every cell or update takes two seconds."""
    runs: list[Run] = []

    def seconds(run: Run) -> float:
        runs.append(run)
        return 2.0

    for kind in speed.SECONDS:
        monkeypatch.setitem(speed.SECONDS, kind, seconds)
    return runs


def test_what_differs_in_seed_length_or_learning_rate_alone_is_measured_once(measured: list[Run]) -> None:
    plan, told = make_plan(["ffn"], "small", 3), list[str]()
    found = speed.estimate(plan, list(plan.runs), told.append)
    trainings = [run for run in plan.runs.values() if run.kind == "training"]
    assert len(trainings) == 5 * RULES and len(measured) == RULES, "of each rule two trials and three seeds"
    assert [line.split(":")[0] for line in told] == [f"{i} of {RULES}" for i in range(1, RULES + 1)]
    assert (found.kinds, found.measured) == (RULES, RULES)
    cells = sum(run.content["training"]["updates"] * 1500 for run in trainings)
    assert (found.runs, found.target_tokens) == (8 * RULES, cells)
    assert found.seconds == 2 * cells + 3 * RULES * speed.OTHER_SECONDS[EVALUATION]


def test_other_sizes_rules_and_terms_are_measured_on_their_own(measured: list[Run]) -> None:
    plan = make_plan(["recall", "regularizer"], "small", 1)
    speed.estimate(plan, list(plan.runs))
    recalls = [run.content for run in measured if run.kind == "recall"]
    assert {content["training"]["slots"] for content in recalls} == {128, 1024}
    assert len({(str(c["task"]), str(c["rule"]), c["training"]["slots"]) for c in recalls}) == len(recalls)
    terms = [run.content["training"].get("regularizer") for run in measured if run.kind == "training"]
    assert len(terms) == 10 and len([term for term in terms if term]) == 6


def test_a_long_update_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = []
    monkeypatch.setattr(speed, "LONG_SECONDS", 0.0)
    assert speed.seconds_of(lambda: updates.append(1)) >= 0
    assert len(updates) == 1


def test_what_patience_does_not_reach_is_taken_to_be_like_its_neighbours(
    measured: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "PATIENCE", -1.0)
    plan = make_plan(["ffn", "recall"], "small", 1)
    found = speed.estimate(plan, list(plan.runs))
    assert {run.kind for run in measured} == {"training", "recall"} and len(measured) == found.measured == 2
    assert found.kinds > 30
    everything = 2 * sum(speed.amount(run) for run in plan.runs.values() if run.kind in ("training", "recall"))
    assert found.seconds == everything + RULES * speed.OTHER_SECONDS[EVALUATION]


def test_neighbours_are_of_the_same_kind() -> None:
    plan = make_plan(["ffn", "recall"], "small", 1)
    trainings = [run for run in plan.runs.values() if run.kind == "training"][:3]
    kinds = [*trainings, *[run for run in plan.runs.values() if run.kind == "recall"][:3]]
    assert [speed.nearest_measured(i, kinds, [0, 2, 5]) for i in range(6)] == [0, 0, 2, 5, 5, 5]
