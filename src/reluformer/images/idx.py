"""The IDX format of MNIST and Fashion-MNIST: a header and bytes, plain or gzipped.

2 bytes   zero
1 byte    type of a number; 8 is an unsigned byte, the only one read here
1 byte    number of dimensions
4 bytes   the length of each dimension, big-endian
then the numbers, row after row
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reluformer import files
from reluformer.errors import ArgumentError, DataError, StorageError

MOST_BYTES = 2**31
"""The most bytes of a file once it is unpacked."""
_TYPES = {8: "unsigned byte", 9: "signed byte", 11: "short", 12: "int", 13: "float", 14: "double"}
_BYTE, _MOST_DIMENSIONS = 8, 4

Bytes = npt.NDArray[np.uint8]


def read_idx(path: str | Path, dimensions: int | None = None) -> Bytes:
    """Returns the array of an IDX file, gzipped or not.

    Args:
        path: The file.
        dimensions: How many dimensions it must have: 1 for labels, 3 for grey images; None for any.

    Returns:
        An array of unsigned bytes.

    Raises:
        DataError: The file cannot be read, is no IDX file of bytes, is cut off, or holds more than its header says.

    Example:
        >>> _ = Path("labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
        >>> read_idx("labels-idx1-ubyte", dimensions=1).tolist()
        [7, 2, 1]
    """
    path = Path(path)
    content = _content(path)
    if len(content) < 4 or content[:2] != b"\0\0":
        raise DataError(
            f"{path}: is no IDX file, it begins with {content[:4].hex(' ') or 'nothing'}; expected 00 00 08"
        )
    kind, count = content[2], content[3]
    if kind != _BYTE:
        found = _TYPES.get(kind, f"code {kind}")
        raise DataError(f"{path}: holds numbers of type {found}; images and labels are unsigned bytes (code 8)")
    if not 1 <= count <= _MOST_DIMENSIONS or (dimensions is not None and count != dimensions):
        wanted = {1: "1, as labels have", 3: "3, as images have"}.get(dimensions or 0, f"1 to {_MOST_DIMENSIONS}")
        raise DataError(f"{path}: has {count} dimensions, expected {wanted}; are images and labels mixed up?")
    begin = 4 + 4 * count
    if len(content) < begin:
        raise DataError(f"{path}: is cut off within its header, after {len(content)} bytes; download it again")
    shape = struct.unpack(f">{count}I", content[4:begin])
    expected = begin
    size = 1
    for length in shape:
        size *= length
    expected += size
    if len(content) != expected:
        what = "cut off" if len(content) < expected else "too long"
        raise DataError(
            f"{path}: is {what}: its header promises {' x '.join(map(str, shape))} bytes, it holds "
            f"{len(content) - begin}; download it again"
        )
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def write_idx(path: str | Path, array: Bytes) -> None:
    """Writes an array of unsigned bytes as an IDX file, gzipped if the name ends in .gz.

    Raises:
        ArgumentError: The array has another type, or no or too many dimensions.
        StorageError: The file cannot be written.
    """
    if array.dtype != np.uint8 or not 1 <= array.ndim <= _MOST_DIMENSIONS:
        raise ArgumentError(
            f"an IDX file holds unsigned bytes of 1 to {_MOST_DIMENSIONS} dimensions, got {array.dtype} of shape "
            f"{array.shape}"
        )
    header = bytes([0, 0, _BYTE, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + np.ascontiguousarray(array).tobytes()
    with files.whole_file(Path(path)) as file:
        file.write(gzip.compress(content, mtime=0) if Path(path).suffix == ".gz" else content)


def _content(path: Path) -> bytes:
    """Returns the unpacked bytes of a file."""
    try:
        files.check_regular(path)
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; `reluformer data get fashion-mnist` downloads four of them") from None
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, StorageError):
            raise DataError(str(error)) from None
        raise DataError(f"{path}: damaged ({error}); download it again") from None
    if len(content) > MOST_BYTES:
        raise DataError(f"{path}: is larger than {MOST_BYTES / 2**30:.0f} GB; split it")
    return bytes(content)
