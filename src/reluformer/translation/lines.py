"""Numbered lines of a file, plain or .gz.

Lines end at \\n and nowhere else: Unicode's other separators (U+2028, U+0085, form feed)
occur inside sentences, and breaking there would shift one side of an aligned pair.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from reluformer.errors import DataError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def open_binary(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked where its name ends in .gz."""
    try:
        return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the paths of the data configuration") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be opened: {error.strerror}") from None


def numbered_lines(path: Path, most_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Line numbers from 1 and lines without their ending; None for a line over `most_bytes`, which is never kept."""
    number = 0
    with open_binary(path) as file:
        try:
            while line := file.readline(most_bytes + 2):
                number += 1
                ended = line.endswith(b"\n")
                while not ended and len(line) >= most_bytes + 2 and (rest := file.readline(2**20)):
                    ended = rest.endswith(b"\n")
                if number == 1:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                yield number, line if len(line) <= most_bytes else None
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: cannot be read after line {number}: {error}") from None


def decode(line: bytes, path: Path, number: int) -> str:
    """The line as text, or a `DataError` with its place."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise DataError(
            f"{path}:{number}: not UTF-8 (byte 0x{byte:02x} at position {error.start + 1} of the line); "
            "convert the file to UTF-8 first"
        ) from None
