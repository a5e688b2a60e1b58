"""What every benchmark needs beside fair timing: memory, circumstances, a file for the results."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler otherwise prints a line a run

import torch

from reluformer import environment


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
    """Return what a reader must know to judge the numbers, the load of the machine among it."""
    return {**environment.circumstances(), "load": [round(load, 1) for load in os.getloadavg()]}


def publish(results: Mapping[str, Any], as_json: bool, out: Path | None) -> None:
    """Print as JSON if asked, and write the file if one is named."""
    text = json.dumps(results, indent=1)
    if as_json:
        print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n", encoding="utf-8")
