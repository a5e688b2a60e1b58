"""The bar is for people: in a terminal only, and gone at the end."""

from __future__ import annotations

import io

import pytest

from reluformer.cli.progress import sentence_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with sentence_bar("translating", 8) as report:
        assert report is not None
        report(5, 8)
    assert "translating, sentences" in terminal.getvalue()
    assert "5/8" in terminal.getvalue()


def test_a_file_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr("sys.stderr", file)
    with sentence_bar("translating", 8) as report:
        assert report is None
    assert file.getvalue() == ""
