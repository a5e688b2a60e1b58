"""What commands show while they work: bars in a terminal, lines in a file."""

from __future__ import annotations

import io
import re
import threading

import pytest
from rich.console import Console

from reluformer.cli.activity import activity, counted
from reluformer.training.progress import SECONDS_BETWEEN_LINES, Heartbeat


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


def test_the_thread_ends_with_the_work_or_with_the_stream() -> None:
    closed = io.StringIO()
    closed.close()
    before = threading.active_count()
    with Heartbeat(lambda: "still here", closed, seconds=0.01):
        pass
    assert threading.active_count() == before
