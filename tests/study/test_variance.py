"""Claim C5: theory and measurement agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from reluformer.study import variance


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


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs reluformer[plots]")
    points = list(variance.sweep(["relu", "softmax"], [16, 64], [0.0, 0.05]))
    assert len(points) == 8
    variance.draw(points, tmp_path / "variance.png")
    assert (tmp_path / "variance.png").read_bytes()[:4] == b"\x89PNG"
