from __future__ import annotations

import io
import re
import threading

import pytest
from rich.console import Console

from reluformer.training.progress import (
    SECONDS_BETWEEN_LINES,
    Heartbeat,
    LineProgress,
    LiveProgress,
    UpdateReport,
    activity,
    counted,
    duration,
)


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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Lines(io.StringIO):
    """A file that says when it has got a line."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        if "\n" in text:
            self.written.set()
        return count


class Jump:
    """A clock on which more time than a silence may last passes between any two looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 2 * SECONDS_BETWEEN_LINES
        return self.now


def test_the_longest_silence_is_shorter_than_half_a_minute() -> None:
    """The thread looks ten times as often, so a line may be that much late."""
    assert SECONDS_BETWEEN_LINES * 1.1 < 30


def test_a_terminal_sees_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with counted("translating", "sentences", 8) as report:
        report(5, 8)
    assert "translating, sentences" in terminal.getvalue()
    assert "5/8" in terminal.getvalue()


def test_a_file_sees_nothing_of_work_that_is_soon_done(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr("sys.stderr", file)
    with counted("translating", "sentences", 8) as report, activity("preparing"):
        report(5, 8)
    assert file.getvalue() == ""


def test_a_file_sees_how_much_of_long_work_is_done_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Lines()
    monkeypatch.setattr("sys.stderr", file)
    with counted("translating", "sentences", 8, clock=Jump()) as report:
        report(2, 8)
        file.written.clear()
        assert file.written.wait(60), "another thread writes, whatever this one does"
    last = file.getvalue().splitlines()[-1]
    assert re.fullmatch(r"translating: 2 of 8 sentences, .* so far, about .* left", last)


def test_a_file_sees_what_long_work_is_at() -> None:
    file = Lines()
    with activity("preparing", Console(file=file), clock=Jump()) as tell:
        tell("preparing, train: 1,000 sentence pairs")
        file.written.clear()
        assert file.written.wait(60)
    assert re.fullmatch(r"preparing, train: 1,000 sentence pairs: .* so far", file.getvalue().splitlines()[-1])


def test_a_file_sees_the_time_left_where_the_share_is_known() -> None:
    file = Lines()
    with activity("downloading", Console(file=file), clock=Jump()) as tell:
        tell("downloading a", 0.9)
        tell("downloading b", 0.0)
        tell("downloading b", 0.25)
        file.written.clear()
        assert file.written.wait(60)
    assert re.fullmatch(r"downloading b: .* so far, about .* left", file.getvalue().splitlines()[-1])


def test_the_thread_ends_with_the_work_or_with_the_stream() -> None:
    closed = io.StringIO()
    closed.close()
    before = threading.active_count()
    with Heartbeat(lambda: "still here", closed, seconds=0.01):
        pass
    assert threading.active_count() == before
