"""The folder of a study: one directory a run, found by its address. Many machines may share it.

runs/ADDRESS/run.json       the configuration
runs/ADDRESS/result.json    what came out; there only when the run is done
runs/ADDRESS/claim-0        who is at it (claim-1, ... once an earlier claim went stale)
runs/ADDRESS/progress.json  how far it is
runs/ADDRESS/bootstrap.json p of its translations against those of other runs
runs/ADDRESS/worker.log     what it said
runs/ADDRESS/training/      the run directory of a training
data/                       prepared corpora
report.html, report.md, figures/

A claim is a file that only one process can create. Whoever holds it touches it twice a minute;
one that was not touched for long, or whose process is gone, is stale, and the next number may
be created, again by one process only.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from reluformer import files
from reluformer.errors import StorageError
from reluformer.models import storage
from reluformer.study.plan import VERSION, Plan, Run

BUSY, INTERRUPTED = 75, 130
"""Exit codes of a worker: another process is at the run; asked to stop, everything is saved."""
STALE_SECONDS = 600
TOUCH_SECONDS = 30


class TakenError(StorageError):
    """Another process is at this run."""


class StudyFolder:
    """`runs/study`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.runs = self.path / "runs"
        self.data = self.path / "data"
        self.figures = self.path / "figures"

    def directory(self, run: Run | str) -> Path:
        """Where a run lives."""
        return self.runs / (run if isinstance(run, str) else run.address)

    def training(self, run: Run) -> Path:
        """Where a training keeps its log and leaves its model."""
        return self.directory(run) / "training"

    def bootstrap(self, address: str) -> Path:
        """Where the paired tests of a run's translations are kept."""
        return self.directory(address) / "bootstrap.json"

    def write_run(self, run: Run) -> None:
        """Say what the run is, for the worker and for readers."""
        path = self.directory(run) / "run.json"
        if not path.exists():
            files.write_json(path, dict(run.content))

    def read_run(self, address: str) -> Run:
        """The run at an address; it must be what the address says."""
        path = self.directory(address) / "run.json"
        run = Run(_json(path))
        if run.address != address:
            raise StorageError(f"{path}: was changed, it is not the run of its address; delete {path.parent}")
        return run

    def result(self, run: Run | str) -> dict[str, Any] | None:
        """What came out of a run, if it is done and was written by this version of the study."""
        path = self.directory(run) / "result.json"
        if not path.is_file():
            return None
        found = _json(path)
        return found if found.get("study") == VERSION else None

    def done(self, run: Run, with_model: bool = False) -> bool:
        """Whether a run has its result and, if asked for, the model that it left: published results have none."""
        result = self.result(run)
        if result is None:
            return False
        leaves_model = run.kind == "training" and result["status"] == "finished"
        return not (with_model and leaves_model) or (self.training(run) / storage.CONFIG).is_file()

    def left(self, plan: Plan, addresses: Sequence[str]) -> list[str]:
        """What is to be done of these, in their order: again, too, what is done but for a model that another takes."""
        left: list[str] = []
        models: set[str] = set()
        for address in reversed(addresses):  # in a plan, a run comes after what it needs
            run = plan.runs[address]
            if not self.done(run, with_model=address in models):
                left.append(address)
                models.update(model.address for model in run.models)
        return left[::-1]

    def write_result(self, run: Run, result: dict[str, Any]) -> None:
        """Declare a run done."""
        content = {"study": VERSION, "address": run.address, "run": dict(run.content), **result}
        files.write_json(self.directory(run) / "result.json", content)

    def foreign(self) -> dict[str, int]:
        """Results of other versions of the study, counted by version: they are left out of everything."""
        counts: dict[str, int] = {}
        for path in sorted(self.runs.glob("*/result.json")):
            version = _json(path).get("study")
            if version != VERSION:
                counts[str(version)] = counts.get(str(version), 0) + 1
        return counts

    def progress(self, address: str) -> dict[str, Any]:
        """The share that is done and a word about it; empty before the run has begun."""
        try:
            return dict(json.loads((self.directory(address) / "progress.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def taken(self, address: str) -> bool:
        """Whether a living process holds the run."""
        newest = _newest_claim(self.directory(address))
        return newest is not None and not _stale(newest)

    @contextmanager
    def claim(self, run: Run) -> Iterator[None]:
        """Hold the run; `TakenError` if another process does."""
        directory = self.directory(run)
        directory.mkdir(parents=True, exist_ok=True)
        newest = _newest_claim(directory)
        if newest is not None and not _stale(newest):
            raise TakenError(f"{directory}: another process is at this run")
        number = 0 if newest is None else int(newest.name.rpartition("-")[2]) + 1
        mine = directory / f"claim-{number}"
        try:
            handle = os.open(mine, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            raise TakenError(f"{directory}: another process is at this run") from None
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"host": socket.gethostname(), "pid": os.getpid()}, file)
        done = threading.Event()
        threading.Thread(target=_keep_touching, args=(mine, done), daemon=True).start()
        try:
            yield
        finally:
            done.set()
            for older in range(number + 1):
                (directory / f"claim-{older}").unlink(missing_ok=True)


def seconds_of(result: Mapping[str, Any]) -> float:
    """How long a run took; a training that was stopped and went on knows that of all its parts."""
    return max(float(result.get("seconds", 0.0)), float(result.get("training_seconds") or 0.0))


def _keep_touching(path: Path, done: threading.Event) -> None:
    while not done.wait(TOUCH_SECONDS):
        with suppress(OSError):
            path.touch()


def _newest_claim(directory: Path) -> Path | None:
    claims = sorted(directory.glob("claim-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    return claims[-1] if claims else None


def _stale(path: Path) -> bool:
    """Its process is gone, where it can be seen from here, or nobody touched it for long."""
    try:
        holder = json.loads(path.read_text(encoding="utf-8") or "{}")
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return False  # just released: look again
    except ValueError:
        holder, age = {}, time.time() - path.stat().st_mtime
    if holder.get("host") == socket.gethostname() and not _alive(int(holder["pid"])):
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


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StorageError(f"{path}: no such run") from None
    except (OSError, ValueError) as error:
        raise StorageError(f"{path}: damaged ({error}); delete {path.parent} and run the study again") from None
    if not isinstance(content, dict):
        raise StorageError(f"{path}: damaged, not an object; delete {path.parent} and run the study again")
    return content
