"""Files and directories that are either whole or absent, locks of directories, and the lines of texts.

Files are written under another name, flushed to the disk, and renamed when they are whole. That
name is `.NAME.reluformer-XXXXXXXX.partial`; nothing else that ends in .partial is ever deleted.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from reluformer.errors import DataError, StorageError

BYTE_ORDER_MARK = "\ufeff"
HALF_PAIR = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which JSON can write but UTF-8 cannot."""
_MOST_DEPTH = 100
_PARTIAL = re.compile(r"\..+\.reluformer-[0-9a-f]{8}\.partial", re.DOTALL)


def _partial(path: Path) -> Path:
    """Returns the name of a file or directory while it is written."""
    return path.with_name(f".{path.name}.reluformer-{os.urandom(4).hex()}.partial")


def is_partial(path: Path) -> bool:
    """Returns whether this module gave a file or directory its name, and it was not finished.

    Example:
        >>> is_partial(Path(".model.safetensors.reluformer-3f080efa.partial")), is_partial(Path("film.partial"))
        (True, False)
    """
    return _PARTIAL.fullmatch(path.name) is not None


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for writing, which gets its name only when the block ends without an error.

    Several processes may write the same file at the same time.

    Raises:
        StorageError: The file cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as directory:
        ...     with whole_file(Path(directory) / "a.txt") as file:
        ...         _ = file.write(b"text")
        ...     (Path(directory) / "a.txt").read_text()
        'text'
    """
    _check_replaceable(path)
    partial = _partial(path)
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


def _check_replaceable(path: Path) -> None:
    """Refuses to put a file in the place of a device or a pipe, such as /dev/full."""
    if (kind := _special_kind(path)) is not None:
        raise StorageError(f"{path}: is a {kind}, which a file cannot replace; name a regular file")


@contextmanager
def whole_directory(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yields a directory to write to, which gets its name only when the block ends without an error.

    What an interrupted write of the same directory left behind is deleted.

    Args:
        path: The final name.
        replace: Whether to delete a directory of that name; otherwise it must not exist, or be empty.

    Raises:
        StorageError: The directory cannot be written.
    """
    partial = _partial(path)
    try:
        partial.mkdir(parents=True)
        for other in _partial_entries(path.parent):
            if other != partial and other.name.startswith(f".{path.name}.reluformer-"):
                shutil.rmtree(other, ignore_errors=True)
        yield partial
        for written in (*(file for file in partial.rglob("*") if file.is_file()), partial):
            flush(written)
        if replace:
            shutil.rmtree(path, ignore_errors=True)
        partial.replace(path)
        flush(path.parent)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}; choose another directory") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def flush(path: Path) -> None:
    """Waits until a file or directory is on the disk."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Writes a text file whole or not at all."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON object whole or not at all."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def check_regular(path: Path) -> None:
    """Refuses a named pipe, a device or a socket, which could be read without end; a missing file is no concern here.

    Raises:
        StorageError: The path names no regular file or directory.

    Example:
        >>> try:
        ...     check_regular(Path("/dev/null"))
        ... except StorageError as error:
        ...     print(error)
        /dev/null: is a device, not a regular file; copy its content to a file first
    """
    if (kind := _special_kind(path)) is not None:
        raise StorageError(f"{path}: is a {kind}, not a regular file; copy its content to a file first")


def _special_kind(path: Path) -> str | None:
    """Returns what a path names that is neither a regular file nor a directory; None also if it names nothing."""
    try:
        mode = path.stat().st_mode
    except ValueError:
        raise StorageError(f"{str(path)!r}: not a path, it holds a NUL character") from None
    except OSError:
        return None
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return None
    return "named pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"


def read_text(path: Path, most: int = 2**26) -> str:
    """Returns the text of a small file, such as a configuration.

    Args:
        path: The file to read.
        most: The most bytes that the file may have.

    Raises:
        StorageError: The path names no regular file, or one that is too large.
        OSError: The file cannot be read.
        ValueError: The file is not UTF-8.
    """
    check_regular(path)
    size = path.stat().st_size
    if size > most:
        raise StorageError(f"{path}: has {size:,} bytes, too many for such a file, which has at most {most:,}")
    return path.read_text(encoding="utf-8")


def parse_json(text: str) -> Any:
    """Returns the value of a JSON text; raises a `ValueError` for one that is not valid or nested too deep."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    level = [value]
    for _ in range(_MOST_DEPTH):
        level = [inner for outer in level for inner in _inner_values(outer)]
        if not level:
            return value
    raise ValueError(f"nested more than {_MOST_DEPTH} levels deep")


