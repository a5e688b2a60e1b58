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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reluformer import load
from reluformer.errors import ArgumentError
from reluformer.integrations.server.application import listen
from reluformer.integrations.server.limits import ServerLimits
from reluformer.integrations.server.model_registry import ModelRegistry

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

    @contextmanager
    def connect(self) -> Iterator[http.client.HTTPConnection]:
        """A connection, closed when the block ends."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            yield connection
        finally:
            connection.close()


def post(connection: http.client.HTTPConnection, body: bytes = BODY) -> None:
    """Ask for a translation; the answer is not read yet."""
    connection.request("POST", "/translate", body, {"Content-Type": "application/json"})


def answer_of(connection: http.client.HTTPConnection) -> tuple[int, dict[str, Any]]:
    response = connection.getresponse()
    return response.status, json.loads(response.read())


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
    with process.connect() as connection:
        post(connection)
        assert answer_of(connection)[0] == 200


def test_ten_megabytes_are_refused_and_the_answer_arrives(process: Process) -> None:
    with process.connect() as connection:
        post(connection, b"x" * (10 << 20))
        status, answer = answer_of(connection)
    assert (status, answer["code"]) == (413, "too_large")


def test_shutdown_finishes_what_it_took(runs: list[Path]) -> None:
    started = Process(runs[0])
    with started.connect() as waiting, started.connect() as probe:
        post(waiting)
        taken = False
        while not taken:  # until the engine has the request, or has finished it already
            probe.request("GET", "/metrics")
            figures = probe.getresponse().read().decode()
            taken = "reluformer_queue 1.0" in figures or 'path="/translate",status="200"}' in figures
        started.process.send_signal(signal.SIGTERM)
        status, answer = answer_of(waiting)
    assert status == 200 and answer["translatedText"]
    code, log = started.end()
    assert code == 0
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["status"] for line in lines if line.get("path") == "/translate"] == [200]
    assert "A dog" not in log


ENDLESS = """
import sys, threading
from pathlib import Path
from reluformer.integrations.server import application
from reluformer.integrations.server.application import listen
from reluformer.integrations.server.limits import ServerLimits
from reluformer.integrations.server.model_registry import ModelRegistry, ServedModel
from reluformer.integrations.server.schemas import Payload
from reluformer.loading import load

Payload.from_texts = lambda *_: threading.Event().wait()
models = ModelRegistry([ServedModel("model", load(Path(sys.argv[1])))])
ready = lambda address: print(address, flush=True)
application.serve(models, host="127.0.0.1", port=0, limits=ServerLimits(request_seconds=0.5), ready=ready)
"""


def test_a_parser_that_never_ends_outlives_neither_its_request_nor_the_process(runs: list[Path]) -> None:
    command = [sys.executable, "-c", ENDLESS, str(runs[0])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().rstrip("/\n").rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        post(connection, json.dumps({"q": "a " * 2000, "source": "en", "target": "de"}).encode())
        status, answer = answer_of(connection)
        connection.close()
        assert (status, answer["code"]) == (504, "timeout")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_what_is_no_http_gets_a_sentence_in_plain_text(process: Process) -> None:
    with socket.create_connection(("127.0.0.1", process.port), timeout=60) as line:
        line.sendall(b"no request\r\n\r\n")
        received = b""
        while piece := line.recv(4096):
            received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400") and b"text/plain" in head and body


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_what_cannot_be_a_host(models: ModelRegistry, host: str) -> None:
    from reluformer.integrations.server.application import serve

    with pytest.raises(ArgumentError, match=f"--host {host}: is not the name of a host"):
        serve(models, host=host, port=0, limits=ServerLimits())


def test_a_port_that_is_taken(models: ModelRegistry) -> None:
    from reluformer.integrations.server.application import serve

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ArgumentError, match=f"--port {port}: Address already in use; choose another one"):
            serve(models, host="127.0.0.1", port=port, limits=ServerLimits())


def test_connections_send_at_once() -> None:
    """Otherwise the body of an answer waits for the client to confirm its head."""
    with listen("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()), bound.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
