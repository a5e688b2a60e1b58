"""`reluformer data`: what a user types, and what comes back."""

from __future__ import annotations

import io
import json
import socket
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from reluformer.cli import app, main
from reluformer.translation.corpus import read_documents
from reluformer.translation.recipe import DataConfig

unpacks = pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="unpacking needs Python 3.11.4")


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    """A server with a small iwslt14 and nothing else."""
    archive = tmp_path / "served" / "fairseq" / "data" / "iwslt14" / "de-en.tgz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as tar:
        for name, text in iwslt14().items():
            member = tarfile.TarInfo(f"de-en/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    handler = partial(QuietHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def iwslt14() -> dict[str, bytes]:
    files = {}
    for language in ("de", "en"):
        talks = [f"<talkid>{talk}</talkid>\n{language} one\n{language} two\n" for talk in range(23)]
        files[f"train.tags.de-en.{language}"] = "".join(talks).encode()
        for part in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"):
            test = f'<doc docid="1"><seg id="1">{language} test</seg></doc>'
            files[f"IWSLT14.{part}.de-en.{language}.xml"] = test.encode()
    return files


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["data", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_list_says_which_checksums_are_unknown() -> None:
    shown = " ".join(run("list").split())
    for name in ("multi30k", "iwslt14", "europarl7", "wmt14"):
        assert name in shown
    assert "checksum: unknown for 1 file" in shown
    listed = {entry["name"]: entry for entry in json.loads(run("list", "--json"))}
    assert listed["iwslt14"]["files"][0]["checksum"] == "unknown"
    assert listed["multi30k"]["files"][0]["checksum"].startswith("md5:")
    assert all(entry["licence"] and entry["citation"] for entry in listed.values())


@unpacks
def test_get_downloads_converts_and_shows_the_recipe(tmp_path: Path, mirror: str) -> None:
    import yaml

    shown = run("get", "iwslt14", "--to", str(tmp_path / "my [bold]: data"), "--mirror", mirror)
    assert "checksum: unknown for 1 of 1 files" in " ".join(shown.split())
    assert "CC BY-NC-ND" in shown
    config = DataConfig(**yaml.safe_load(shown[shown.index("data:\n") :])["data"])
    assert (config.source_lang, config.target_lang) == ("de", "en")
    documents = {split: list(read_documents(source)) for split, source in config.splits.items()}
    assert {split: len(found) for split, found in documents.items()} == {"train": 22, "valid": 1, "test": 5}
    assert documents["train"][0].src == ("de one", "de two")


@unpacks
def test_get_twice_downloads_once(tmp_path: Path, mirror: str) -> None:
    arguments = ("get", "iwslt14", "--to", str(tmp_path), "--mirror", mirror)
    first = json.loads(run(*arguments, "--json"))
    (tmp_path / "served" / "fairseq" / "data" / "iwslt14" / "de-en.tgz").unlink()
    second = json.loads(run(*arguments, "--json"))
    assert (first.pop("fresh"), second.pop("fresh")) == (True, False)
    assert first == second
    assert first["splits"]["train"]["documents"] == 22
    assert "nothing was downloaded" in run(*arguments)


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as exit_of:
        main(["data", *arguments])
    assert exit_of.value.code == 1
    return capsys.readouterr().err


def test_a_server_without_the_file(tmp_path: Path, mirror: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = failure(capsys, "get", "multi30k", "--to", str(tmp_path), "--mirror", mirror)
    assert error.startswith("error: ") and "404" in error and "train.en.gz" in error


def test_no_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{unused.getsockname()[1]}"
        error = failure(capsys, "get", "wmt14", "--to", str(tmp_path), "--mirror", f"http://{host}")
    assert f"cannot reach {host}" in error
    assert "try again later" in error and f"by hand into {tmp_path / 'wmt14' / 'raw'}" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["get", "multi30"], "unknown set 'multi30'; did you mean 'multi30k'"),
        (["get", "multi30k", "--mirror", "file:///tmp"], "--mirror file:///tmp: give scheme and host"),
    ],
)
def test_wrong_names_leave_no_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert message in failure(capsys, *arguments, "--to", str(tmp_path / "data"))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("verb", ["list", "get"])
def test_every_verb_shows_an_example(verb: str) -> None:
    assert f"Example: reluformer data {verb}" in run(verb, "--help")
