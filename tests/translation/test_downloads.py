"""Public sets: downloads that break, resume and lie, and the conversion of all four sets.

Everything is served from this machine: tiny files in the formats of the real ones.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import re
import socket
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request

import pytest

from reluformer.downloads import Checksum, Digests, Patience, RemoteFile, WebRedirects, fetch
from reluformer.errors import ArgumentError, DataError, ReluformerError, StorageError, UnknownNameError
from reluformer.translation.corpus import read_documents
from reluformer.translation.document import Skipped, SkipReason
from reluformer.translation.downloads import convert
from reluformer.translation.downloads.catalogue import (
    DATASETS,
    RECORD,
    Dataset,
    ObtainedSet,
    find,
    obtain,
)
from reluformer.translation.downloads.convert import CONVERTERS, extract
from reluformer.translation.recipe import CorpusSource, DataConfig

NO_PAUSE = Patience(attempts=3, timeout=5, pause=lambda seconds: None)

unpacks = pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="unpacking needs Python 3.11.4")


class Site:
    """A web server on this machine, and how it misbehaves."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.files: dict[str, bytes] = {}
        self.cuts: list[int] = []
        """Bytes after which the next answers break off."""
        self.answers: list[int] = []
        """Status codes of the next answers, instead of the file."""
        self.redirects: dict[str, str] = {}
        self.ranges = True
        self.lengths: bool | str = True
        """Whether answers have a Content-Length, or which one."""
        self.version: str | None = '"first"'
        self.requests: list[tuple[str, str | None]] = []
        """Path and Range of every request."""

    def url(self, path: str) -> str:
        return self.address + path


