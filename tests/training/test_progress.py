from __future__ import annotations

import io

import pytest
from rich.console import Console

from reluformer.training import progress as module
from reluformer.training.progress import LineProgress, LiveProgress, UpdateReport, duration


def report(step: int) -> UpdateReport:
    return UpdateReport(step, 100, 3.25, 1234.5, 125.0, {"dead": 0.125})


def test_one_line_a_minute_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 30.0, 61.0, 62.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    progress = LineProgress(stream)
    for step in (1, 2, 3, 4):
        progress.update(report(step))
    progress.close()
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1/100", "3/100"]
    assert "loss 3.2500  1,234 tokens/s  dead 12.5%  2 min left" in lines[0]


def test_the_live_bar_shows_the_same() -> None:
    stream = io.StringIO()
    progress = LiveProgress(Console(file=stream, force_terminal=True, width=200))
    progress.update(report(7))
    progress.message("validation loss 3.1")
    progress.close()
    assert "7/100" in stream.getvalue() and "dead 12.5%" in stream.getvalue()
    assert "validation loss 3.1" in stream.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(45.2, "45 s"), (125, "2 min"), (3 * 3600 + 300, "3 h 05 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
