"""Benchmarks on a noisy machine: contestants take turns, and only ratios within a run are compared."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from reluformer import __version__


@dataclass(frozen=True)
class Timing:
    """The seconds of one contestant: the median of its turns and the spread of the middle half."""

    median: float
    spread: float
    """(third quartile - first quartile) / median."""


def interleaved(
    contestants: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 1, seconds: float = 1.0
) -> dict[str, Timing]:
    """Times every contestant `repeats` times, in turns.

    A short call is repeated within its turn, so that a turn takes a few milliseconds.

    Args:
        contestants: The calls to time, by name.
        repeats: The most turns of each contestant.
        warmup: Calls of each contestant before the first turn.
        seconds: A contestant stops early once it has used so many seconds and three turns.

    Returns:
        The timing of each contestant.

    Example:
        >>> sorted(interleaved({"sum": lambda: sum(range(9)), "max": lambda: max(range(9))}, repeats=3))
        ['max', 'sum']
    """
    loops = {}
    for name, call in contestants.items():
        for _ in range(warmup):
            call()
        started = time.perf_counter()
        call()
        loops[name] = max(1, min(100, int(0.005 / (time.perf_counter() - started + 1e-9))))
    turns: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats):
        for name, call in contestants.items():
            if turn >= 3 and sum(turns[name]) * loops[name] > seconds:
                continue
            started = time.perf_counter()
            for _ in range(loops[name]):
                call()
            turns[name].append((time.perf_counter() - started) / loops[name])
    return {name: _timing(values) for name, values in turns.items()}


def _timing(values: list[float]) -> Timing:
    median = statistics.median(values)
    quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else [median] * 3
    return Timing(median, (quartiles[2] - quartiles[0]) / median)


def circumstances() -> dict[str, Any]:
    """Returns what a reader must know to judge a number: commit, versions, vector instructions, cores.

    The result does not name the machine or its folders.
    """
    return {
        "commit": _commit(),
        "reluformer": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """Returns the commit hash, or None outside a git checkout of this project or without git."""
    here = Path(__file__).parent
    with suppress(FileNotFoundError):  # where git is not; an installed package may lie in a clone of something else
        command = ["git", "rev-parse", "--show-prefix", "--short", "HEAD"]
        found = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
        prefix, _, commit = found.stdout.strip().partition("\n")
        return commit if prefix == "src/reluformer/" else None
    return None
