"""The runner does a plan: a few processes at a time, each with its share of the cores, until nothing is left.

A run that fails is reported, and only the runs that need it are skipped. The runner may be stopped at
any time, and the same call resumes. It may be started several times on one directory, also on many
machines: no run is done twice.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal

from reluformer.errors import ArgumentError
from reluformer.study.plan import Plan
from reluformer.study.results import StudyDirectory
from reluformer.study.worker import BUSY, INTERRUPTED, locked

RunState = Literal["done", "running", "waiting", "elsewhere", "failed", "left out"]
LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Options:
    """How the runs are done; nothing here changes their results."""

    jobs: int = 2
    shard: tuple[int, int] = (1, 1)
    data: Path | None = None
    plugins: tuple[Path, ...] = ()


@dataclass
class Outlook:
    """The state of each run, for a display."""

    states: dict[str, RunState]
    started: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """The reasons by address: the last line that a run wrote."""
    interrupted: bool = False

    def count(self, state: RunState) -> int:
        """Returns the number of runs in a state."""
        return sum(found == state for found in self.states.values())


def parse_shard(text: str) -> tuple[int, int]:
    """Parse a shard.

    Raises:
        ArgumentError: The text is not i/n with i from 1 to n.

    Example:
        >>> parse_shard("2/4")
        (2, 4)
    """
    number, slash, of = text.partition("/")
    if not (slash and number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise ArgumentError(f"--shard {text}: write it as i/n with i from 1 to n, as in 2/4")
    return int(number), int(of)


class Runner:
    """Does the runs of a plan in the directory of a study."""

    def __init__(self, plan: Plan, study: StudyDirectory, options: Options) -> None:
        if options.jobs < 1:
            raise ArgumentError(f"--jobs {options.jobs}: must be at least 1")
        self.plan, self.study, self.options = plan, study, options
        self.addresses = plan.shard(*options.shard)
        left = study.left(plan, self.addresses)
        self._models = {model.address for address in left for model in plan.runs[address].models}
        self.outlook = Outlook(dict.fromkeys(self.addresses, "waiting"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, show: Callable[[Outlook], None] = lambda outlook: None) -> Outlook:
        """Run until everything is done, failed or left out; `show` is called about twice a second."""
        try:
            with _termination_interrupts():
                while self._step():
                    show(self.outlook)
                    time.sleep(LOOK_SECONDS)
        except KeyboardInterrupt:
            self.outlook.interrupted = True
        finally:
            self._stop()
        show(self.outlook)
        return self.outlook

    def _step(self) -> bool:
        """Collect runs that ended and start those that can; returns whether there is anything left to wait for."""
        for address in list(self._processes):
            self._collect(address)
        states = self.outlook.states
        for address in self.addresses:
            if states[address] in ("waiting", "elsewhere"):
                states[address] = self._look(address)
            if states[address] == "waiting" and len(self._processes) < self.options.jobs and self._ready(address):
                self._start(address)
        return any(state in ("waiting", "running", "elsewhere") for state in states.values())

    def _look(self, address: str) -> RunState:
        if self._done(address):
            return "done"
        if any(self.outlook.states[run.address] in ("failed", "left out") for run in self.plan.runs[address].needs):
            return "left out"
        return "elsewhere" if locked(self.study.directory(address)) else "waiting"

    def _done(self, address: str) -> bool:
        return self.study.done(self.plan.runs[address], with_model=address in self._models)

    def _ready(self, address: str) -> bool:
        return all(self.outlook.states[run.address] == "done" for run in self.plan.runs[address].needs)

    def _start(self, address: str) -> None:
        run = self.plan.runs[address]
        self.study.write_run(run)
        command = [sys.executable, "-m", "reluformer.study.worker", str(self.study.path), address]
        if self.options.data is not None:
            command += ["--data", str(self.options.data)]
        for plugin in self.options.plugins:
            command += ["--plugin", str(plugin)]
        with (self.study.directory(run) / "worker.log").open("wb") as log:
            self._processes[address] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=self._environment(), start_new_session=True
            )
        self.outlook.states[address] = "running"
        self.outlook.started[address] = time.monotonic()

    def _environment(self) -> dict[str, str]:
        """Returns an environment with a share of the cores and the path of this package."""
        threads = str(max(1, (os.cpu_count() or 1) // self.options.jobs))
        source = str(Path(__file__).parents[2])
        path = os.pathsep.join(dict.fromkeys([source, *filter(None, [os.environ.get("PYTHONPATH")])]))
        return {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONPATH": path}

    def _collect(self, address: str) -> None:
        code = self._processes[address].poll()
        if code is None:
            return
        del self._processes[address]
        if self._done(address):
            self.outlook.states[address] = "done"
        elif code == BUSY:
            self.outlook.states[address] = "elsewhere"
        elif code == INTERRUPTED:
            self.outlook.states[address] = "waiting"
            raise KeyboardInterrupt
        else:
            self.outlook.states[address] = "failed"
            self.outlook.failures[address] = self.last_words(address, code)

    def last_words(self, address: str, code: int) -> str:
        """Returns why a worker failed: the signal that ended it, or the last line of its log."""
        log = self.study.directory(address) / "worker.log"
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if code < 0:  # it had no time to write anything
            return f"killed by signal {-code} (see {log})"
        return f"{lines[-1] if lines else f'ended with code {code}'} (see {log})"

    def _stop(self) -> None:
        """Ask every process to save and end, and wait for them."""
        for process in self._processes.values():
            process.terminate()
        for address, process in self._processes.items():
            process.wait()
            self.outlook.states[address] = "done" if self._done(address) else "waiting"
        self._processes.clear()


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    """Let SIGTERM interrupt the runner as Ctrl-C does, so that no worker outlives it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
