"""One run of the study in a process of its own: `python -m reluformer.study.worker DIRECTORY ADDRESS`.

Exit codes: 0 the run is done, 75 another process works on it, 130 interrupted (everything is saved, and the
next start resumes). A training that diverges is done: that is its result.

A run is held by a lock file that only one process can create. Its owner touches the file twice a
minute. A lock that was not touched for long, or whose process has ended, is stale; then the lock of
the next number may be created, again by one process only.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from reluformer import files, rules
from reluformer.environment import circumstances
from reluformer.errors import ReluformerError, StorageError
from reluformer.study import (
    approximation,
    evaluation,
    language_models,
    speed,
    synthetic,
    trainings,
    vision,
)
from reluformer.study.measures import EVALUATION
from reluformer.study.plan import Run
from reluformer.study.results import StudyDirectory
from reluformer.study.trainings import Context, InterruptedRunError

BUSY, INTERRUPTED = 75, 130
"""Exit codes: another process works on the run; the worker was asked to stop and has saved everything."""
STALE_SECONDS = 600
TOUCH_SECONDS = 30

KINDS: dict[str, Callable[[Run, Context], dict[str, Any]]] = {
    "training": trainings.run,
    EVALUATION: evaluation.run,
    "language": language_models.run,
    "recall": synthetic.run_recall,
    "reads": synthetic.run_reads,
    "interval": approximation.run_interval,
    "regions": approximation.run_regions,
    "images": vision.run_images,
    "speed": speed.run,
}


# ------------------------------------------------------------------ locks


class LockedError(StorageError):
    """Another process works on this run."""


def locked(directory: Path) -> bool:
    """Returns whether a living process holds the run of this folder."""
    newest = _newest_lock(directory)
    return newest is not None and not _stale(newest)


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Hold the run of this folder.

    Raises:
        LockedError: Another process holds it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    newest = _newest_lock(directory)
    if newest is not None and not _stale(newest):
        raise LockedError(f"{directory}: another process works on this run")
    number = 0 if newest is None else int(newest.name.rpartition("-")[2]) + 1
    mine = directory / f"lock-{number}"
    try:
        handle = os.open(mine, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        raise LockedError(f"{directory}: another process works on this run") from None
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump({"host": socket.gethostname(), "pid": os.getpid()}, file)
    done = threading.Event()
    threading.Thread(target=_keep_touching, args=(mine, done), daemon=True).start()
    try:
        yield
    finally:
        done.set()
        for older in range(number + 1):
            (directory / f"lock-{older}").unlink(missing_ok=True)


def _keep_touching(path: Path, done: threading.Event) -> None:
    while not done.wait(TOUCH_SECONDS):
        with suppress(OSError):
            path.touch()


def _newest_lock(directory: Path) -> Path | None:
    locks = sorted(directory.glob("lock-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    return locks[-1] if locks else None


def _stale(path: Path) -> bool:
    """Returns whether the owner has ended, as far as this machine can see, or has not touched the lock for long."""
    try:
        owner = json.loads(path.read_text(encoding="utf-8") or "{}")
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return False  # just released: look again
    except ValueError:
        owner, age = {}, time.time() - path.stat().st_mtime
    if owner.get("host") == socket.gethostname() and not _alive(int(owner["pid"])):
        return True
    return age > STALE_SECONDS


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# ------------------------------------------------------------------ the run


class ProgressFile:
    """Reports the progress of a run to the runner, at most twice a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = 0.0

    def __call__(self, share: float, note: str = "") -> None:
        now = time.monotonic()
        if now - self._last >= 0.5 or share >= 1:
            self._last = now
            files.write_json(self._path, {"share": round(share, 4), "note": note})


def work(study: StudyDirectory, address: str, data: Path | None) -> int:
    """Do the run at `address`, unless it is done or another process works on it.

    Args:
        study: The directory of the study; it holds the configuration of the run.
        address: The address of the run.
        data: The folder of the corpora; the embedded corpus needs none.

    Returns:
        The exit code of the worker.
    """
    run = study.read_run(address)
    try:
        with lock(study.directory(run)):
            if study.done(run, with_model=True):
                return 0
            began = time.perf_counter()
            context = Context(study, data, ProgressFile(study.directory(run) / "progress.json"))
            outcome = KINDS[run.kind](run, context)
            seconds = round(time.perf_counter() - began, 2)
            study.write_result(run, {"status": "finished", "seconds": seconds, **outcome, "made_by": circumstances()})
            (study.directory(run) / "progress.json").unlink(missing_ok=True)
    except LockedError:
        return BUSY
    except InterruptedRunError:
        return INTERRUPTED
    return 0


def main() -> None:
    """Run the command line of a worker."""
    parser = argparse.ArgumentParser(description="Do one run of the study.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("address")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--plugin", type=Path, action="append", default=[])
    arguments = parser.parse_args()
    trainings.register_controls()
    try:
        for plugin in arguments.plugin:
            rules.load_plugin(plugin)
        sys.exit(work(StudyDirectory(arguments.directory), arguments.address, arguments.data))
    except ReluformerError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
