"""A real server in a process of its own, on loopback."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reluformer.decoding.translator import load

BODY = json.dumps({"q": "A dog ran home. " * 40, "source": "en", "target": "de"}).encode()


class Process:
    """`reluformer serve` and its port."""

    def __init__(self, *arguments: str | Path) -> None:
        command = [sys.executable, "-m", "reluformer", "serve", *map(str, arguments), "--port", "0", "--beam", "2"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r"open http://127\.0\.0\.1:(\d+)/ in a browser", self.process.stdout.readline())
        assert found, self.process.stderr and self.process.stderr.read()
        self.port = int(found[1])

    def end(self) -> tuple[int, str]:
        """Exit code and log, after SIGTERM."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=60)
        return self.process.returncode, log

    def post(self) -> http.client.HTTPConnection:
        """A request whose answer is not read yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/translate", BODY, {"Content-Type": "application/json"})
        return connection


@pytest.fixture(scope="module")
def process(runs: list[Path]) -> Iterator[Process]:
    started = Process(*runs)
    yield started
    started.end()


def test_clients_of_libretranslate(process: Process, runs: list[Path]) -> None:
    libretranslatepy = pytest.importorskip("libretranslatepy", reason="libretranslatepy is not installed")
    api = libretranslatepy.LibreTranslateAPI(f"http://127.0.0.1:{process.port}", api_key="any")
    assert api.translate("A dog ran.", "en", "de", timeout=60) == load(runs[0], beam=2).translate(["A dog ran."])[0]
    assert api.languages(timeout=60)[0] == {"code": "en", "name": "English", "targets": ["de"]}
    assert api.detect("A dog.", timeout=60) == [{"confidence": 100.0, "language": "en"}]


def test_clients_that_misbehave_do_not_stop_it(process: Process) -> None:
    head = (
        f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    for content in (b"\x00\xff" * 500 + b"\r\n\r\n", head.encode(), head.encode() + BODY[:9], head.encode() + BODY):
        with socket.create_connection(("127.0.0.1", process.port), timeout=60) as line:
            line.sendall(content)
    answer = process.post().getresponse()
    assert answer.status == 200


def test_ten_megabytes_are_refused_and_the_answer_arrives(process: Process) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=60)
    connection.request("POST", "/translate", b"x" * (10 << 20), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["code"]) == (413, "too_large")
    connection.close()


def test_shutdown_finishes_what_it_took(runs: list[Path]) -> None:
    started = Process(runs[0])
    first = started.post().getresponse()
    assert first.status == 200
    waiting = started.post()
    probe = http.client.HTTPConnection("127.0.0.1", started.port, timeout=60)
    taken = False
    while not taken:  # until the engine has the request
        probe.request("GET", "/metrics")
        figures = probe.getresponse().read().decode()
        taken = "reluformer_queue 1.0" in figures or 'path="/translate",status="200"} 2.0' in figures
    probe.close()
    started.process.send_signal(signal.SIGTERM)
    answer = waiting.getresponse()
    assert answer.status == 200 and json.loads(answer.read())["translatedText"]
    code, log = started.end()
    assert code == 0
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["status"] for line in lines if line.get("path") == "/translate"] == [200, 200]
    assert "A dog" not in log


def test_a_port_that_is_taken(runs: list[Path], process: Process) -> None:
    command = [sys.executable, "-m", "reluformer", "serve", str(runs[0]), "--port", str(process.port)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert f"--port {process.port}: Address already in use; choose another one" in result.stderr
