"""Progress: a live bar or a spinner in a terminal, three lines a minute elsewhere, and TensorBoard.

Trainings report their updates here; other commands use `activity` and `counted`. A command whose output goes to a
file is never silent for long, and says how much time is left where it can tell. Everything goes to standard error.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any, Protocol, Self

from rich.console import Console

from reluformer.errors import ConfigError

SECONDS_BETWEEN_LINES = 20.0
"""What takes longer than this says so where nobody sees a bar move, such as in a file."""
_BAR_WIDTH, _NARROW = 10, 120


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
        return self.within(10**6)

    def within(self, width: int) -> str:
        """Returns the report in at most `width` characters, without its last row statistics where it is too long.

        Loss and time left always stay.

        Example:
            >>> report = UpdateReport(1, 9, 3.25, 1200.0, 125.0, {"dead": 0.1, "zero": 0.5})
            >>> report.within(70)
            'loss 3.2500  1,200 tokens/s  dead 10.0%  zero 50.0%  2 min left'
            >>> report.within(30)
            'loss 3.2500  2 min left'
        """
        middle = [f"{self.tokens_per_second:,.0f} tokens/s"]
        middle += [f"{name} {share:.1%}" for name, share in self.rows.items()]
        while True:
            text = "  ".join([f"loss {self.loss:.4f}", *middle, f"{duration(self.seconds_left)} left"])
            if len(text) <= width or not middle:
                return text
            middle.pop()


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


class Heartbeat:
    """Prints a line about work that takes long, whenever nothing was printed for some seconds.

    A thread of its own does it, so that no part of the work can be silent. As a context manager it starts and stops
    that thread.

    Args:
        describe: Returns the line. It is called from the other thread.
        stream: Where it goes. Default: standard error.
        seconds: The longest silence.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        describe: Callable[[], str],
        stream: IO[str] | None = None,
        seconds: float = SECONDS_BETWEEN_LINES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._describe, self._seconds, self._clock = describe, seconds, clock
        self._stream = stream
        self._last = self.began = clock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def elapsed(self) -> float:
        """The seconds since the work began."""
        return self._clock() - self.began

    def say(self, text: str) -> None:
        """Prints a line, after which there may be silence again."""
        with self._lock:
            self._last = self._clock()
            print(text, file=self._stream or sys.stderr, flush=True)

    def is_due(self) -> bool:
        """Returns whether the silence has lasted long enough."""
        return self._clock() - self._last >= self._seconds

    def beat(self) -> None:
        """Prints the line if it is due."""
        if self.is_due():
            self.say(self._describe())

    def start(self) -> None:
        """Starts the thread, unless it runs."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds / 10):
            try:
                self.beat()
            except (OSError, ValueError):  # the stream is closed or full; the work matters more than this line
                return

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class LineProgress:
    """Prints a line at the first update, then one every `seconds`, also while updates take longer than that.

    Args:
        stream: Where lines go. Default: standard error.
        seconds: The longest silence.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        stream: IO[str] | None = None,
        seconds: float = SECONDS_BETWEEN_LINES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._heart = Heartbeat(self._working, stream, seconds, clock)
        self._at = "starting"
        self._begun = False

    def _working(self) -> str:
        return f"still working after {duration(self._heart.elapsed)}; last: {self._at}"

    def update(self, report: UpdateReport) -> None:
        self._at = f"update {report.step}/{report.updates}"
        if not self._begun or self._heart.is_due() or report.step == report.updates:
            self._begun = True
            self.message(f"update {report.step}/{report.updates}  {report}")

    def message(self, text: str) -> None:
        self._heart.start()
        if not self._begun:
            self._at = text.splitlines()[0] if text else self._at
        self._heart.say(text)

    def close(self) -> None:
        self._heart.stop()


class LiveProgress:
    """Draws a bar several times a second."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # slow, and others need it not

        console = console or Console(stderr=True)
        bar = BarColumn(_BAR_WIDTH if console.width < _NARROW else 40)
        self._progress = Progress(
            TextColumn("training"), bar, MofNCompleteColumn(), TextColumn("{task.fields[report]}"), console=console
        )
        self._around = len("training") + (bar.bar_width or 0) + 3  # and a space between columns
        self._task = self._progress.add_task("training", total=None, report="")
        self._progress.start()

    def update(self, report: UpdateReport) -> None:
        counts = 2 * len(str(report.updates)) + 1
        text = report.within(self._progress.console.width - self._around - counts)
        self._progress.update(self._task, completed=report.step, total=report.updates, report=text)

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


class Tell(Protocol):
    """Takes what is being done by now."""

    def __call__(self, text: str, share: float | None = None) -> None:
        """Takes a text, and the share of it that is done, where it is known; a smaller share begins something new."""


Report = Callable[[int, int], None]
"""Takes how much is done and how much there is."""


@contextmanager
def activity(what: str, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> Iterator[Tell]:
    """Show that something is being done whose end cannot be told.

    Args:
        what: What is being done, such as "preparing".
        console: Where it is shown. Default: standard error.
        clock: Returns the time in seconds.

    Yields:
        A function that takes what is being done by now.
    """
    console = console or Console(stderr=True)
    now, pace = [what], _Pace(clock)

    def tell(text: str, share: float | None = None) -> None:
        now[0] = text
        pace.take(share)
        if status is not None:
            status.update(f"{text}{pace.left()}")

    status = console.status(what) if console.is_terminal else None
    if status is not None:
        with status:
            yield tell
        return
    heart = Heartbeat(lambda: f"{now[0]}: {duration(heart.elapsed)} so far{pace.left()}", console.file, clock=clock)
    with heart:
        yield tell


class _Pace:
    """How fast a share grows, and so the time that is left."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._share: float | None = None
        self._first = (0.0, 0.0)

    def take(self, share: float | None) -> None:
        """Takes the share that is done by now."""
        if share is not None and (self._share is None or share < self._share):
            self._first = (self._clock(), share)
        self._share = share

    def left(self) -> str:
        """Returns the time left in words, or nothing."""
        if self._share is None:
            return ""
        since, first = self._first
        return time_left(self._clock() - since, (self._share - first) / max(1 - first, 1e-9))


@contextmanager
def counted(what: str, unit: str, total: int, clock: Callable[[], float] = time.monotonic) -> Iterator[Report]:
    """Show how much of something is done, and the time left.

    Args:
        what: What is being done, such as "translating".
        unit: What is counted, such as "sentences".
        total: How many there are.
        clock: Returns the time in seconds.

    Yields:
        A function that takes how much is done and how much there is.
    """
    console = Console(stderr=True)
    if console.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(f"{what}, {unit}", total=total)
            yield lambda done, _total: progress.update(task, completed=done)
        return
    done = [0]

    def line() -> str:
        left = time_left(heart.elapsed, done[0] / max(total, 1))
        return f"{what}: {done[0]:,} of {total:,} {unit}, {duration(heart.elapsed)} so far{left}"

    heart = Heartbeat(line, clock=clock)
    with heart:
        yield lambda now, _total: done.__setitem__(0, now)


def time_left(elapsed: float, share: float) -> str:
    """Returns the time left in words, or nothing before there is any pace.

    Example:
        >>> time_left(60, 0.25), time_left(60, 0.0)
        (', about 3 min left', '')
    """
    return f", about {duration(elapsed * (1 - share) / share)} left" if share > 0 else ""
