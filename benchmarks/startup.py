"""How long `reluformer translate` takes for one sentence in a new process, and what takes the time.

    python benchmarks/startup.py --run runs/multi30k --json

Every command runs in a process of its own, in turns, after a first turn that fills the caches
of the disk and of compiled Python files. The time of `import torch` alone is a part of all others.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import circumstances, publish

SENTENCE = "A man rides a bike."


def commands(run: Path) -> dict[str, list[str]]:
    """The commands by name."""
    translate = [sys.executable, "-m", "reluformer", "translate", str(run)]
    return {
        "import torch": [sys.executable, "-c", "import torch"],
        "import reluformer.loading": [sys.executable, "-c", "import reluformer.loading"],
        "load the run": [sys.executable, "-c", f"import reluformer as rf; rf.load({str(run)!r})"],
        "translate": translate,
        "translate --int8": [*translate, "--int8"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="a trained run")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.add_argument("--out", type=Path, help="write the JSON to this file as well")
    arguments = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in commands(arguments.run)}
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for turn in range(arguments.repeats + 1):
            for name, command in commands(arguments.run).items():
                started = time.perf_counter()
                subprocess.run(command, input=SENTENCE, text=True, env=environment, capture_output=True, check=True)
                if turn > 0:
                    times[name].append(time.perf_counter() - started)
    seconds = {name: round(statistics.median(each), 3) for name, each in times.items()}
    if not arguments.json:
        for name, median in seconds.items():
            print(f"{name:28} {median:6.3f} s")
    results = {"benchmark": "startup", "repeats": arguments.repeats, **circumstances(), "seconds": seconds}
    publish(results, arguments.json, arguments.out)


if __name__ == "__main__":
    main()
