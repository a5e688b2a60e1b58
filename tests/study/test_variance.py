"""Claim C5: theory and measurement agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from reluformer.study import variance
from reluformer.study.folder import StudyFolder
from reluformer.study.plan import Run
from reluformer.study.trainings import Context


@pytest.mark.parametrize("correlation", [0.0, 0.05])
@pytest.mark.parametrize("slots", [16, 256, 4096])
@pytest.mark.parametrize("rule", ["relu", "relu_plain", "relu_seqlen", "relu2", "sigmoid"])
def test_theory_beside_measurement(rule: str, slots: int, correlation: float) -> None:
    """Within 15 %: 64 memories x 64 columns; scores of width 64 are not quite normal, which squares feel most."""
    point = variance.measure(rule, slots, correlation)
    assert point.theory is not None
    assert point.measured == pytest.approx(point.theory, rel=0.15)


def test_row_wise_rules_are_measured_only() -> None:
    point = variance.measure("softmax", 256)
    assert point.theory is None
    assert 0 < point.measured < 0.1


def test_a_run_measures_every_place(tmp_path: Path) -> None:
    content = {"study": 1, "kind": "reads", "rule": "relu", "slots": [16, 64], "correlations": [0.0, 0.05], "seed": 0}
    result = variance.run(Run(content), Context(StudyFolder(tmp_path), None, lambda share, note: None))
    assert [(p["slots"], p["correlation"]) for p in result["points"]] == [(16, 0.0), (64, 0.0), (16, 0.05), (64, 0.05)]
