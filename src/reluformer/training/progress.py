"""The progress of a training: a live bar in a terminal, one line a minute elsewhere, and TensorBoard."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from reluformer.errors import ConfigError


@dataclass(frozen=True)
class UpdateReport:
    """The state of training after an update, as progress displays show it."""

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
    """The receiver of progress reports."""

    def update(self, report: UpdateReport) -> None:
        """Called after every update."""

    def message(self, text: str) -> None:
        """Shows a line of text."""

    def close(self) -> None:
        """Called once when training has ended, with or without an error."""


class SilentProgress:
    """Shows nothing."""

    def update(self, report: UpdateReport) -> None:
        pass

    def message(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class WarningProgress(SilentProgress):
    """Prints the warnings among the messages on standard error, and nothing else."""

    def message(self, text: str) -> None:
        for line in text.splitlines():
            if line.startswith("warning:"):
                print(line, file=sys.stderr, flush=True)


class LineProgress:
    """Prints a line at the first update, then one every `seconds`."""

    def __init__(self, stream: TextIO | None = None, seconds: float = 60) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._seconds = seconds
        self._last: float | None = None

    def update(self, report: UpdateReport) -> None:
        now = time.monotonic()
        if self._last is None or now - self._last >= self._seconds or report.step == report.updates:
            self._last = now
            self.message(f"update {report.step}/{report.updates}  {report}")

    def message(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        pass


class LiveProgress:
    """Draws a bar several times a second."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[report]}"),
            console=console or Console(stderr=True),
        )  # fmt: skip
        self._task = self._progress.add_task("training", total=None, report="")
        self._progress.start()

    def update(self, report: UpdateReport) -> None:
        self._progress.update(self._task, completed=report.step, total=report.updates, report=str(report))

    def message(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self._progress.stop()


def for_terminal() -> TrainingProgress:
    """Returns a live bar if stderr is a terminal, and lines otherwise."""
    return LiveProgress() if sys.stderr.isatty() else LineProgress()


def duration(seconds: float) -> str:
    """Returns seconds as text.

    Example:
        >>> duration(45), duration(720), duration(11100)
        ('45 s', '12 min', '3 h 05 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def tensorboard_listener(directory: Path) -> Callable[[str, int, Mapping[str, Any]], None]:
    """Returns a function that writes each event of the log for TensorBoard; every number becomes a curve.

    Raises:
        ConfigError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "training.tensorboard=true, but TensorBoard is not installed; pip install 'reluformer[tensorboard]'"
        ) from None

    @cache
    def writer() -> Any:
        """Opens the writer at the first event, after the files of an earlier run were deleted."""
        return SummaryWriter(str(directory))

    def listen(event: str, step: int, values: Mapping[str, Any]) -> None:
        for name, number in _numbers(event, values):
            writer().add_scalar(name, number, step)
        writer().flush()

    return listen


def _numbers(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields nested numbers as ("train/loss", 3.2); a list, with one number a head, becomes its mean."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(f"{prefix}/{name}", value)
        elif isinstance(value, list) and value and all(isinstance(item, int | float) for item in value):
            yield f"{prefix}/{name}", sum(value) / len(value)
        elif isinstance(value, int | float):
            yield f"{prefix}/{name}", float(value)