class Handler(BaseHTTPRequestHandler):
    site: Site

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        site, wanted = self.site, self.headers.get("Range")
        site.requests.append((self.path, wanted))
        if self.path in site.redirects:
            self._head(302, Location=site.redirects[self.path])
        elif site.answers or self.path not in site.files:
            self._head(site.answers.pop(0) if site.answers else 404)
        else:
            self._send(site.files[self.path], wanted)

    def _send(self, content: bytes, wanted: str | None) -> None:
        site, start, headers = self.site, 0, {}
        if wanted and site.ranges and self.headers.get("If-Range") == site.version:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self._head(416, Content_Range=f"bytes */{len(content)}")
                return
            headers["Content_Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if site.version:
            headers["ETag"] = site.version
        length = str(len(content) - start) if site.lengths is True else site.lengths or None
        self._head(206 if start else 200, **headers, Content_Length=length)
        body = content[start:]
        self.wfile.write(body[: site.cuts.pop(0)] if site.cuts else body)

    def _head(self, status: int, **headers: str | None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def site() -> Iterator[Site]:
    handler = type("HandlerOfOneTest", (Handler,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        site = handler.site = Site(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield site
        server.shutdown()
        thread.join()


CONTENT = bytes(range(256)) * 4000


# --- one file


def test_a_file_is_downloaded_and_digested(site: Site, tmp_path: Path) -> None:
    site.files["/a.bin"] = CONTENT
    seen: list[tuple[str, int, int | None]] = []
    digests = fetch(site.url("/a.bin"), tmp_path / "new" / "a.bin", progress=lambda *step: seen.append(step))
    assert (tmp_path / "new" / "a.bin").read_bytes() == CONTENT
    assert digests == Digests(hashlib.sha256(CONTENT).hexdigest(), hashlib.md5(CONTENT).hexdigest(), len(CONTENT))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.bin"]
    assert seen[0] == ("a.bin", 0, len(CONTENT)) and seen[-1] == ("a.bin", len(CONTENT), len(CONTENT))


def test_a_cut_connection_is_resumed(site: Site, tmp_path: Path) -> None:
    site.files["/a.bin"] = CONTENT
    site.cuts = [300_000, 200_000]
    fetch(site.url("/a.bin"), tmp_path / "a.bin", patience=NO_PAUSE)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert [wanted for _, wanted in site.requests] == [None, "bytes=300000-", "bytes=500000-"]


def test_a_later_call_resumes_what_an_earlier_one_left(site: Site, tmp_path: Path) -> None:
    site.files["/a.bin"] = CONTENT
    site.cuts = [300_000]
    once = dataclasses.replace(NO_PAUSE, attempts=1)
    with pytest.raises(
        DataError, match=r"closed after 300,000 of 1,024,000 bytes; .*300,000 bytes that arrived are kept"
    ):
        fetch(site.url("/a.bin"), tmp_path / "a.bin", patience=once)
    assert not (tmp_path / "a.bin").exists()
    assert (tmp_path / "a.bin.part").stat().st_size == 300_000
    fetch(site.url("/a.bin"), tmp_path / "a.bin", patience=once)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert site.requests[-1] == ("/a.bin", "bytes=300000-")


@pytest.mark.parametrize(("ranges", "version"), [(False, '"first"'), (True, None)], ids=["no-range", "no-version"])
def test_a_server_that_cannot_resume_sends_everything_again(
    site: Site, tmp_path: Path, ranges: bool, version: str | None
) -> None:
    site.files["/a.bin"], site.ranges, site.version = CONTENT, ranges, version
    site.cuts = [300_000]
    fetch(site.url("/a.bin"), tmp_path / "a.bin", patience=NO_PAUSE)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert len(site.requests) == 2


def test_two_versions_of_a_file_are_never_spliced(site: Site, tmp_path: Path) -> None:
    site.files["/a.bin"] = CONTENT
    site.cuts = [300_000]
    with pytest.raises(DataError):
        fetch(site.url("/a.bin"), tmp_path / "a.bin", patience=dataclasses.replace(NO_PAUSE, attempts=1))
    site.files["/a.bin"], site.version = CONTENT[::-1], '"second"'
    fetch(site.url("/a.bin"), tmp_path / "a.bin", patience=NO_PAUSE)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT[::-1]


def test_a_part_that_was_whole_already_is_finished(site: Site, tmp_path: Path) -> None:
    site.files["/a.bin"] = CONTENT
    (tmp_path / "a.bin.part").write_bytes(CONTENT)
    (tmp_path / "a.bin.part.version").write_text('"first"')
    fetch(site.url("/a.bin"), tmp_path / "a.bin", patience=NO_PAUSE)
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_a_part_longer_than_the_file_is_thrown_away(site: Site, tmp_path: Path) -> None:
    site.files["/a.bin"] = CONTENT
    (tmp_path / "a.bin.part").write_bytes(CONTENT + b"more")
    (tmp_path / "a.bin.part.version").write_text('"first"')
    fetch(site.url("/a.bin"), tmp_path / "a.bin", patience=NO_PAUSE)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_a_server_in_trouble_is_asked_again_with_growing_pauses(site: Site, tmp_path: Path) -> None:
    site.files["/a.bin"], site.answers = b"text", [500, 503]
    pauses: list[float] = []
    fetch(site.url("/a.bin"), tmp_path / "a.bin", patience=Patience(pause=pauses.append))
    assert (tmp_path / "a.bin").read_bytes() == b"text"
    assert pauses == [1.0, 2.0]


def test_a_server_that_stays_in_trouble_is_given_up(site: Site, tmp_path: Path) -> None:
    site.answers = [500] * 9
    with pytest.raises(DataError, match=r"gave up after 3 attempts: the server answers 500 .*try again later.*by hand"):
        fetch(site.url("/a.bin"), tmp_path / "a.bin", patience=NO_PAUSE)
    assert len(site.requests) == 3


def test_a_missing_file_is_not_asked_for_again(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"/a\.bin: the server answers 404 Not Found; .*by hand.*--mirror"):
        fetch(site.url("/a.bin"), tmp_path / "a.bin", patience=NO_PAUSE)
    assert len(site.requests) == 1


def test_without_network_the_message_names_the_host_and_two_ways_out(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(DataError) as caught:
            fetch(f"http://{host}/a.bin", tmp_path / "raw" / "a.bin", patience=NO_PAUSE)
    message = str(caught.value)
    assert f"cannot reach {host}" in message and "\n" not in message
    assert "either try again later" in message
    assert f"or download http://{host}/a.bin by hand into {tmp_path / 'raw'}" in message


def test_a_file_of_another_size_than_published_is_not_downloaded(site: Site, tmp_path: Path) -> None:
    site.files["/a.bin"] = CONTENT
    with pytest.raises(DataError, match="has 1,024,000 bytes, but 7 are published"):
        fetch(site.url("/a.bin"), tmp_path / "a.bin", size=7, patience=NO_PAUSE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.org/a", "/etc/passwd"])
def test_other_schemes_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ArgumentError, match="only http:// and https://"):
        fetch(url, tmp_path / "a.bin")


def test_redirects_are_followed_and_the_rest_is_asked_for_there(site: Site, tmp_path: Path) -> None:
    site.redirects["/old.bin"] = site.url("/a.bin")
    site.files["/a.bin"], site.cuts = CONTENT, [300_000]
    fetch(site.url("/old.bin"), tmp_path / "a.bin", patience=NO_PAUSE)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT
    assert site.requests[-1] == ("/a.bin", "bytes=300000-")


def test_redirects_out_of_the_web_are_refused(site: Site, tmp_path: Path) -> None:
    site.redirects["/a.bin"] = "ftp://127.0.0.1/a.bin"
    with pytest.raises(DataError, match="redirects to ftp://"):
        fetch(site.url("/a.bin"), tmp_path / "a.bin", patience=NO_PAUSE)


def test_redirects_from_https_to_http_are_refused() -> None:
    secure = Request("https://example.org/a.bin")
    with pytest.raises(DataError, match="not safe to follow"):
        WebRedirects().redirect_request(secure, None, 302, "Found", {}, "http://example.org/a.bin")


def test_a_target_that_cannot_be_written(site: Site, tmp_path: Path) -> None:
    site.files["/a.bin"] = CONTENT
    (tmp_path / "raw").write_text("a file where the directory should be")
    with pytest.raises(StorageError, match=r"cannot be written: .*--to"):
        fetch(site.url("/a.bin"), tmp_path / "raw" / "a.bin", patience=NO_PAUSE)


# --- the catalogue


def test_the_catalogue_is_sound() -> None:
    assert DATASETS.keys() == CONVERTERS.keys()
    for dataset in DATASETS.values():
        names = [file.name for file in dataset.files]
        assert len(set(names)) == len(names)
        for file in dataset.files:
            assert file.url.startswith("https://")
            if file.checksum:
                length = {"sha256": 64, "md5": 32}[file.checksum.algorithm]
                assert re.fullmatch(f"[0-9a-f]{{{length}}}", file.checksum.digest)
    assert find("iwslt14").checksums == "unknown for 1 file"


def test_a_mirror_takes_the_place_of_scheme_and_host() -> None:
    file = RemoteFile("https://example.org/a/b.tgz")
    assert file.address() == "https://example.org/a/b.tgz"
    assert file.address("http://127.0.0.1:8000") == "http://127.0.0.1:8000/a/b.tgz"
    assert file.address("https://mirror.example.org/copy/") == "https://mirror.example.org/copy/a/b.tgz"
    for mirror in ("file:///tmp", "mirror.example.org"):
        with pytest.raises(ArgumentError, match="give scheme and host"):
            file.address(mirror)


def test_a_mistyped_set() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'multi30k'"):
        find("multi30")


# --- the four sets


def packed(members: dict[str, str]) -> bytes:
    """A .tgz of text files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            content = text.encode()
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def segments(documents: dict[str, list[str]], kind: str) -> str:
    """The markup of the WMT and IWSLT tests."""
    lines = [f'<{kind} setid="test" srclang="any">']
    for name, sentences in documents.items():
        lines += [f'<doc docid="{name}" genre="news" origlang="de">', "<title>A title</title>", "<p>"]
        lines += [f'<seg id="{number}"> {text} </seg>' for number, text in enumerate(sentences, start=1)]
        lines += ["</p>", "</doc>"]
    return "\n".join([*lines, f"</{kind}>", ""])


def talks(language: str, number: int) -> str:
    """The markup of the IWSLT training files."""
    lines = []
    for talk in range(number):
        lines += [
            f"<url>http://example.org/{talk}</url>",
            "<keywords>talks, words</keywords>",
            f"<talkid>{100 + talk}</talkid>",
            f"<title>Title {language}</title>",
            f"<description>Description {language}</description>",
            f"{language} {talk} one & all",
            f" {language} {talk} <i>two</i> ",
        ]
    return "\n".join(lines) + "\n"


LONG = "this sentence of the debate has certainly more than ten words"
LANG = "dieser Satz der Debatte hat ganz gewiss mehr als nur zehn Wörter"


def contents_of(name: str) -> dict[str, bytes]:
    """The files of a set by their names, small, in the formats of the real ones."""
    if name == "multi30k":
        return {
            f"{stem}.{language}.gz": gzip.compress("".join(f"{language} {n}\n" for n in range(number)).encode())
            for stem, number in (("train", 5), ("val", 3), ("test_2016_flickr", 2))
            for language in ("en", "de")
        }
    if name == "iwslt14":
        members = {f"de-en/train.tags.de-en.{language}": talks(language, 24) for language in ("de", "en")}
        for part in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"):
            for language in ("de", "en"):
                text = segments({"7": [f"{language} eins", f"{language} zwei"]}, "refset")
                members[f"de-en/IWSLT14.{part}.de-en.{language}.xml"] = text
        return {"de-en.tgz": packed(members)}
    if name == "europarl7":
        rows = ["Guten Tag\tGood day", "Danke\tThank you", "\t", "Eins\tOne\tzu viel", "Zwei\tTwo", "\tThree", ""]
        rows += ["Auch das\tThis too", f"{LANG}\t{LONG}", "", "Ende\tEnd"]
        return {
            "concatenated_en2de_dev_en.txt": f"<d>\nFirst\nSecond\n<d>\n{LONG.replace('debate', 'Debate ')}\n".encode(),
            "concatenated_en2de_dev_de.txt": b"<d>\nErster\nZweiter\n<d>\nDritter\n",
            "concatenated_en2de_test_en.txt": b"<d>\nGood day\n<d>\nOne\nTwo\n",
            "concatenated_en2de_test_de.txt": b"<d>\nGuten Tag\n<d>\nEins\n",
            "europarl-v9.de-en.tsv.gz": gzip.compress("\n".join(rows).encode()),
        }
    assert name == "wmt14"

    def pairs(stem: str, english: str, german: str) -> bytes:
        return packed(
            {f"training/{stem}.de-en.en": english, f"training/{stem}.de-en.de": german, "training/other": "x"}
        )

    news = {"paper.1": ["One &amp; two", "AT&T &quot;three&quot;"], "paper.2": ["Four"]}
    reordered = {"paper.2": ["Vier"], "paper.1": ["Eins &amp; zwei", "Drei"]}
    return {
        "training-parallel-europarl-v7.tgz": pairs("europarl-v7", "One\n\nThree\n", "Eins\nZwei\nDrei\n"),
        "training-parallel-commoncrawl.tgz": pairs("commoncrawl", "A\u2028B\n", "C D\n"),
        "training-parallel-nc-v9.tgz": pairs("news-commentary-v9", "News\n", "Nachrichten\n"),
        "test.tgz": packed(
            {
                "test/newstest2013-src.en.sgm": segments(news, "srcset"),
                "test/newstest2013-src.de.sgm": segments(reordered, "srcset"),
            }
        ),
        "test-full.tgz": packed(
            {
                "test-full/newstest2014-deen-src.en.sgm": segments({**news, "paper.3": ["Five"]}, "srcset"),
                "test-full/newstest2014-deen-ref.de.sgm": segments(reordered, "refset"),
            }
        ),
    }


def served(site: Site, name: str) -> Dataset:
    """The set as the catalogue has it, with made files behind its addresses and their true checksums."""
    contents, dataset, files = contents_of(name), find(name), []
    for file in dataset.files:
        content = contents[file.name]
        path = RemoteFile.address(file, site.address).removeprefix(site.address)
        site.files[path] = content
        checksum = file.checksum and Checksum(
            file.checksum.algorithm, hashlib.new(file.checksum.algorithm, content).hexdigest(), "this test"
        )
        files.append(RemoteFile(file.url, checksum, file.size and len(content)))
    return dataclasses.replace(dataset, files=tuple(files))


def documents_of(outcome: ObtainedSet) -> dict[str, list[tuple[str, tuple[str, ...], tuple[str, ...] | None]]]:
    """What a training run would read."""
    config = DataConfig(**{split: CorpusSource(path=path) for split, path in outcome.paths.items()})
    return {
        split: [(document.id, document.src, document.tgt) for document in read_documents(source)]
        for split, source in config.splits.items()
    }


def test_multi30k(site: Site, tmp_path: Path) -> None:
    outcome = obtain(served(site, "multi30k"), tmp_path, mirror=site.address, patience=NO_PAUSE)
    splits = documents_of(outcome)
    assert {split: len(documents) for split, documents in splits.items()} == {"train": 5, "valid": 3, "test": 2}
    assert splits["train"][4][1:] == (("en 4",), ("de 4",))


@unpacks
def test_iwslt14(site: Site, tmp_path: Path) -> None:
    outcome = obtain(served(site, "iwslt14"), tmp_path, mirror=site.address, patience=NO_PAUSE)
    splits = documents_of(outcome)
    assert {split: len(documents) for split, documents in splits.items()} == {"train": 23, "valid": 1, "test": 5}
    assert splits["train"][0] == (
        "talk:100",
        ("de 0 one & all", "de 0 <i>two</i>"),
        ("en 0 one & all", "en 0 <i>two</i>"),
    )
    assert splits["valid"][0][0] == "talk:122"
    assert splits["test"][1] == ("TEDX.dev2012:7", ("de eins", "de zwei"), ("en eins", "en zwei"))
    assert outcome.record["files"]["de-en.tgz"]["published_checksum"] == "unknown"


def test_europarl7(site: Site, tmp_path: Path) -> None:
    outcome = obtain(served(site, "europarl7"), tmp_path, mirror=site.address, patience=NO_PAUSE)
    splits = documents_of(outcome)
    assert splits["train"] == [
        ("europarl-v9:1", ("Good day", "Thank you"), ("Guten Tag", "Danke")),
        ("europarl-v9:2", ("Two",), ("Zwei",)),
        ("europarl-v9:4", ("End",), ("Ende",)),
    ]
    assert [len(src) for _, src, _ in splits["valid"]] == [2, 1]
    assert splits["test"] == [("maruf-test:0", ("Good day",), ("Guten Tag",))]
    left_out = {split: outcome.record["splits"][split]["left_out"] for split in splits}
    assert left_out["train"].keys() == {SkipReason.EMPTY, SkipReason.COLUMNS, SkipReason.LEAKED}
    assert left_out["train"][SkipReason.LEAKED]["places"] == ["europarl-v9:3"]
    assert left_out["test"] == {SkipReason.MISALIGNED: {"count": 1, "places": ["maruf-test:1"]}}


@unpacks
def test_wmt14(site: Site, tmp_path: Path) -> None:
    outcome = obtain(served(site, "wmt14"), tmp_path, mirror=site.address, patience=NO_PAUSE)
    splits = documents_of(outcome)
    assert [document[1:] for document in splits["train"]] == [
        (("One",), ("Eins",)),
        (("Three",), ("Drei",)),
        (("A B",), ("C D",)),
        (("News",), ("Nachrichten",)),
    ]
    assert outcome.record["splits"]["train"]["left_out"][SkipReason.EMPTY]["count"] == 1
    assert splits["valid"] == [
        ("newstest2013:paper.1", ("One & two", 'AT&T "three"'), ("Eins & zwei", "Drei")),
        ("newstest2013:paper.2", ("Four",), ("Vier",)),
    ]
    assert len(splits["test"]) == 2
    assert outcome.record["splits"]["test"]["left_out"] == {
        SkipReason.ONE_SIDED: {"count": 1, "places": ["newstest2014:paper.3"]}
    }


@unpacks
def test_files_and_nothing_else_are_left(site: Site, tmp_path: Path) -> None:
    outcome = obtain(served(site, "wmt14"), tmp_path, mirror=site.address, patience=NO_PAUSE)
    assert outcome.directory == tmp_path / "wmt14"
    left = {path.name for path in outcome.directory.iterdir()}
    assert left == {"train.jsonl.gz", "valid.jsonl.gz", "test.jsonl.gz", "raw", RECORD}
    assert {path.name for path in (outcome.directory / "raw").iterdir()} == contents_of("wmt14").keys()


# --- once more, and when files change


def test_a_second_call_finds_everything_done(site: Site, tmp_path: Path) -> None:
    dataset = served(site, "multi30k")
    first = obtain(dataset, tmp_path, mirror=site.address, patience=NO_PAUSE)
    asked = len(site.requests)
    second = obtain(dataset, tmp_path, mirror=site.address, patience=NO_PAUSE)
    assert (first.fresh, second.fresh) == (True, False)
    assert len(site.requests) == asked
    assert second.record == first.record


def test_two_at_once_download_once(site: Site, tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="this system has no file locks")
    dataset = served(site, "multi30k")
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(obtain, dataset, tmp_path, mirror=site.address, patience=NO_PAUSE) for _ in range(2)]
    assert sorted(outcome.result().fresh for outcome in both) == [False, True]
    assert len(site.requests) == len(dataset.files)


def test_a_damaged_result_is_made_again_from_the_raw_files(site: Site, tmp_path: Path) -> None:
    dataset = served(site, "multi30k")
    outcome = obtain(dataset, tmp_path, mirror=site.address, patience=NO_PAUSE)
    whole = outcome.paths["train"].read_bytes()
    outcome.paths["train"].write_bytes(b"x" * len(whole))
    asked = len(site.requests)
    assert obtain(dataset, tmp_path, mirror=site.address, patience=NO_PAUSE).fresh
    assert outcome.paths["train"].read_bytes() == whole
    assert len(site.requests) == asked


@unpacks
def test_files_downloaded_by_hand_need_no_network(tmp_path: Path) -> None:
    raw = tmp_path / "iwslt14" / "raw"
    raw.mkdir(parents=True)
    (raw / "de-en.tgz").write_bytes(contents_of("iwslt14")["de-en.tgz"])
    outcome = obtain(find("iwslt14"), tmp_path, mirror="http://127.0.0.1:9", patience=NO_PAUSE)
    assert outcome.record["splits"]["train"]["documents"] == 23


def test_a_wrong_checksum_is_an_error_and_the_download_is_deleted(site: Site, tmp_path: Path) -> None:
    dataset = served(site, "multi30k")
    path = next(path for path in site.files if path.endswith("/val.de.gz"))
    site.files[path] = gzip.compress(b"tampered\n")
    with pytest.raises(DataError, match=r"val\.de\.gz: md5 is \w+, but this test publishes \w+: truncated or tampered"):
        obtain(dataset, tmp_path, mirror=site.address, patience=NO_PAUSE)
    raw = {file.name for file in (tmp_path / "multi30k" / "raw").iterdir()}
    assert raw == {"train.en.gz", "train.de.gz", "val.en.gz"}
    assert not (tmp_path / "multi30k" / "train.jsonl.gz").exists()


def test_a_file_put_there_by_hand_is_checked_and_never_deleted(site: Site, tmp_path: Path) -> None:
    raw = tmp_path / "multi30k" / "raw"
    raw.mkdir(parents=True)
    (raw / "train.en.gz").write_bytes(b"half a file")
    with pytest.raises(DataError, match=r"train\.en\.gz: md5 is .*; delete it and run the command again"):
        obtain(served(site, "multi30k"), tmp_path, mirror=site.address, patience=NO_PAUSE)
    assert (raw / "train.en.gz").read_bytes() == b"half a file"
    assert site.requests == []


PORTAL = b"\n<!DOCTYPE html>\n<html><body>Welcome to the airport. Please accept our terms.</body></html>\n"


@pytest.mark.parametrize("page", [PORTAL, b"<d>not one, but many lines of it\n" * 9], ids=["page", "other text"])
@pytest.mark.parametrize("name", [pytest.param("iwslt14", marks=unpacks), "europarl7"])
def test_what_is_not_the_file_is_never_recorded_as_its_first_download(
    site: Site, tmp_path: Path, name: str, page: bytes
) -> None:
    dataset = served(site, name)
    path = next(iter(site.files))
    original, site.files[path] = site.files[path], page
    with pytest.raises(DataError) as error:
        obtain(dataset, tmp_path, mirror=site.address, patience=NO_PAUSE)
    raw = tmp_path / name / "raw" / dataset.files[0].name
    if page is PORTAL:
        assert "the server sent a web page instead of the file" in str(error.value)
        assert not raw.exists()
    raw.unlink(missing_ok=True)
    site.files[path] = original
    assert obtain(dataset, tmp_path, mirror=site.address, patience=NO_PAUSE).fresh


def test_a_page_that_a_browser_saved_is_refused_as_well(tmp_path: Path) -> None:
    raw = tmp_path / "iwslt14" / "raw"
    raw.mkdir(parents=True)
    (raw / "de-en.tgz").write_bytes(PORTAL)
    with pytest.raises(DataError, match=r"de-en\.tgz: the server sent a web page"):
        obtain(find("iwslt14"), tmp_path, mirror="http://127.0.0.1:9", patience=NO_PAUSE)
    assert (raw / "de-en.tgz").read_bytes() == PORTAL


@pytest.mark.parametrize("told", [True, False], ids=["content-length", "endless"])
def test_a_download_without_a_published_size_has_a_limit(site: Site, tmp_path: Path, told: bool) -> None:
    site.files["/a.bin"], site.lengths = CONTENT, told
    with pytest.raises(DataError, match="sends more than 600,000 bytes"):
        fetch(site.url("/a.bin"), tmp_path / "a.bin", most=600_000, patience=NO_PAUSE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("length", ["²", "9" * 5000], ids=["not ASCII", "long"])
def test_a_length_that_is_no_number_is_ignored(site: Site, tmp_path: Path, length: str) -> None:
    site.files["/a.bin"], site.lengths = CONTENT, length
    fetch(site.url("/a.bin"), tmp_path / "a.bin", patience=NO_PAUSE)
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


@unpacks
def test_an_unknown_checksum_is_trusted_once(site: Site, tmp_path: Path) -> None:
    dataset = served(site, "iwslt14")
    outcome = obtain(dataset, tmp_path, mirror=site.address, patience=NO_PAUSE)
    (outcome.directory / "raw" / "de-en.tgz").unlink()
    outcome.paths["train"].unlink()
    path = next(iter(site.files))
    original = site.files[path]
    site.files[path] = packed({"de-en/other": "text"})
    with pytest.raises(DataError, match=rf"the first download had {hashlib.sha256(original).hexdigest()}"):
        obtain(dataset, tmp_path, mirror=site.address, patience=NO_PAUSE)
    site.files[path] = original
    assert obtain(dataset, tmp_path, mirror=site.address, patience=NO_PAUSE).paths["train"].exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1, "name": "multi30k", "files": {"a": 1}, "splits": {}}'])
def test_a_damaged_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "multi30k").mkdir()
    (tmp_path / "multi30k" / RECORD).write_text(text)
    with pytest.raises(StorageError, match="not a record of downloads of 'multi30k'; delete it"):
        obtain(find("multi30k"), tmp_path)


# --- archives and markup


def hostile(member: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.addfile(member, io.BytesIO(b"x" * member.size))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 1 if kind == tarfile.REGTYPE else 0
    return info


@unpacks
@pytest.mark.parametrize(
    "evil",
    [member("../a.txt"), member("b/../../a.txt"), member("a.txt", tarfile.SYMTYPE, "../../etc"), member("a", b"3")],
    ids=["parent", "winding", "link", "device"],
)
def test_an_archive_that_leaves_its_directory_is_refused(tmp_path: Path, evil: tarfile.TarInfo) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "a.tgz").write_bytes(hostile(evil))
    with pytest.raises(DataError, match=r"a\.tgz: refused"):
        extract(tmp_path / "a.tgz", ["a.txt"], tmp_path / "inside")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tgz", "inside"]


def test_a_python_that_cannot_unpack_safely_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    archive = tmp_path / "a.tgz"
    archive.write_bytes(hostile(member("a.txt")))
    with pytest.raises(DataError, match=r"needs Python 3\.11\.4 or newer"):
        extract(archive, ["a.txt"], tmp_path)


@unpacks
def test_a_hostile_archive_stops_the_conversion(site: Site, tmp_path: Path) -> None:
    dataset = served(site, "iwslt14")
    site.files[next(iter(site.files))] = hostile(member("../../train.tags.de-en.de"))
    with pytest.raises(DataError, match="refused, it would write outside its directory"):
        obtain(dataset, tmp_path, mirror=site.address, patience=NO_PAUSE)
    assert [path.name for path in (tmp_path / "iwslt14").iterdir()] == ["raw"], "what is refused is not recorded"


@unpacks
def test_only_what_was_asked_for_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(packed({"x/a": "1", "x/b": "2"}))
    assert extract(tmp_path / "a.tgz", ["b"], tmp_path) == {"b": tmp_path / "x" / "b"}
    assert not (tmp_path / "x" / "a").exists()
    with pytest.raises(DataError, match="holds no c; it is another release"):
        extract(tmp_path / "a.tgz", ["b", "c"], tmp_path)


@unpacks
@pytest.mark.parametrize(
    "content",
    [b"", b"<html>not found</html>", packed({"a": "text" * 999})[:-30]],
    ids=["empty", "a page", "cut off"],
)
def test_a_damaged_archive(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tgz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.tgz: (cannot be unpacked|holds no)"):
        extract(tmp_path / "a.tgz", ["a"], tmp_path)


def test_documents_without_an_end_are_cut(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\n" * 5)
    skipped = Skipped()
    assert [len(rows) for rows in convert.read_columns(tmp_path / "a.tsv", skipped, longest=2)] == [2, 2, 1]
    assert skipped.counts == {SkipReason.CUT: 2}


def test_documents_of_the_same_name_are_paired_in_order() -> None:
    def made(*texts: str) -> list[convert.MarkedDocument]:
        return [convert.MarkedDocument("same", {"1": text}) for text in texts]

    pairs = convert.side_by_side(made("a", "b"), made("A", "B"), "set", Skipped())
    assert [(document.src, document.tgt) for document in pairs] == [(("a",), ("A",)), (("b",), ("B",))]


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (convert.read_segments, "<seg id='1'>a</seg>", "before the first <doc>"),
        (convert.read_segments, "plain text", "holds no <doc>"),
        (convert.read_talks, "a sentence", "before the first talk"),
        (convert.read_marked_lines, "a sentence", "does not begin with <d>"),
    ],
)
def test_markup_that_is_not_there(tmp_path: Path, read: Any, text: str, message: str) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(ReluformerError, match=message):
        read(tmp_path / "a")


@unpacks
def test_the_result_is_the_same_bytes_every_time(site: Site, tmp_path: Path) -> None:
    dataset = served(site, "iwslt14")
    once, again = (
        obtain(dataset, tmp_path / name, mirror=site.address, patience=NO_PAUSE).record for name in ("a", "b")
    )
    assert json.dumps(once) == json.dumps(again)
