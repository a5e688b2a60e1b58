"""Fuzzers with a budget in minutes and a seed: `make fuzz`, or

    python tests/fuzz/campaign.py --minutes 10 --seed 1 [--inputs 20000] [--kinds documents models kills requests]

Every input is used in a process of its own kind, which is killed after 5 seconds. A finding is an exception that is
no `ReluformerError`, a crash, a hang, or more than 500 MB. Its files are kept in build/fuzz/KIND-SEED-NUMBER; a
finding that was fixed belongs into tests/fuzz/cases, where the tests use it again.

`--out FILE` keeps a summary as JSON. The same command then resumes each kind where it stopped, as long as the
seed and the commit are the same.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parent))

import inputs
import targets
import torch

from reluformer import environment
from reluformer.errors import ReluformerError
from reluformer.files import write_json

SECONDS = 5.0
MEGABYTES = 500
_COMMAND = "python tests/fuzz/campaign.py --inputs 20000 --out FILE"
GOOD = ("ok", "refused")
_MODEL = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer.meta.json", "recipe.yaml")
"""The files of a model."""
_SAVE_EVERY = 500
"""The summary is written after so many inputs."""
MEANINGS = {
    "right": "requests with the translation that their text gets alone",
    "refused by a shutdown": "requests with status 503, sent on a connection that was open when SIGTERM came",
    "cut off by a shutdown": "requests without a byte of an answer, as the server closed the idle connection after "
    "SIGTERM before it read them: not lost, because the client notices and may send them again",
    "too slow": "requests with status 408, whose body took longer to arrive than the server waits",
    "broken clients": "connections with half, wrong or unread requests",
    "SIGTERM": "servers that ended with exit code 0 while clients were asking",
}
"""What the outcomes of requests mean. An answer that breaks off is a finding, and so is a connection that the server
closes without a shutdown."""
_PIECES = {"kills": 20, "requests": 1000}
"""The summary is written after so many kills or right answers."""
_TICK, _PATIENCE = 0.1, 6
"""Seconds between two looks at a process, and how many times the limit it may wait without using a processor."""
FORK = multiprocessing.get_context("fork")
"""A fork has everything imported, so that a killed process costs milliseconds."""


class Outcome(NamedTuple):
    """What became of one input."""

    result: str
    """"ok", "refused", or what went wrong."""
    seconds: float = 0.0
    """Processor time."""
    megabytes: float = 0.0
    """How much the peak of the process rose."""


@dataclass
class Tally:
    """What became of all inputs of a kind."""

    seed: int
    commit: str | None
    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)
    slowest: dict[str, Any] = field(default_factory=lambda: {"seconds": 0.0, "number": None})
    largest: dict[str, Any] = field(default_factory=lambda: {"megabytes": 0.0, "number": None})

    def add(self, outcome: Outcome) -> None:
        """Counts the next input."""
        good = outcome.result in GOOD
        self.outcomes[outcome.result if good else "findings"] += 1
        if not good:
            self.findings.append({"number": self.inputs, "what": outcome.result})
        if outcome.seconds > self.slowest["seconds"]:
            self.slowest = {"seconds": round(outcome.seconds, 3), "number": self.inputs}
        if outcome.megabytes > self.largest["megabytes"]:
            self.largest = {"megabytes": round(outcome.megabytes), "number": self.inputs}
        self.inputs += 1

    def include(self, counts: Counter[str], inputs: int) -> None:
        """Adds the counts of killed trainings or of requests, of which there were `inputs`."""
        self.inputs += inputs
        for name, count in counts.items():
            if name.startswith("FINDING"):
                self.findings.append({"what": name.removeprefix("FINDING "), "count": count})
                self.outcomes["findings"] += count
            else:
                self.outcomes[name] += count

    def to_json(self) -> dict[str, Any]:
        """Returns the tally as plain data."""
        of_inputs = {"slowest": self.slowest, "largest": self.largest}
        measured = of_inputs if self.slowest["number"] is not None else {}
        known = {"seed": self.seed, "commit": self.commit, "inputs": self.inputs, "outcomes": dict(self.outcomes)}
        return {**known, **measured, "findings": self.findings}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Tally:
        """Reads what `to_json` wrote."""
        return cls(**{**data, "outcomes": Counter(data["outcomes"])})


class Summary:
    """The tallies of all kinds, and the file that keeps them."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._kinds: dict[str, Any] = {}
        if path is not None and path.is_file():
            self._kinds = json.loads(path.read_text(encoding="utf-8"))["kinds"]

    def tally(self, kind: str, seed: int) -> Tally:
        """Returns the tally of a kind: the one that the file has of this seed and commit, or a new one."""
        known, commit = self._kinds.get(kind), environment.commit()
        if known is not None and (known["seed"], known["commit"]) == (seed, commit):
            return Tally.from_json(known)
        return Tally(seed, commit)

    def keep(self, kind: str, tally: Tally) -> None:
        """Writes the file."""
        self._kinds[kind] = tally.to_json()
        if self._path is not None:
            limits = {"seconds": SECONDS, "megabytes": MEGABYTES}
            machine = environment.circumstances()
            about = {"command": _COMMAND, "limits": limits, "machine": machine, "meanings": MEANINGS}
            write_json(self._path, {**about, "kinds": self._kinds})


