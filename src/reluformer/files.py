"""Files that are either whole or absent (written under another name, then renamed), and locks of directories."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

from reluformer.errors import StorageError


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to; it gets its name only when the block ends well. Others may write it at the same time."""
    partial = path.with_name(f"{path.name}.{token_hex(4)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"{path}: cannot be written: {error.strerror or error}; free some space or choose another directory"
        ) from None


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object whole or not at all."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, *, what: str, version: int) -> dict[str, Any]:
    """A JSON object whose "format" must be `version`."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"{path}: cannot read the {what}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise StorageError(f"{path}: the {what} is damaged; prepare the data again") from None
    found = values.get("format") if isinstance(values, dict) else None
    if found != version:
        raise StorageError(f"{path}: {what} of format {found}, this version reads {version}; prepare the data again")
    return dict(values)


def delete_partial(directory: Path) -> None:
    """Delete what killed processes left half written; nobody else may be writing here."""
    for path in directory.glob("*.partial"):
        if path.is_file():
            path.unlink(missing_ok=True)


@contextmanager
def alone_in(directory: Path, *, busy: str | None = None) -> Iterator[None]:
    """Hold the lock of a directory, which is made if need be and freed of partial files; it ends with the process.

    A second process waits for the first, or where it is not to wait, gets an error that says `busy`.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{directory}: cannot be made: {error.strerror or error}") from None
    try:
        import fcntl
    except ImportError:  # a system without such locks
        yield
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if busy is None else fcntl.LOCK_NB))
            delete_partial(directory)
        except BlockingIOError:
            raise StorageError(f"{directory}: {busy}") from None
        except OSError:
            pass  # some network file systems refuse locks
        yield
    finally:
        os.close(handle)
