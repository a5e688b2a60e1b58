"""A bar on standard error while sentences are translated; nothing where that is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def sentence_bar(what: str, total: int) -> Iterator[Callable[[int, int], None] | None]:
    """A function to report (sentences done, sentences in all) to, or None. The bar vanishes at the end."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{what}, sentences", total=total)
        yield lambda done, _total: progress.update(task, completed=done)