def write(files: inputs.Files, directory: Path, present: inputs.Files | None = None) -> None:
    """Writes an input into a folder.

    Args:
        files: The input.
        directory: The folder.
        present: The files that it has, of which only those that differ are written; None empties it first.
    """
    if present is None or present.keys() != files.keys():
        shutil.rmtree(directory, ignore_errors=True)
        present = {}
    for name, content in files.items():
        if name in present and present[name] == content:
            continue
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in present:
            path.unlink()
        if content is None:
            os.mkfifo(path)
        else:
            path.write_bytes(content)


def outcome(kind: str, directory: Path, base: Path) -> Outcome:
    """Uses one input."""
    before, started = _reset_peak(), time.process_time()
    try:
        targets.TARGETS[kind](directory, base)
        result = "ok"
    except ReluformerError:
        result = "refused"
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        result = f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}: {str(error)[:200]}"
    seconds, grown = time.process_time() - started, (_peak() - before) / 2**20
    return Outcome(f"took {grown:.0f} MB" if grown > MEGABYTES else result, seconds, grown)


def _reset_peak() -> int:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return _peak()
    return _peak()


def _peak() -> int:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _processor_seconds(process: int | None) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Worker:
    """A process that makes and uses inputs; it is killed when one takes too long, and started again.

    Args:
        kind: The kind of its inputs.
        base: The run of a tiny model.
        place: The folder that it writes inputs to.
    """

    def __init__(self, kind: str, base: Path, place: Path) -> None:
        self.kind, self.base, self.place = kind, base, place
        self.whole = base_files(kind, base)
        """The whole files that its inputs are made from."""
        self._start()

    def _start(self) -> None:
        self._connection, other = FORK.Pipe()
        self._process = FORK.Process(target=self._serve, args=(other,), daemon=True)
        self._process.start()
        other.close()

    def _serve(self, connection: Connection) -> None:
        torch.set_num_threads(1)
        present = None  # what stands in `place`, as far as this process knows
        while True:
            seed, first, stop = connection.recv()
            for number in range(first, stop):
                if seed is not None:
                    files = inputs.make(self.kind, self.whole, seed, number)
                    write(files, self.place, present)
                    present = files
                connection.send(outcome(self.kind, self.place, self.base))

    def outcomes(self, seed: int, first: int, stop: int) -> Iterator[Outcome]:
        """Yields the outcome of each of these inputs, also when one hangs or kills the process."""
        while first < stop:
            process = self._process
            self._connection.send((seed, first, stop))
            while first < stop and process is self._process:
                yield self._next(SECONDS)
                first += 1

    def use(self, seconds: float = SECONDS) -> Outcome:
        """Returns the outcome of the input that stands in `place`."""
        self._connection.send((None, 0, 1))
        return self._next(seconds)

    def _next(self, seconds: float) -> Outcome:
        try:
            if self._answers(seconds):
                return Outcome(*self._connection.recv())
            result = f"hangs for more than {seconds:g} s"
        except (EOFError, OSError):
            self._process.join(1)
            result = f"killed the process, exit code {self._process.exitcode}"
        self.close()
        self._start()
        return Outcome(result)

    def _answers(self, seconds: float) -> bool:
        """Waits for an answer. Time counts while this process runs, and on a busy machine also that of the other."""
        waited, busy = 0.0, _processor_seconds(self._process.pid)
        while waited < seconds or (
            waited < _PATIENCE * seconds and _processor_seconds(self._process.pid) - busy < seconds
        ):
            if self._connection.poll(_TICK):
                return True
            waited += _TICK
        return False

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()
        self._connection.close()


