"""Loads the compiled library and hands it torch's own threads.

The library is plain C behind ctypes. It is refused, with a reason, where it is missing, was
built from other sources than those beside it, or speaks another version of the structs
of problem.h, which are packed here field by field.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reluformer.errors import ReluformerError
from reluformer.kernels.native.sources import library_name, source_hash

ABI = 7
PATHS = ("portable", "avx2", "avx512")


class LibraryError(ReluformerError):
    """The compiled library cannot be used; the message says why and what to do."""


Tensor4 = tuple[int, int, int, int]
Tensor3 = tuple[int, int, int]
# Every field has eight bytes, so the structs have no gaps: "q" is an integer or an address, "d" a double.
_READ = "11q 4d 16q 2q 21q d 2q"
READ = struct.Struct(_READ)
GRADIENT = struct.Struct(_READ + "16q 12q")
MOMENTS = struct.Struct("8q d 8q 2q 4q 8q")
SPARSE = struct.Struct("4q")
REPORT = ctypes.c_int64 * 5
NOTHING: Tensor3 = (0, 0, 0)


def packed_rows(tensor: Tensor) -> Tensor:
    """With a contiguous last dimension, as the library wants everything."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def tensor4(tensor: Tensor) -> Tensor4:
    """(B, H, T, width) with its last dimension contiguous."""
    batch, head, row, _ = tensor.stride()
    return tensor.data_ptr(), batch, head, row


def tensor3(tensor: Tensor | None) -> Tensor3:
    """(B, H, T), contiguous along T."""
    if tensor is None:
        return NOTHING
    batch, head, _ = tensor.stride()
    return tensor.data_ptr(), batch, head


class SparseReport(NamedTuple):
    """What a read tells about its sparse rows, summed over all heads: `SparseReport` of problem.h."""

    needed: int
    """Bytes that all nonzero pairs of the sparse rows would take."""
    used: int
    """Bytes that were written."""
    sparse_pairs: int
    """Visible pairs of the rows that were read sparsely."""
    nonzero_pairs: int
    """Those of them that have a weight."""
    dense_pairs: int
    """Visible pairs of all other rows."""


