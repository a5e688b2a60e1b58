"""What a command shows while it works: a spinner or a bar in a terminal, and a line now and then elsewhere.

A command whose output goes to a file is never silent for long, and says how much time is left where it can tell.
Everything goes to standard error. Work of a few seconds prints nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from reluformer.training.progress import Heartbeat, duration

Tell = Callable[[str], None]
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
    if console.is_terminal:
        with console.status(what) as status:
            yield status.update
        return
    now = [what]
    heart = Heartbeat(lambda: f"{now[0]}: {duration(heart.elapsed)} so far", console.file, clock=clock)
    with heart:
        yield lambda text: now.__setitem__(0, text)


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
    """Return the time left in words, or nothing before there is any pace.

    Example:
        >>> time_left(60, 0.25), time_left(60, 0.0)
        (', about 3 min left', '')
    """
    return f", about {duration(elapsed * (1 - share) / share)} left" if share > 0 else ""
