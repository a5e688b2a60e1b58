"""Slow and broken clients of a server beside good ones, and a SIGTERM now and then.

Every answer is compared with the translation that the text gets alone. A request that meets a shutdown may be refused
with status 503, or be cut off: the server closes idle connections at once, and does not read what arrives on them
afterwards. Neither request is lost, because its client notices and may send it again. An answer that breaks off, and a
connection that is closed without a shutdown, are findings.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import reluformer as rf

WORDS = ("the", "cat", "saw", "a", "dog", "and", "it", "ran", "home", "because", "night", "was", "near", "1,234")
JSON = {"Content-Type": "application/json"}
CLIENTS, REQUESTS_OF_A_SERVER = 6, 1000
IDLE_SECONDS = 10.0
"""A client that did not run for so long connects anew, before the server closes its idle connection."""


class BrokenAnswer(Exception):
    """The connection was closed inside of an answer."""


class Server:
    """`reluformer serve` in a process of its own."""

    def __init__(self, run: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "reluformer",
            "serve",
            str(run),
            "--port",
            "0",
            "--beam",
            "1",
            "--threads",
            "1",
        ]
        quiet = ["--log-level", "warning", "--timeout", "1000"]
        self.process = subprocess.Popen(
            [*command, *quiet], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", self.process.stdout.readline())
        assert found, "the server did not start"
        self.port = int(found[1])
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200, "the server is not healthy"
        connection.close()

    def end(self) -> int:
        """Sends SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=120)


class Campaign:
    """Good clients that share one stream of requests, and a bad one."""

    def __init__(self, run: Path, seed: str, most: int, until: float) -> None:
        draw = random.Random(seed)
        self.texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))).capitalize() + "." for _ in range(40)]
        translator = rf.load(run, beam=1)
        self.expected = [translator.translate([text])[0] for text in self.texts]
        self.counts: Counter[str] = Counter()
        self._most, self._until, self._seed = most, until, seed
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._shuts_down = threading.Event()

    def serve(self, run: Path) -> None:
        """Starts servers one after the other, each for some requests."""
        while self._asked < self._most and time.monotonic() < self._until:
            server, self._ends, self._shuts_down = Server(run), threading.Event(), threading.Event()
            asked = self._asked + REQUESTS_OF_A_SERVER
            bad = threading.Thread(target=self._misbehave, args=(server.port,))
            good = [threading.Thread(target=self._ask, args=(server.port, client)) for client in range(CLIENTS)]
            for thread in (bad, *good):
                thread.start()
            while self._asked < min(asked, self._most) and time.monotonic() < self._until:
                time.sleep(0.05)
            self._shuts_down.set()
            code = server.end()  # while the clients are asking
            self._ends.set()
            for thread in (bad, *good):
                thread.join()
            self._count("SIGTERM" if code == 0 else f"FINDING exit code {code}")

    @property
    def _asked(self) -> int:
        return self.counts["right"] + sum(count for name, count in self.counts.items() if name.startswith("FINDING"))

    def _count(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1

    def _ask(self, port: int, client: int) -> None:
        draw = random.Random(f"{self._seed} {port} {client}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        answered = time.monotonic()
        while not self._ends.is_set():
            if time.monotonic() - answered > IDLE_SECONDS:
                connection.close()
            place = draw.randrange(len(self.texts))
            body = json.dumps({"q": self.texts[place], "source": "en", "target": "de"}).encode()
            try:
                status, answer = _slowly(connection, body, draw) if client == 0 else _at_once(connection, body)
            except TimeoutError:
                self._count("FINDING no answer")
                return
            except ConnectionRefusedError:  # the port is closed
                return
            except (BrokenAnswer, OSError, http.client.HTTPException) as error:
                self._count(cut_off(error, shuts_down=self._shuts_down.is_set()))
                connection.close()
                continue
            answered = time.monotonic()
            if status == 200:
                right = json.loads(answer)["translatedText"] == self.expected[place]
                self._count("right" if right else "FINDING a wrong translation")
            elif status == 408 and client == 0:  # its body may take too long on a busy machine
                self._count("too slow")
                connection.close()
            else:
                self._count("refused by a shutdown" if status == 503 else f"FINDING status {status}")
        connection.close()

    def _misbehave(self, port: int) -> None:
        draw = random.Random(f"{self._seed} {port}")
        text = " ".join(self.texts)
        while not self._ends.is_set():
            body = json.dumps({"q": text, "source": "en", "target": "de"}).encode()
            route = draw.choice(("/translate", "/translate/stream", "/inspect", "/translate_file", "/" + "x" * 3000))
            claimed = draw.choice((len(body), len(body), 10**9, -1))
            kind = draw.choice(
                ("application/json", "application/json", "text/plain", "multipart/form-data; boundary=x")
            )
            head = f"POST {route} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {claimed}\r\n\r\n"
            sent = draw.choice((head.encode() + body, head.encode() + body[:9], head.encode(), draw.randbytes(500)))
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=60) as line:
                    line.sendall(sent)
                    if draw.random() < 0.5:
                        line.settimeout(0.2)
                        line.recv(draw.choice((1, 4096)))
            except OSError:
                pass
            self._count("broken clients")
            self._ends.wait(0.02)  # a flood of them would only keep the good ones waiting


def cut_off(error: Exception, *, shuts_down: bool) -> str:
    """Returns what became of a request whose connection was closed before its answer had ended."""
    if isinstance(error, BrokenAnswer):
        return "FINDING an answer was cut off"
    return "cut off by a shutdown" if shuts_down else "FINDING cut off without a shutdown"


def _at_once(connection: http.client.HTTPConnection, body: bytes) -> tuple[int, bytes]:
    connection.request("POST", "/translate", body, JSON)
    return read_answer(connection)


def _slowly(connection: http.client.HTTPConnection, body: bytes, draw: random.Random) -> tuple[int, bytes]:
    """Sends a body byte by byte at first, and reads the answer byte by byte."""
    connection.putrequest("POST", "/translate")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders()
    cut = draw.randrange(min(20, len(body)))
    for place in range(cut):
        connection.send(body[place : place + 1])
        time.sleep(0.01)
    connection.send(body[cut:])
    return read_answer(connection, 7)


def read_answer(connection: http.client.HTTPConnection, at_once: int = 2**16) -> tuple[int, bytes]:
    """Returns the status and the body of an answer.

    Raises:
        BrokenAnswer: The connection was closed after the answer had begun. Before that, the errors are those of
            `http.client`.
    """
    try:
        response = connection.getresponse()
    except http.client.HTTPException as error:
        if isinstance(error, http.client.RemoteDisconnected):  # without a byte
            raise
        raise BrokenAnswer(str(error)) from None
    answer = b""
    try:
        while piece := response.read(at_once):
            answer += piece
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise BrokenAnswer(str(error)) from None
    if response.length:
        raise BrokenAnswer(f"{response.length} bytes are missing")
    return response.status, answer


def ask_server(run: Path, seed: str, most: int, until: float) -> Counter[str]:
    """Asks servers of a run for translations, until there were `most` answers or the time is over.

    Args:
        run: The run that is served.
        seed: Decides texts and mischief.
        most: The most requests of good clients.
        until: A time of `time.monotonic`.

    Returns:
        How many answers were right, how many requests a shutdown refused, and what else happened.
    """
    campaign = Campaign(run, seed, most, until)
    campaign.serve(run)
    return campaign.counts
