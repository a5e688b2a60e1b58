"""Many requests, every answer compared with the one that its text got alone, while other clients misbehave."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from serving_load import RunningServer, ask, server

WARM_UP = 500
"""Requests before memory is first read."""
OPTIONS = ("--beam", "1", "--timeout", "1000")
"""It is about answers, not about translations: greedy search, and patience with a machine that is busy."""


def soak(run: Path, texts: list[str], clients: int, requests: int) -> dict[str, Any]:
    """What got lost, what was swapped, what memory did, and how mischief was answered."""
    with server(run, *OPTIONS) as running:
        alone = dict(ask(running, texts, 1, lambda number: number < len(texts)).texts)
        if None in alone.values():
            raise SystemExit("a text got no answer when it was asked alone; there is nothing to compare with")
        ask(running, texts, clients, lambda number: number < WARM_UP)
        before = running.resident_megabytes
        mischief = Mischief(running)
        mischief.start()
        answers = ask(running, texts, clients, lambda number: number < requests)
        outcomes = mischief.stop()
        after = running.resident_megabytes
    known = set(alone.values())
    different = [(place, text) for place, text in answers.texts if text is not None and text != alone[place]]
    return {
        "requests": len(answers.texts),
        "clients": clients,
        "options": " ".join(OPTIONS),
        "lost": sum(text is None for _, text in answers.texts),
        "other_than_alone": len(different),
        "swapped": sum(text in known for _, text in different),
        "requests_per_second": round(len(answers.texts) / answers.took, 1),
        "resident_megabytes": {"after_warm_up": before, "at_the_end": after},
        "mischief": outcomes,
    }


class Mischief:
    """A client that does everything wrong, again and again, and counts how it is answered."""

    def __init__(self, running: RunningServer) -> None:
        self._running = running
        self._chance = random.Random(0)
        self._outcomes: dict[str, Counter[str]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> dict[str, dict[str, int]]:
        """End, and tell the answers by kind of mischief."""
        self._ended.set()
        self._thread.join()
        return {name: dict(counts) for name, counts in self._outcomes.items()}

    def _run(self) -> None:
        kinds: dict[str, Callable[[], str]] = {
            "malformed JSON": lambda: self._post(b'{"q": "A dog", "target": '),
            "ten megabytes": lambda: self._post(json.dumps({"q": "a " * 5_000_000, "target": "de"}).encode()),
            "random bytes as a body": lambda: self._post(self._chance.randbytes(1000)),
            "random bytes as a request": lambda: self._raw(self._chance.randbytes(1000)),
            "gone before the body": lambda: self._leave(0),
            "gone after the body": lambda: self._leave(None),
            "a body that stops": lambda: self._leave(10),
        }
        while not self._ended.wait(0.5):
            for name, act in kinds.items():
                try:
                    outcome = act()
                except (OSError, http.client.HTTPException) as error:
                    outcome = type(error).__name__
                self._outcomes.setdefault(name, Counter())[outcome] += 1

    def _post(self, body: bytes) -> str:
        connection = self._running.connect()
        try:
            connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
            return str(connection.getresponse().status)
        finally:
            connection.close()

    def _raw(self, content: bytes) -> str:
        with socket.create_connection(("127.0.0.1", self._running.port), timeout=60) as line:
            line.sendall(content + b"\r\n\r\n")
            return line.recv(4096).partition(b"\r\n")[0].decode("latin-1") or "closed"

    def _leave(self, sent: int | None) -> str:
        body = json.dumps({"q": "A dog runs home. " * 20, "target": "de"}).encode()
        head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        with socket.create_connection(("127.0.0.1", self._running.port), timeout=60) as line:
            line.sendall(head.encode() + b"\r\n\r\n" + body[:sent])
        return "left"