def _inner_values(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def read_json(path: Path, *, what: str, version: int) -> dict[str, Any]:
    """Returns a JSON object whose "format" must be `version`.

    Args:
        path: The file to read.
        what: What the file is, for messages.
        version: The format that this version reads.

    Raises:
        StorageError: The file is missing, damaged or of another format.
    """
    try:
        values = parse_json(read_text(path))
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: cannot read the {what}: {error.strerror}") from None
    except ValueError:
        raise StorageError(f"{path}: the {what} is damaged; prepare the data again") from None
    found = values.get("format") if isinstance(values, dict) else None
    if found != version:
        raise StorageError(f"{path}: {what} of format {found}, this version reads {version}; prepare the data again")
    return dict(values)


def delete_partial(directory: Path, *, directories: bool = False) -> None:
    """Deletes the partial files of killed processes; no other process may be writing here.

    Args:
        directory: Where to look; folders in it are not searched.
        directories: Whether to delete partial directories, too.
    """
    for path in _partial_entries(directory):
        if not path.is_dir():
            path.unlink(missing_ok=True)
        elif directories:
            shutil.rmtree(path, ignore_errors=True)


def _partial_entries(directory: Path) -> list[Path]:
    return [path for path in directory.glob(".*.partial") if is_partial(path)]


@contextmanager
def alone_in(directory: Path, *, busy: str | None = None) -> Iterator[None]:
    """Holds the lock of a directory inside the block; the end of the process releases it as well.

    The directory is created if it does not exist, and its partial files are deleted.

    Args:
        directory: The directory to lock.
        busy: The message of the error if another process holds the lock. Default: wait for it.

    Raises:
        StorageError: The directory cannot be created, or another process holds the lock and `busy` is given.
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


# ------------------------------------------------------------------ lines of texts


def open_binary(path: Path) -> IO[bytes]:
    """Opens a file of a corpus; it is unpacked where its name ends in .gz.

    Raises:
        DataError: The file is missing, cannot be opened, or is a pipe or a device.
    """
    try:
        check_regular(path)
        return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the paths of the data configuration") from None
    except StorageError as error:
        raise DataError(str(error)) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be opened: {error.strerror}") from None


def numbered_lines(path: Path, most_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Yields the lines of a file, numbered from 1, without their endings.

    Args:
        path: The file; `.gz` is unpacked.
        most_bytes: A longer line is yielded as None and never held in memory.

    Raises:
        DataError: The file cannot be read; the message has the last line that could be.
    """
    number = 0
    with open_binary(path) as file:
        try:
            while line := file.readline(most_bytes + 2):
                number += 1
                ended = line.endswith(b"\n")
                while not ended and len(line) >= most_bytes + 2 and (rest := file.readline(2**20)):
                    ended = rest.endswith(b"\n")
                if number == 1:
                    line = line.removeprefix(BYTE_ORDER_MARK.encode())
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                yield number, line if len(line) <= most_bytes else None
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: cannot be read after line {number}: {error}") from None


def decode_line(line: bytes, path: Path, number: int) -> str:
    """Decodes a line of a file, or raises a `DataError` with file, line and byte."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise DataError(
            f"{path}:{number}: not UTF-8 (byte 0x{byte:02x} at position {error.start + 1} of the line); "
            "convert the file to UTF-8 first"
        ) from None
