"""What a person sees while a model trains: a live bar in a terminal, one line a minute elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


@dataclass(frozen=True)
class Glance:
    """The state of training after an update."""

    step: int
    updates: int
    loss: float
    tokens_per_second: float
    seconds_left: float
    rows: dict[str, float] = field(default_factory=dict)
    """Row statistics of the attention, means over all modules: dead, zero, ..."""

    def __str__(self) -> str:
        rows = "".join(f"  {name} {share:.1%}" for name, share in self.rows.items())
        return f"loss {self.loss:.4f}  {self.tokens_per_second:,.0f} tokens/s{rows}  {duration(self.seconds_left)} left"


class TrainingProgress(Protocol):
    """Where the loop reports to."""

    def update(self, glance: Glance) -> None:
        """After every update."""

    def message(self, text: str) -> None:
        """Something worth a line of its own."""

    def close(self) -> None:
        """Training has ended, well or not."""


class SilentProgress:
    """Says nothing."""

    def update(self, glance: Glance) -> None:
        pass

    def message(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class LineProgress:
    """A line at the first update, then one every `seconds`."""

    def __init__(self, stream: TextIO | None = None, seconds: float = 60) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._seconds = seconds
        self._last: float | None = None

    def update(self, glance: Glance) -> None:
        now = time.monotonic()
        if self._last is None or now - self._last >= self._seconds or glance.step == glance.updates:
            self._last = now
            self.message(f"update {glance.step}/{glance.updates}  {glance}")

    def message(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        pass


class LiveProgress:
    """A bar that is drawn again a few times a second."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[glance]}"),
            console=console or Console(stderr=True),
        )  # fmt: skip
        self._task = self._progress.add_task("training", total=None, glance="")
        self._progress.start()

    def update(self, glance: Glance) -> None:
        self._progress.update(self._task, completed=glance.step, total=glance.updates, glance=str(glance))

    def message(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self._progress.stop()


def for_terminal() -> TrainingProgress:
    """Live where there is a terminal, lines where there is none."""
    return LiveProgress() if sys.stderr.isatty() else LineProgress()


def duration(seconds: float) -> str:
    """45 s, 12 min, 3 h 05 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