class Library:
    """The loaded library, its best vector path and whether it has threads."""

    path: int
    """The vector path in use, an index of PATHS; the best one unless a test sets another."""

    def __init__(self, path: Path) -> None:
        try:
            self._c: Any = ctypes.CDLL(str(path))
        except OSError as error:
            raise LibraryError(f"{path.name} cannot be loaded: {error}") from error
        self._c.reluformer_source_hash.restype = ctypes.c_char_p
        if self._c.reluformer_abi() != ABI:
            raise LibraryError(f"{path.name} has ABI {self._c.reluformer_abi()}, not {ABI}; {BUILD}")
        if self._c.reluformer_source_hash().decode() != source_hash():
            raise LibraryError(f"{path.name} was built from other sources than those beside it; {BUILD}")
        self.path = self._c.reluformer_best_path()
        launch = _gomp_parallel()
        self.threaded = launch is not None
        self._c.reluformer_forward.argtypes = [ctypes.c_char_p]
        self._c.reluformer_backward.argtypes = [ctypes.c_char_p]
        self._c.reluformer_moments.argtypes = [ctypes.c_char_p]
        self._c.reluformer_set_launch.argtypes = [ctypes.c_void_p]
        self._c.reluformer_set_launch(launch)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        values = (number, pointer, pointer, number, number, pointer, number)
        self._weigh_values = self._function("weigh_values", *values)
        self._sparse_forward = self._function("sparse_forward", ctypes.c_char_p, ctypes.c_char_p, result=number)
        self._sparse_backward = self._function("sparse_backward", ctypes.c_char_p, ctypes.c_char_p, result=number)
        self.panel_floats = self._function("panel_floats", number, number, number, result=number)
        self.pack_linear = self._function("pack_linear", number, pointer, pointer, number, number)
        self.decode = self._function("decode", pointer, pointer, result=number)
        self.best = self._function("best", number, pointer, *[number] * 3, pointer, pointer, number)

    def forward(self, *fields: float) -> None:
        """One read: the fields of `Problem`."""
        self._check(self._c.reluformer_forward(READ.pack(*fields)))

    def backward(self, *fields: float) -> None:
        """The gradient of one read: the fields of `Gradient`."""
        self._check(self._c.reluformer_backward(GRADIENT.pack(*fields)))

    def sparse_forward(self, fields: Sequence[float], mode: int, pairs: int, size: int) -> SparseReport:
        """One read with sparse rows: the fields of `Problem`, and memory of `size` bytes for nonzero pairs."""
        report = REPORT()
        sparse = SPARSE.pack(mode, pairs, size, ctypes.addressof(report))
        self._check(self._sparse_forward(READ.pack(*fields), sparse))
        return SparseReport(*report)

    def sparse_backward(self, fields: Sequence[float], mode: int, pairs: int, size: int) -> None:
        """The gradient of such a read: the fields of `Gradient`, and the pairs that it kept."""
        self._check(self._sparse_backward(GRADIENT.pack(*fields), SPARSE.pack(mode, pairs, size, 0)))

    def moments(self, *fields: float) -> None:
        """Mean and variance of rows of scores, or their gradient: the fields of `Moments`."""
        self._check(self._c.reluformer_moments(MOMENTS.pack(*fields)))

    def weigh_values(self, path: int, out: Tensor, weights: Tensor, values: Tensor) -> None:
        """out (rows, width) = weights (rows, slots) @ values (slots, width), all contiguous, without the zeros."""
        rows, slots = weights.shape
        sizes = (values.data_ptr(), values.size(1))
        self._weigh_values(path, out.data_ptr(), weights.data_ptr(), rows, slots, *sizes)

    def _function(self, name: str, *arguments: Any, result: Any = None) -> Any:
        function = self._c[f"reluformer_{name}"]
        function.argtypes, function.restype = arguments, result
        return function

    def struct_sizes(self) -> dict[str, int]:
        """Bytes of the structs as the compiler laid them out."""
        return {
            name: self._c[f"reluformer_{name}_size"]()
            for name in ("problem", "gradient", "moments", "sparse", "decoder", "position")
        }

    def _check(self, status: int) -> None:
        if status:
            raise MemoryError("the CPU kernel found no memory for its tiles")


BUILD = "build it with: pip install --no-build-isolation -e . (or pip install --force-reinstall reluformer)"


def library_file() -> Path | None:
    """Return the path of the compiled library, or None if it was not built."""
    names = (library_name(), *(f"_library{suffix}" for suffix in EXTENSION_SUFFIXES))  # the latter by older builds
    return next((path for name in names if (path := Path(__file__).parent / name).is_file()), None)


def load() -> Library:
    """The library, or `LibraryError` with the reason why not."""
    path = library_file()
    if path is None:
        raise LibraryError(f"the C++ library was not built (no compiler, or the build failed); {BUILD}")
    return Library(path)


def _gomp_parallel() -> Any | None:
    """GOMP_parallel of the OpenMP runtime that torch has loaded; never of a second one."""
    for path in _loaded_openmp():
        try:
            runtime = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LOCAL)
            return ctypes.cast(runtime.GOMP_parallel, ctypes.c_void_p)
        except (OSError, AttributeError):
            continue
    return None


def _loaded_openmp() -> list[str]:
    """Paths of OpenMP runtimes in this process, torch's own first."""
    maps = Path("/proc/self/maps")
    if maps.is_file():
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
        mapped = {line.split(maxsplit=5)[-1] for line in lines if "/" in line}
    else:
        mapped = {str(path) for path in (Path(torch.__file__).parent / "lib").glob("lib*omp*")}
    found = [path for path in mapped if Path(path).name.startswith(("libgomp", "libomp", "libiomp"))]
    return sorted(found, key=lambda path: "torch" not in path)
