from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from reluformer.training.progress import Heartbeat, LineProgress, LiveProgress, UpdateReport, duration


def report(step: int) -> UpdateReport:
    return UpdateReport(step, 100, 3.25, 1234.5, 125.0, {"dead": 0.125})


def test_a_line_every_twenty_seconds_without_a_terminal() -> None:
    now = [0.0]
    stream = io.StringIO()
    progress = LineProgress(stream, clock=lambda: now[0])
    for step, seconds in ((1, 0.0), (2, 10.0), (3, 21.0), (4, 22.0)):
        now[0] = seconds
        progress.update(report(step))
    progress.close()
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1/100", "3/100"]
    assert "loss 3.2500  1,234 tokens/s  dead 12.5%  2 min left" in lines[0]


def test_work_between_updates_is_not_silent() -> None:
    now = [0.0]
    stream = io.StringIO()
    heart = Heartbeat(lambda: "validating", stream, clock=lambda: now[0])
    for seconds in (5.0, 21.0, 22.0, 45.0):
        now[0] = seconds
        heart.beat()
    assert stream.getvalue() == "validating\nvalidating\n"


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_live_line_stays_whole(width: int) -> None:
    stream = io.StringIO()
    progress = LiveProgress(Console(file=stream, force_terminal=True, width=width, color_system=None))
    rows = {"dead": 0.125, "zero": 0.5, "row sum": 1.0}
    progress.update(UpdateReport(99_999, 100_000, 3.25, 12345.6, 40_000.0, rows))
    progress.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    last = [line.rstrip() for line in re.split(r"[\r\n]+", shown) if line.strip()][-1]
    assert last.startswith("training") and "99999/100000  loss 3.2500" in last.replace("100000 loss", "100000  loss")
    assert last.endswith("11 h 07 min left") and len(last) <= width


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
