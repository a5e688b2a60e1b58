"""Fuzzers with a budget in minutes and a seed: `make fuzz`, or

    python tests/fuzz/campaign.py --minutes 10 --seed 1 [--inputs 20000] [--kinds documents models kills requests]

Every input is used in a process of its own kind, which is killed after 5 seconds. A finding is an exception that is
no `ReluformerError`, a crash, a hang, or more than 500 MB. Its files are kept in build/fuzz/KIND-SEED-NUMBER; a
finding that was fixed belongs into tests/fuzz/cases, where the tests use it again.
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
from multiprocessing.connection import Connection
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parent))

import inputs
import targets
import torch

from reluformer.errors import ReluformerError

SECONDS = 5.0
MEGABYTES = 500
_TICK, _PATIENCE = 0.1, 6
"""Seconds between two looks at a process, and how many times the limit it may wait without using a processor."""
FORK = multiprocessing.get_context("fork")
"""A fork has everything imported, so that a killed process costs milliseconds."""


def write(files: inputs.Files, directory: Path) -> None:
    """Writes an input into an empty folder."""
    shutil.rmtree(directory, ignore_errors=True)
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            os.mkfifo(path)
        else:
            path.write_bytes(content)


def outcome(kind: str, directory: Path, base: Path) -> str:
    """Uses one input; returns "ok", "refused", or what went wrong."""
    before = _reset_peak()
    try:
        targets.TARGETS[kind](directory, base)
        result = "ok"
    except ReluformerError:
        result = "refused"
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        result = f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}: {str(error)[:200]}"
    grown = (_peak() - before) / 2**20
    return f"took {grown:.0f} MB" if grown > MEGABYTES else result


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
    """A process that uses inputs; it is killed when one takes too long, and started again."""

    def __init__(self, kind: str, base: Path) -> None:
        self.kind, self.base = kind, base
        self._start()

    def _start(self) -> None:
        self._connection, other = FORK.Pipe()
        self._process = FORK.Process(target=self._serve, args=(other,), daemon=True)
        self._process.start()
        other.close()

    def _serve(self, connection: Connection) -> None:
        torch.set_num_threads(1)
        while True:
            connection.send(outcome(self.kind, Path(connection.recv()), self.base))

    def use(self, directory: Path, seconds: float = SECONDS) -> str:
        """Returns the outcome of an input, also when it hangs or kills the process."""
        try:
            self._connection.send(str(directory))
            if self._answers(seconds):
                return str(self._connection.recv())
            result = f"hangs for more than {seconds:g} s"
        except (EOFError, OSError):
            self._process.join(1)
            result = f"killed the process, exit code {self._process.exitcode}"
        self.close()
        self._start()
        return result

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
        names = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer.meta.json", "recipe.yaml")
        return {name: (base / name).read_bytes() for name in names}
    return inputs.read_files(base) if kind == "runs" else {}


def fuzz(kind: str, base: Path, place: Path, seed: int, most: int, until: float, kept: Path | None) -> Counter[str]:
    """Uses up to `most` inputs of a kind until a time of `time.monotonic`; returns how often each outcome occurred."""
    worker, whole, counts = Worker(kind, base), base_files(kind, base), Counter[str]()
    try:
        for number in range(most):
            if time.monotonic() > until:
                break
            files = inputs.make(kind, whole, seed, number)
            write(files, place)
            result = worker.use(place)
            counts[result if result in ("ok", "refused") else f"FINDING {result}"] += 1
            if result not in ("ok", "refused"):
                print(f"  {kind} {seed} {number}: {result}", flush=True)
                if kept is not None:
                    changed = {name: content for name, content in files.items() if content != whole.get(name)}
                    write(changed, kept / f"{kind}-{seed}-{number}")
    finally:
        worker.close()
    return counts


def main() -> None:
    """Runs the campaign and prints a line for each kind; the exit code is 1 if there was a finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everything = (*inputs.KINDS, "kills", "requests")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inputs", type=int, default=10**9, help="the most inputs of each kind")
    parser.add_argument("--kinds", nargs="+", choices=everything, default=everything)
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where findings are kept")
    options = parser.parse_args()
    found = False
    with workplace() as (place, base):
        for done, kind in enumerate(options.kinds):
            if done == 0:
                end = time.monotonic() + 60 * options.minutes
            now = time.monotonic()
            until = now + (end - now) / (len(options.kinds) - done)
            if kind == "kills":
                from kills import kill_trainings

                counts = kill_trainings(place, options.seed, options.inputs, until)
            elif kind == "requests":
                from clients import ask_server

                counts = ask_server(base, options.seed, options.inputs, until)
            else:
                counts = fuzz(kind, base, place, options.seed, options.inputs, until, options.keep)
            shutil.rmtree(place, ignore_errors=True)
            found |= any(name.startswith("FINDING") for name in counts)
            line = {"kind": kind, "seed": options.seed, "seconds": round(time.monotonic() - now), **counts}
            print(json.dumps(line), flush=True)
    sys.exit(found)


if __name__ == "__main__":
    main()
