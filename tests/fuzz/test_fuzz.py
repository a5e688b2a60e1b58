"""A short campaign of the fuzzers, and the findings of long ones, which are kept in `cases`."""

from __future__ import annotations

import http.client
import importlib
import importlib.util
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# Python 3.12 warns of a fork beside threads; the forks of the campaign use nothing that a thread holds.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
HERE = Path(__file__).parent
INPUTS = 150
SECONDS = 60.0
"""A test must not depend on how busy a machine is; what hangs, hangs for longer."""
CASES = sorted(path for path in (HERE / "cases").iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def campaign() -> Iterator[ModuleType]:
    """The module of the campaign, which is a command and no part of a package."""
    spec = importlib.util.spec_from_file_location("fuzz_campaign", HERE / "campaign.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    sys.modules[spec.name] = module  # dataclasses look there for the module of their types
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def base(campaign: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fuzz") / "base"
    campaign.targets.make_base(directory)
    return directory


@pytest.mark.parametrize("kind", ["documents", "corpora", "texts", "recipes", "models", "language", "runs", "bodies"])
def test_damaged_input_works_or_is_refused(campaign: ModuleType, base: Path, tmp_path: Path, kind: str) -> None:
    whole = campaign.base_files(kind, base)
    for number in range(INPUTS):
        campaign.write(campaign.inputs.make(kind, whole, 0, number), tmp_path / "input")
        found = campaign.outcome(kind, tmp_path / "input", base).result
        assert found in campaign.GOOD, f"python tests/fuzz/campaign.py --kinds {kind}: number {number}"


@pytest.mark.parametrize("kind", ["models", "language", "runs"])
def test_whole_files_are_no_finding(campaign: ModuleType, base: Path, tmp_path: Path, kind: str) -> None:
    campaign.write(campaign.base_files(kind, base), tmp_path / "input")
    assert campaign.outcome(kind, tmp_path / "input", base).result == "ok"


def test_the_same_seed_gives_the_same_input(campaign: ModuleType, base: Path) -> None:
    for kind in campaign.inputs.KINDS:
        whole = campaign.base_files(kind, base)
        first, again = (campaign.inputs.make(kind, whole, 3, 7) for _ in range(2))
        assert first == again != campaign.inputs.make(kind, whole, 3, 8)


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_a_finding_does_not_come_back(campaign: ModuleType, base: Path, tmp_path: Path, case: Path) -> None:
    kind = case.name.partition("-")[0]
    files = {**campaign.base_files(kind, base), **campaign.inputs.read_files(case)}
    campaign.write(files, tmp_path / "input")
    worker = campaign.Worker(kind, base, tmp_path / "input")
    try:
        assert worker.use(SECONDS).result in campaign.GOOD
    finally:
        worker.close()


def test_a_finding_is_noticed(
    campaign: ModuleType, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(directory: Path, whole: Path) -> None:
        raise KeyError("x")

    monkeypatch.setitem(campaign.targets.TARGETS, "documents", fail)
    tally, summary = campaign.Tally(0, None), campaign.Summary(None)
    campaign.fuzz("documents", base, tmp_path / "input", tally, 2, float("inf"), tmp_path / "kept", summary)
    assert tally.outcomes == {"findings": 2} and tally.inputs == 2
    assert [finding["number"] for finding in tally.findings] == [0, 1]
    assert all(finding["what"].startswith("KeyError in ") for finding in tally.findings)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["documents-0-0", "documents-0-1"]


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"", "cut off by a shutdown"),
        (b"HTTP/1.1 2", "FINDING an answer was cut off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "FINDING an answer was cut off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", None),
    ],
    ids=["nothing", "half_a_line", "half_an_answer", "an_answer"],
)
@pytest.mark.parametrize("at_once", [7, 2**16])
def test_a_shutdown_may_cut_off_a_request_and_no_answer(
    campaign: ModuleType, sent: bytes, told: str | None, at_once: int
) -> None:
    clients = importlib.import_module("clients")
    connection = http.client.HTTPConnection("nowhere")
    connection.sock, server = socket.socketpair()
    with server, closing(connection):
        connection.request("GET", "/")
        server.recv(2**16)
        server.sendall(sent)
        server.shutdown(socket.SHUT_WR)
        if told is None:
            assert clients.read_answer(connection, at_once) == (200, b"{}")
            return
        with pytest.raises((clients.BrokenAnswer, http.client.RemoteDisconnected)) as error:
            clients.read_answer(connection, at_once)
    assert clients.cut_off(error.value, shuts_down=True) == told
    assert clients.cut_off(error.value, shuts_down=False).startswith("FINDING")


def test_a_campaign_resumes_from_its_summary(campaign: ModuleType, base: Path, tmp_path: Path) -> None:
    def fuzz(path: Path, most: int) -> Any:
        summary = campaign.Summary(path)
        tally = summary.tally("recipes", 5)
        campaign.fuzz("recipes", base, tmp_path / "input", tally, most, float("inf"), None, summary)
        return json.loads(path.read_text(encoding="utf-8"))["kinds"]["recipes"]

    assert fuzz(tmp_path / "a.json", 3)["inputs"] == 3
    resumed, whole = fuzz(tmp_path / "a.json", 8), fuzz(tmp_path / "b.json", 8)
    assert resumed["outcomes"] == whole["outcomes"] and sum(resumed["outcomes"].values()) == resumed["inputs"] == 8
    assert campaign.Summary(tmp_path / "a.json").tally("recipes", 6).inputs == 0
