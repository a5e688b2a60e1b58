"""Variance: theory and measurement agree. Recall: the task can be solved, and a read learns it."""

from __future__ import annotations

import pytest
import torch

from reluformer.study import measures, synthetic
from reluformer.study.plan import Run
from reluformer.study.synthetic import RecallTask
from reluformer.study.trainings import Context

CONTENT = {
    "study": 1,
    "kind": "recall",
    "task": {"kind": "one", "key_width": 8, "classes": 4, "noise": 0.1},
    "model": {"width": 32, "heads": 2},
    "rule": "softmax",
    "training": {"updates": 250, "warmup": 20, "memories": 16, "queries": 16, "slots": 8, "lr": 0.02, "seed": 0},
    "test": {"slots": [8, 16], "queries": 64},
}


def test_the_answer_is_the_class_of_the_slot_with_the_nearest_key() -> None:
    *memory, answers = RecallTask("one", noise=0.3).draw(4, 32, 64, seed=1)
    keys, classes, queries = memory
    nearest = (queries @ keys.transpose(1, 2)).argmax(-1)
    assert torch.equal(classes.gather(1, nearest), answers)
    assert RecallTask("one", noise=0.3).ceiling(*memory, answers) == 1.0


def test_with_many_votes_the_best_reader_gets_better_with_more_slots() -> None:
    task = RecallTask("many", share=1 / 8, truth=0.3)
    few, lots = (task.ceiling(*task.draw(8, 64, n, seed=0)) for n in (16, 1024))
    assert few < 0.7 < 0.99 < lots


def test_the_same_seed_gives_the_same_task() -> None:
    for one, other in zip(
        RecallTask("many").draw(2, 3, 64, seed=5), RecallTask("many").draw(2, 3, 64, seed=5), strict=True
    ):
        assert torch.equal(one, other)


def test_slots_double_up_to_all_of_them_in_the_first_half() -> None:
    sizes = [synthetic.grown(128, update / 100) for update in range(1, 101)]
    assert sizes[0] == 16
    assert sorted(set(sizes)) == [16, 32, 64, 128]
    assert sizes == sorted(sizes)
    assert sizes[50] == 128
    assert synthetic.grown(8, 0.1) == 8


def test_a_read_learns_it_and_is_tested_at_other_sizes(context: Context) -> None:
    result = synthetic.run_recall(Run(CONTENT), context)
    assert result["status"] == "finished"
    assert list(result["accuracy"]) == ["8", "16"]
    assert result["accuracy"]["8"] > 0.6
    assert result["rows"]["8"]["zero_fraction"] == 0


def test_zeros_and_dead_rows_by_slots_are_results(context: Context) -> None:
    training = {**CONTENT["training"], "updates": 4, "warmup": 1}
    result = synthetic.run_recall(Run({**CONTENT, "rule": "relu", "training": training}), context)
    assert set(result["zeros"]) == set(result["dead"]) == {"8", "16"}
    assert 0.2 < measures.value("zeros_by_slots@16", {"recall": result}) < 0.8
    assert measures.value("dead_by_slots@8", {"recall": result}) == result["rows"]["8"]["dead"]


def test_a_rule_with_a_level_is_eased_in(context: Context) -> None:
    training = {**CONTENT["training"], "updates": 4, "warmup": 1}
    rule = {"name": "relu_exp", "threshold": 1.0}
    found = [
        synthetic.run_recall(Run({**CONTENT, "rule": rule, "training": {**training, **warmup}}), context)
        for warmup in ({}, {"rule_warmup": 4})
    ]
    assert found[0]["curve"] != found[1]["curve"]
    assert found[1]["zeros"]["16"] > 0.5  # it is tested with its own level


def test_the_regulariser_pulls_row_sums_to_one(context: Context) -> None:
    training = {**CONTENT["training"], "updates": 60}
    plain = synthetic.run_recall(Run({**CONTENT, "rule": "relu", "training": training}), context)
    regularized = {**training, "regularizer": {"normalization": 1.0, "entropy": 0.0}}
    pulled = synthetic.run_recall(Run({**CONTENT, "rule": "relu", "training": regularized}), context)
    assert abs(pulled["rows"]["8"]["row_sum"] - 1) < abs(plain["rows"]["8"]["row_sum"] - 1)


def test_divergence_is_a_result(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic.F, "cross_entropy", lambda logits, answers: logits.sum() * float("nan"))
    result = synthetic.run_recall(Run(CONTENT), context)
    assert (result["status"], result["step"], result["loss"]) == ("diverged", 1, None)


@pytest.mark.parametrize("correlation", [0.0, 0.05])
@pytest.mark.parametrize("slots", [16, 256, 4096])
@pytest.mark.parametrize("rule", ["relu", "relu_plain", "relu_seqlen", "relu2", "sigmoid"])
def test_theory_beside_measurement(rule: str, slots: int, correlation: float) -> None:
    """Within 15 %: 64 memories x 64 columns; scores of width 64 are not quite normal, which squares feel most."""
    point = synthetic.measure_variance(rule, slots, correlation)
    assert point.theory is not None
    assert point.measured == pytest.approx(point.theory, rel=0.15)


def test_row_wise_rules_are_measured_only() -> None:
    point = synthetic.measure_variance("softmax", 256)
    assert point.theory is None
    assert 0 < point.measured < 0.1


def test_a_run_measures_every_place(context: Context) -> None:
    content = {"study": 1, "kind": "reads", "rule": "relu", "slots": [16, 64], "correlations": [0.0, 0.05], "seed": 0}
    result = synthetic.run_reads(Run(content), context)
    assert [(p["slots"], p["correlation"]) for p in result["points"]] == [(16, 0.0), (64, 0.0), (16, 0.05), (64, 0.05)]
