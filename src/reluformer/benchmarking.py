"""Benchmarks on a noisy machine: contestants take turns, and only ratios within a run are compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


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
