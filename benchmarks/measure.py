"""Fair timing on a noisy machine: competitors take turns, and only ratios within a run are compared."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler otherwise prints a line a run

import torch

import reluformer


@dataclass(frozen=True)
class Timing:
    """Seconds of one competitor: the median of its turns and the spread of the middle half."""

    median: float
    spread: float
    """(third quartile - first quartile) / median."""


def interleaved(
    competitors: Mapping[str, Callable[[], object]], repeats: int, warmup: int = 1, seconds: float = 1.0
) -> dict[str, Timing]:
    """Time every competitor `repeats` times, one after the other in turns.

    A call that is short is repeated within its turn, so that a turn takes a few
    milliseconds; a competitor stops early once it has used `seconds` and three turns.
    """
    loops = {}
    for name, call in competitors.items():
        for _ in range(warmup):
            call()
        started = time.perf_counter()
        call()
        loops[name] = max(1, min(100, int(0.005 / (time.perf_counter() - started + 1e-9))))
    turns: dict[str, list[float]] = {name: [] for name in competitors}
    for turn in range(repeats):
        for name, call in competitors.items():
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


def peak_memory(call: Callable[[], object]) -> int:
    """Bytes that torch held at the most during `call`, beyond what it held before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def peak_resident(call: Callable[[], object]) -> int | None:
    """Bytes of memory that the process held at the most during `call`, beyond what it held before; Linux only.

    Unlike `peak_memory` it counts what compiled code allocates for itself.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)  # memory kept for later would hide what the call needs
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
        before = _status_bytes("VmRSS")
        call()
        return _status_bytes("VmHWM") - before
    except (OSError, AttributeError):
        return None


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def circumstances() -> dict[str, Any]:
    """What a reader must know to judge the numbers."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip() or "unknown",
        "reluformer": reluformer.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu": _cpu_name(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": [round(load, 1) for load in os.getloadavg()],
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def publish(results: Mapping[str, Any], as_json: bool, out: Path | None) -> None:
    """Print as JSON if asked, and write the file if one is named."""
    text = json.dumps(results, indent=1)
    if as_json:
        print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n", encoding="utf-8")
