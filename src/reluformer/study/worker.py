"""One run in a process of its own: `python -m reluformer.study.worker FOLDER ADDRESS`.

Exit codes: 0 done, 75 another process is at it, 130 interrupted (everything is saved; the next start goes on).
A training that diverges is done: that is its result.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reluformer import files, rules
from reluformer.errors import ReluformerError
from reluformer.study import controls, examination, recall, speed, trainings, variance
from reluformer.study.folder import BUSY, INTERRUPTED, StudyFolder, TakenError
from reluformer.study.plan import Run
from reluformer.study.trainings import Context, InterruptedRunError
from reluformer.timing import circumstances

KINDS: dict[str, Callable[[Run, Context], dict[str, Any]]] = {
    "training": trainings.run,
    "examination": examination.run,
    "recall": recall.run,
    "reads": variance.run,
    "speed": speed.run,
}


class ProgressFile:
    """Tells the runner how far a run is, at most twice a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = 0.0

    def __call__(self, share: float, note: str = "") -> None:
        now = time.monotonic()
        if now - self._last >= 0.5 or share >= 1:
            self._last = now
            files.write_json(self._path, {"share": round(share, 4), "note": note})


def work(folder: StudyFolder, address: str, data: Path | None) -> int:
    """Do the run at `address`, unless it is done or another process is at it."""
    run = folder.read_run(address)
    try:
        with folder.claim(run):
            if folder.done(run, with_model=True):
                return 0
            began = time.perf_counter()
            context = Context(folder, data, ProgressFile(folder.directory(run) / "progress.json"))
            outcome = KINDS[run.kind](run, context)
            seconds = round(time.perf_counter() - began, 2)
            folder.write_result(run, {"status": "finished", "seconds": seconds, **outcome, "made_by": circumstances()})
            (folder.directory(run) / "progress.json").unlink(missing_ok=True)
    except TakenError:
        return BUSY
    except InterruptedRunError:
        return INTERRUPTED
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description="One run of the study.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("address")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--plugin", type=Path, action="append", default=[])
    arguments = parser.parse_args()
    controls.register()
    try:
        for plugin in arguments.plugin:
            rules.load_plugin(plugin)
        sys.exit(work(StudyFolder(arguments.folder), arguments.address, arguments.data))
    except ReluformerError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
