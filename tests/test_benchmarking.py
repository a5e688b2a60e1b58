"""Contestants take turns."""

from __future__ import annotations

import pytest

from reluformer import benchmarking


def test_contestants_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(benchmarking.time, "perf_counter", lambda: now[0])
    called: list[str] = []

    def contestant(name: str, seconds: float) -> object:
        called.append(name)
        now[0] += seconds
        return None

    times = benchmarking.interleaved(
        {"slow": lambda: contestant("slow", 4.0), "quick": lambda: contestant("quick", 1.0)}, repeats=5, seconds=3.0
    )
    assert called[:4] == ["slow"] * 2 + ["quick"] * 2, "warm-up and a first look"
    assert called[4:] == ["slow", "quick"] * 3 + ["quick"], "until each has used its seconds and three turns"
    assert (times["slow"].median, times["quick"].median, times["quick"].spread) == (4.0, 1.0, 0.0)
