"""Text files and their lines, plain or `.gz`: read and written exactly as they are.

Corpora are read by `numbered_lines`, whose lines end at LF (or CR LF) and nowhere else:
Unicode's other separators (U+2028, U+0085, form feed) occur inside sentences, and breaking
there would shift one side of an aligned pair. Documents for translation are read whole, and
`split_lines` keeps every ending.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

from reluformer.errors import DataError, StorageError
from reluformer.files import check_regular, whole_file

BYTE_ORDER_MARK = "\ufeff"
UTF8_MOST_BYTES = 4
"""The most bytes of a character."""
_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
_LINE_BREAK = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]")


class TextLine(NamedTuple):
    """`body + ending` is the line as it stands in the text; the last ending may be empty."""

    body: str
    ending: str


def split_lines(text: str) -> list[TextLine]:
    """Splits `text` at CR LF, LF and CR only, not at the other line ends of `str.splitlines`.

    Example:
        >>> from reluformer.translation.formats.lines import split_lines
        >>> [line.ending for line in split_lines("a\\r\\nb\\u2028c")]
        ['\\r\\n', '']
    """
    lines = [TextLine(*match.groups()) for match in _LINE.finditer(text)]
    return lines[:-1] if lines[-1] == ("", "") else lines


def on_one_line(text: str) -> str:
    """Replaces every line break, and the white space around it, by one space."""
    pieces = _LINE_BREAK.split(text)
    if len(pieces) == 1:
        return text.strip()
    return " ".join(filter(None, (piece.strip() for piece in pieces)))


def decode_text(data: bytes, where: str) -> str:
    """Decodes UTF-8 and keep a byte order mark as the first character.

    Args:
        data: The bytes of a whole text.
        where: What error messages call the text.

    Raises:
        DataError: The bytes are not UTF-8; the message has byte and line.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{where}: not valid UTF-8 at byte {error.start} (line {line}): {error.reason}; "
            "convert it first, e.g. iconv -f latin1 -t utf-8"
        ) from None


def read_text(path: str | Path) -> str:
    """Reads a file exactly as it is, line endings included; `.gz` is unpacked.

    Raises:
        DataError: The file cannot be read, is damaged, or is not UTF-8.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file: {error}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    return decode_text(data, str(path))


def write_text(path: str | Path, text: str) -> None:
    """Writes `text` exactly as it is, whole or not at all; `.gz` is packed, the same text to the same bytes.

    Raises:
        StorageError: The file cannot be written.
    """
    path = Path(path)
    data = text.encode("utf-8")
    with whole_file(path) as file:
        file.write(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


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