@contextmanager
def workplace() -> Iterator[tuple[Path, Path]]:
    """Yields a folder for inputs, and the run of a tiny model."""
    with tempfile.TemporaryDirectory() as place:
        base = Path(place) / "base"
        process = FORK.Process(target=targets.make_base, args=(base,))  # torch's threads stay out of later forks
        process.start()
        process.join()
        yield Path(place) / "input", base


def base_files(kind: str, base: Path) -> inputs.Files:
    """Returns the whole files that inputs of a kind are made from."""
    if kind == "models":
        return {name: (base / name).read_bytes() for name in _MODEL}
    if kind == "language":
        run = targets.language_base(base)
        names = (*_MODEL, *(f"data/{path.name}" for path in sorted((run / "data").iterdir())))
        return {name: (run / name).read_bytes() for name in names}
    return inputs.read_files(base) if kind == "runs" else {}


def fuzz(
    kind: str, base: Path, place: Path, tally: Tally, most: int, until: float, kept: Path | None, summary: Summary
) -> None:
    """Uses inputs of a kind until the tally has `most`, or until a time of `time.monotonic`."""
    worker = Worker(kind, base, place)
    try:
        while tally.inputs < most and time.monotonic() < until:
            for found in worker.outcomes(tally.seed, tally.inputs, min(most, tally.inputs + _SAVE_EVERY)):
                if found.result not in GOOD:
                    name = f"{kind}-{tally.seed}-{tally.inputs}"
                    print(f"  {name}: {found.result}", flush=True)
                    if kept is not None:
                        files = inputs.make(kind, worker.whole, tally.seed, tally.inputs)
                        changed = {key: content for key, content in files.items() if content != worker.whole.get(key)}
                        write(changed, kept / name)
                tally.add(found)
            summary.keep(kind, tally)
    finally:
        worker.close()
        summary.keep(kind, tally)


def disturb(kind: str, base: Path, place: Path, tally: Tally, most: int, until: float, summary: Summary) -> None:
    """Kills trainings or asks servers, in pieces, until the tally has `most` kills or right answers."""
    while tally.inputs < most and time.monotonic() < until:
        seed, piece = f"{tally.seed} {tally.inputs}", min(most - tally.inputs, _PIECES[kind])
        if kind == "kills":
            from kills import kill_trainings

            counts = kill_trainings(place, seed, piece, until)
            tally.include(counts, counts["kills"])
        else:
            from clients import ask_server

            counts = ask_server(base, seed, piece, until)
            tally.include(counts, counts["right"])
        summary.keep(kind, tally)


def main() -> None:
    """Runs the campaign and prints a line for each kind; the exit code is 1 if there was a finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everything = (*inputs.KINDS, "kills", "requests")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inputs", type=int, default=10**9, help="the most inputs of each kind")
    parser.add_argument("--kinds", nargs="+", choices=everything, default=everything)
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where findings are kept")
    parser.add_argument("--out", type=Path, help="a summary as JSON, from which the campaign resumes")
    options = parser.parse_args()
    found, summary = False, Summary(options.out)
    with workplace() as (place, base):
        for done, kind in enumerate(options.kinds):
            if done == 0:
                end = time.monotonic() + 60 * options.minutes
            now = time.monotonic()
            until = now + (end - now) / (len(options.kinds) - done)
            tally = summary.tally(kind, options.seed)
            if kind in inputs.KINDS:
                fuzz(kind, base, place, tally, options.inputs, until, options.keep, summary)
            else:
                disturb(kind, base, place, tally, options.inputs, until, summary)
            shutil.rmtree(place, ignore_errors=True)
            found |= bool(tally.findings)
            print(json.dumps({"kind": kind, "seconds": round(time.monotonic() - now), **tally.to_json()}), flush=True)
    sys.exit(found)


if __name__ == "__main__":
    main()
