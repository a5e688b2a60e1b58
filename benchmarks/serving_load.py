"""A server in a process of its own, and clients that ask it."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

JSON = {"Content-Type": "application/json"}
THREADS = 1
"""Of the server's arithmetic: one core decodes, another one is left to the clients."""


@dataclass(frozen=True)
class RunningServer:
    """Where it listens, and its process."""

    port: int
    process: int

    def connect(self, timeout: float = 1000) -> http.client.HTTPConnection:
        """A connection that many requests can share."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    @property
    def resident_megabytes(self) -> float:
        """Memory that the process holds."""
        status = Path(f"/proc/{self.process}/status").read_text(encoding="utf-8")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        return round(int(found[1]) / 1024, 1) if found else 0.0


@contextmanager
def server(run: Path, *options: str) -> Iterator[RunningServer]:
    """`reluformer serve` on a free port until the block ends."""
    quiet = ["--port", "0", "--log-level", "warning", "--threads", str(THREADS)]
    command = [sys.executable, "-m", "reluformer", "serve", str(run), *quiet, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
        if found is None:
            raise SystemExit("the server did not start")
        running = RunningServer(int(found[1]), process.pid)
        connection = running.connect()
        translate(connection, "A first one.")
        connection.close()
        yield running
    finally:
        process.terminate()
        process.wait()


def translate(connection: http.client.HTTPConnection, text: str) -> tuple[int, Any]:
    """Status and answer."""
    body = json.dumps({"q": text, "source": "auto", "target": "de"})
    connection.request("POST", "/translate", body, JSON)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


@dataclass
class Answers:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)
    texts: list[tuple[int, str | None]] = field(default_factory=list)
    """Number of the text and its translation; None where there was none."""
    took: float = 0.0

    def percentile(self, share: float) -> float:
        """Milliseconds within which this share of the answers came."""
        ordered = sorted(self.seconds)
        return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)


def ask(running: RunningServer, texts: Sequence[str], clients: int, go_on: Callable[[int], bool]) -> Answers:
    """Clients that ask for one text after the other, each as soon as it has its answer, while `go_on(number)`."""
    answers = Answers()
    numbers = count()
    lock = threading.Lock()

    def client() -> None:
        connection = running.connect()
        while True:
            with lock:
                number = next(numbers)
            if not go_on(number):
                return
            place = number % len(texts)
            started = time.perf_counter()
            try:
                status, answer = translate(connection, texts[place])
            except (OSError, ValueError, http.client.HTTPException):
                connection.close()
                status, answer = 0, None
            took = time.perf_counter() - started
            with lock:
                answers.seconds.append(took)
                answers.texts.append((place, answer["translatedText"] if status == 200 else None))

    started = time.perf_counter()
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers.took = time.perf_counter() - started
    return answers


def for_seconds(seconds: float) -> Callable[[int], bool]:
    """Go on for so long."""
    end = time.perf_counter() + seconds
    return lambda number: time.perf_counter() < end
