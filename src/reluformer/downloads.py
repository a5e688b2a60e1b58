"""Fetches one file over HTTP(S): resumed where it broke off, tried again, verified before it gets its name.

A download grows as `NAME.part`; `NAME.part.version` holds the server's mark of that version
(ETag or Last-Modified), so that two versions of a file are never spliced together.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import urlsplit, urlunsplit

from reluformer import __version__
from reluformer.errors import ArgumentError, DataError, StorageError

BLOCK = 2**18
MOST_BYTES = 2**30
"""The most bytes of a file whose size nobody publishes."""
_RETRIED_STATUS = {408, 425, 429, 500, 502, 503, 504}
_NUMBER = re.compile(r"[0-9]{1,18}")
_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html|head|body|script|meta)\b", re.IGNORECASE)
_GZIP = b"\x1f\x8b"
_OFFLINE = {errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN}

DownloadProgress = Callable[[str, int, int | None], None]
"""Called with the name of the file, the bytes received, and all of its bytes where known."""


def silent(name: str, received: int, total: int | None) -> None:
    """Reports nothing."""


@dataclass(frozen=True)
class Patience:
    """Patience says how often and how long a slow or failing server is tried."""

    attempts: int = 5
    timeout: float = 30.0
    first_pause: float = 1.0
    pause: Callable[[float], None] = time.sleep

    def wait(self, failures: int) -> None:
        """Pauses twice as long after each failure."""
        self.pause(self.first_pause * 2 ** (failures - 1))


@dataclass(frozen=True)
class Checksum:
    """A checksum is a digest of a file; `source` says who published it."""

    algorithm: Literal["sha256", "md5"]
    digest: str
    source: str


@dataclass(frozen=True)
class Digests:
    """The digests of a file, and its size in bytes."""

    sha256: str
    md5: str
    size: int

    @classmethod
    def of(cls, path: Path) -> Digests:
        """Computes all digests in one pass over the file."""
        sha256, md5, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
        try:
            with path.open("rb") as file:
                while block := file.read(BLOCK):
                    sha256.update(block)
                    md5.update(block)
                    size += len(block)
        except OSError as error:
            raise StorageError(
                f"{path}: cannot be read: {error.strerror}; check what it is and who may read it"
            ) from None
        return cls(sha256.hexdigest(), md5.hexdigest(), size)

    def match(self, checksum: Checksum) -> bool:
        """Returns whether the file has the published checksum."""
        return (self.sha256 if checksum.algorithm == "sha256" else self.md5) == checksum.digest


@dataclass(frozen=True)
class RemoteFile:
    """A remote file has a public address; `size` is in bytes, where it is published."""

    url: str
    checksum: Checksum | None = None
    size: int | None = None

    @property
    def name(self) -> str:
        """The name of the file in the directory of raw files."""
        return urlsplit(self.url).path.rsplit("/", 1)[-1]

    def address(self, mirror: str | None = None) -> str:
        """Returns the address to download from; `mirror` takes the place of scheme and host."""
        if mirror is None:
            return self.url
        parts = urlsplit(mirror)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ArgumentError(f"--mirror {mirror}: give scheme and host, as in https://mirror.example.org")
        path = parts.path.rstrip("/") + urlsplit(self.url).path
        return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


class _Interrupted(Exception):
    """This attempt failed; the next may succeed."""


def fetch(
    url: str,
    target: Path,
    *,
    size: int | None = None,
    most: int = MOST_BYTES,
    verify: Callable[[Path, Digests], None] = lambda path, digests: None,
    progress: DownloadProgress = silent,
    patience: Patience | None = None,
) -> Digests:
    """Downloads a file, which appears only when it is whole and verified.

    An interrupted download is kept and resumed, also by a later call. One that fails
    `verify` is deleted.

    Args:
        url: An address of http or https.
        target: The file to write.
        size: The published size in bytes; a server with another size is refused.
        most: The most bytes that are accepted if no size is published.
        verify: Raises `DataError` for digests that are wrong.
        progress: Called with name, bytes received and bytes in all.
        patience: How often and how long a failing server is tried.

    Returns:
        The digests of the file.

    Raises:
        DataError: The server refuses, does not deliver, or has another file, such as the page of a login.
        StorageError: The file cannot be written.
    """
    patience = patience or Patience()
    if urlsplit(url).scheme not in ("http", "https"):
        raise ArgumentError(f"{url}: only http:// and https:// are downloaded")
    download = _Download(url, target, size, most if size is None else size, progress, patience.timeout)
    failures, before = 0, -1
    while True:
        try:
            download.attempt()
            break
        except _Interrupted as error:
            # an attempt that brought the file further is no failure
            failures = 1 if download.received > before else failures + 1
            before = max(before, download.received)
            if failures >= patience.attempts:
                raise DataError(f"{url}: gave up after {failures} attempts: {error}; {download.ways_out()}") from None
            patience.wait(failures)
    digests = Digests.of(download.part)
    try:
        check_content(download.part, target.name, url)
        verify(target, digests)
    except DataError:
        download.discard()
        raise
    download.finish()
    return digests


def check_content(path: Path, name: str, url: str) -> None:
    """Looks at the first bytes of a file: a web page, as hotels and airports send it for anything, is refused.

    Args:
        path: The file to look at.
        name: The name that it is to have; one that ends in .gz or .tgz must be gzipped.
        url: Where it came from, for the message.

    Raises:
        DataError: The file is not what its name says.
    """
    with path.open("rb") as file:
        beginning = file.read(1024)
    remedy = f"open {url} in a browser, log in to the network if it asks, and run the command again"
    if _PAGE.match(beginning):
        raise DataError(f"{name}: the server sent a web page instead of the file; {remedy}")
    if name.endswith((".gz", ".tgz")) and not beginning.startswith(_GZIP):
        raise DataError(f"{name}: the server sent something that is not gzipped; {remedy}")


@dataclass
class _Download:
    """A download is one file on its way."""

    url: str
    target: Path
    size: int | None
    most: int
    progress: DownloadProgress
    timeout: float

    @property
    def part(self) -> Path:
        return self.target.with_name(self.target.name + ".part")

    @property
    def version(self) -> Path:
        return self.target.with_name(self.target.name + ".part.version")

    @property
    def received(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def discard(self) -> None:
        self.part.unlink(missing_ok=True)
        self.version.unlink(missing_ok=True)

    def finish(self) -> None:
        os.replace(self.part, self.target)
        self.version.unlink(missing_ok=True)

    def ways_out(self) -> str:
        """Returns what a user can do about a server that does not deliver."""
        kept = f" (the {self.received:,} bytes that arrived are kept)" if self.received else ""
        return (
            f"either try again later with the same command{kept}, or download {self.url} by hand "
            f"into {self.target.parent} and run the command again"
        )

    def attempt(self) -> None:
        """Makes one request, for the whole file or for what is missing of it."""
        request = urllib.request.Request(
            self.url, headers={"User-Agent": f"reluformer/{__version__}", "Accept-Encoding": "identity"}
        )
        if self.received and self.version.exists():
            request.add_header("Range", f"bytes={self.received}-")
            request.add_header("If-Range", self.version.read_text(encoding="ascii"))
        try:
            response = _opener().open(request, timeout=self.timeout)
        except urllib.error.HTTPError as error:
            with error:
                return self._refused(error)
        except urllib.error.URLError as error:
            return self._unreachable(error.reason)
        except (OSError, http.client.HTTPException) as error:
            raise _Interrupted(str(error) or type(error).__name__) from None
        with response:
            self._receive(response)

    def _receive(self, response: Any) -> None:
        """Writes the body to the part, from its end or from the beginning, as the server says."""
        start = 0
        if response.status == 206:
            answer = re.fullmatch(
                r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)", response.headers.get("Content-Range", "")
            )
            if answer is None or int(answer[1]) != self.received:
                self.discard()
                raise _Interrupted("the server sent another part of the file than it was asked for")
            start = self.received
            total = None if answer[2] == "*" else int(answer[2])
        else:
            length = response.headers.get("Content-Length", "")
            total = int(length) if _NUMBER.fullmatch(length) else self.size
        if self.size is not None and total is not None and total != self.size:
            raise DataError(
                f"{self.url}: has {total:,} bytes, but {self.size:,} are published: the server holds another file; "
                "look for the right one and put it by hand into " + str(self.target.parent)
            )
        self._check_size(total or 0)
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            with self.part.open("ab" if start else "wb") as file:
                if not start:
                    self._remember_version(response.headers)
                received = self._copy(response, file, start, total)
        except OSError as error:
            raise StorageError(
                f"{self.part}: cannot be written: {error.strerror or error}; "
                "free some space or choose another directory with --to"
            ) from None
        if total is not None and received < total:
            raise _Interrupted(f"the connection closed after {received:,} of {total:,} bytes")

    def _copy(self, response: Any, file: IO[bytes], received: int, total: int | None) -> int:
        self.progress(self.target.name, received, total)
        while block := _read(response):
            received += len(block)
            self._check_size(received)
            file.write(block)
            self.progress(self.target.name, received, total)
        return received

    def _check_size(self, size: int) -> None:
        if size > self.most:
            self.discard()
            raise DataError(
                f"{self.url}: sends more than {self.most:,} bytes, so it is not the file that was looked for; look for "
                f"the right one and put it by hand into {self.target.parent}"
            )

    def _remember_version(self, headers: Any) -> None:
        """Keeps the mark of the version; without one, a broken download starts again from the beginning."""
        tag = headers.get("ETag", "")
        mark = tag if tag.startswith('"') else headers.get("Last-Modified", "")
        if mark.isascii() and mark:
            self.version.write_text(mark, encoding="ascii")
        else:
            self.version.unlink(missing_ok=True)

    def _refused(self, error: urllib.error.HTTPError) -> None:
        if error.code == 416:
            if error.headers.get("Content-Range") == f"bytes */{self.received}":
                return
            self.discard()
            raise _Interrupted("the server has a shorter file than before")
        if error.code in _RETRIED_STATUS:
            raise _Interrupted(f"the server answers {error.code} {error.reason}")
        raise DataError(
            f"{self.url}: the server answers {error.code} {error.reason}; the file may have moved: find it and "
            f"put it by hand into {self.target.parent}, or name a server that has it with --mirror"
        ) from None

    def _unreachable(self, reason: str | BaseException) -> None:
        host = urlsplit(self.url).netloc
        hopeless = isinstance(reason, socket.gaierror | ssl.SSLCertVerificationError)
        if isinstance(reason, OSError) and (hopeless or reason.errno in _OFFLINE):
            raise DataError(f"cannot reach {host}: {reason.strerror}; {self.ways_out()}") from None
        raise _Interrupted(f"{host}: {reason}") from None


def _read(response: Any) -> bytes:
    try:
        return bytes(response.read(BLOCK))
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(str(error) or type(error).__name__) from None


class WebRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not out of the web, and not from https down to http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        scheme = urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (req.type == "https" and scheme == "http"):
            raise DataError(f"{req.full_url}: redirects to {newurl}, which is not safe to follow")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """Returns an opener that knows HTTP(S) and proxies, and no other scheme."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        WebRedirects(),
    ):
        opener.add_handler(handler)
    return opener
