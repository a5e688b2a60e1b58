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
from reluformer.kernels.native import library_name, source_hash
from reluformer.rules import Formula, Level
from reluformer.rules.formula import Activation

ABI = 9
PATHS = ("portable", "avx2", "avx512")
ACTIVATIONS: dict[Activation, int] = {"relu": 0, "relu_squared": 1, "sigmoid": 2, "rectified_exp": 3}
"""The numbers of `enum Activation` in problem.h."""
LOG_N = Level(growth=1.0)
"""The level that the library computes by itself."""


class LibraryError(ReluformerError):
    """The compiled library cannot be used; the message says why and what to do."""


Tensor4 = tuple[int, int, int, int]
Tensor3 = tuple[int, int, int]
# Every field has eight bytes, so the structs have no gaps: "q" is an integer or an address, "d" a double.
_READ = "11q 4d 16q 2q 21q d 2q"
READ = struct.Struct(_READ)
GRADIENT = struct.Struct(_READ + "16q 12q")
MOMENTS = struct.Struct("8q d 8q 2q 4q 8q 5d 2q")
SPARSE = struct.Struct("4q")
REPORT = ctypes.c_int64 * 5
NOTHING: Tensor3 = (0, 0, 0)


def packed_rows(tensor: Tensor) -> Tensor:
    """Returns the tensor with a contiguous last dimension, which the library requires."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def tensor4(tensor: Tensor) -> Tensor4:
    """Returns pointer and strides of (B, H, T, width), whose last dimension is contiguous."""
    batch, head, row, _ = tensor.stride()
    return tensor.data_ptr(), batch, head, row


def tensor3(tensor: Tensor | None) -> Tensor3:
    """Returns pointer and strides of (B, H, T), contiguous along T; None becomes nothing."""
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


class NativeFormula(NamedTuple):
    """A formula as the C++ library takes it: the last operands of the operators, in this order."""

    activation: int
    log_n: bool
    """Whether log n is taken off the scores."""
    factor: float
    exponent: float
    cap: float
    """How far the best score of a row lies above its level at least; 0 where that is left to the scores."""
    delta: float
    """Negative where the weights are not divided."""


def native_formula(formula: Formula) -> NativeFormula | None:
    """Returns the numbers of `formula` for the library, or None if it has no such activation.

    The library reads no rest and does not multiply scores by log n. A level that is not log n itself is a bias of the
    rows, which `cpu.read` adds; its cap stays.
    """
    activation = ACTIVATIONS.get(formula.activation)
    if activation is None or formula.rest or formula.log_factor is not None:
        return None
    delta = -1.0 if formula.delta is None else formula.delta
    log_n = formula.level is not None and formula.level == LOG_N
    cap = 0.0 if formula.level is None or formula.level.cap is None else formula.level.cap
    return NativeFormula(activation, log_n, formula.factor, formula.exponent, cap, delta)


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
        self.allow_vnni = self._function("allow_vnni", number)  # for tests
        self.quantise = self._function("quantise", pointer, number, number, pointer, pointer)
        self.byte_panel_size = self._function("byte_panel_size", number, number, result=number)
        self.byte_slots_size = self._function("byte_slots_size", number, number, result=number)
        self.pack_bytes = self._function("pack_bytes", pointer, number, number, pointer, pointer, pointer)
        self.search = self._function("search", pointer, pointer, result=pointer)
        self.search_end = self._function("search_end", pointer)
        self.search_add = self._function("search_add", pointer, pointer, result=number)
        self.search_run = self._function("search_run", pointer, *[number] * 3, result=number)
        self.search_drop = self._function("search_drop", pointer, number)
        self.search_finished = self._function("search_finished", pointer, pointer, number, result=number)
        self.search_count = self._function("search_count", pointer, number, result=number)
        hypothesis = pointer, number, number, pointer, pointer, pointer
        self.search_hypothesis = self._function("search_hypothesis", *hypothesis, result=number)

    def forward(self, *fields: float) -> None:
        """Compute one read from the fields of `Problem`."""
        self._check(self._c.reluformer_forward(READ.pack(*fields)))

    def backward(self, *fields: float) -> None:
        """Compute the gradient of one read from the fields of `Gradient`."""
        self._check(self._c.reluformer_backward(GRADIENT.pack(*fields)))

    def sparse_forward(self, fields: Sequence[float], mode: int, pairs: int, size: int) -> SparseReport:
        """Compute a read with sparse rows from the fields of `Problem`; `size` bytes hold nonzero pairs."""
        report = REPORT()
        sparse = SPARSE.pack(mode, pairs, size, ctypes.addressof(report))
        self._check(self._sparse_forward(READ.pack(*fields), sparse))
        return SparseReport(*report)

    def sparse_backward(self, fields: Sequence[float], mode: int, pairs: int, size: int) -> None:
        """Compute the gradient of a sparse read from the fields of `Gradient` and the pairs that it kept."""
        self._check(self._sparse_backward(GRADIENT.pack(*fields), SPARSE.pack(mode, pairs, size, 0)))

    def moments(self, *fields: float) -> None:
        """Compute mean and variance of rows, their level, or a gradient, from the fields of `Moments`."""
        self._check(self._c.reluformer_moments(MOMENTS.pack(*fields)))

    def weigh_values(self, path: int, out: Tensor, weights: Tensor, values: Tensor) -> None:
        """Write weights (rows, slots) @ values (slots, width) to `out`, skipping zeros; all are contiguous."""
        rows, slots = weights.shape
        sizes = (values.data_ptr(), values.size(1))
        self._weigh_values(path, out.data_ptr(), weights.data_ptr(), rows, slots, *sizes)

    def _function(self, name: str, *arguments: Any, result: Any = None) -> Any:
        function = self._c[f"reluformer_{name}"]
        function.argtypes, function.restype = arguments, result
        return function

    def struct_sizes(self) -> dict[str, int]:
        """Returns the bytes of each struct as the compiler laid it out."""
        return {
            name: self._c[f"reluformer_{name}_size"]()
            for name in ("problem", "gradient", "moments", "sparse", "model", "sentence")
        }

    def _check(self, status: int) -> None:
        if status:
            raise MemoryError("the CPU kernel found no memory for its tiles")


BUILD = "build it with: pip install --no-build-isolation -e . (or pip install --force-reinstall reluformer)"


def library_file() -> Path | None:
    """Returns the path of the compiled library, or None if it was not built."""
    names = (library_name(), *(f"_library{suffix}" for suffix in EXTENSION_SUFFIXES))  # the latter by older builds
    return next((path for name in names if (path := Path(__file__).parent / name).is_file()), None)


def load() -> Library:
    """Load the library, or raise `LibraryError` with the reason."""
    path = library_file()
    if path is None:
        raise LibraryError(f"the C++ library was not built (no compiler, or the build failed); {BUILD}")
    return Library(path)


def _gomp_parallel() -> Any | None:
    """Returns GOMP_parallel of the OpenMP runtime that torch has loaded; never of a second one."""
    for path in _loaded_openmp():
        try:
            runtime = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LOCAL)
            return ctypes.cast(runtime.GOMP_parallel, ctypes.c_void_p)
        except (OSError, AttributeError):
            continue
    return None


def _loaded_openmp() -> list[str]:
    """Returns the paths of OpenMP runtimes in this process, torch's own first."""
    maps = Path("/proc/self/maps")
    if maps.is_file():
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
        mapped = {line.split(maxsplit=5)[-1] for line in lines if "/" in line}
    else:
        mapped = {str(path) for path in (Path(torch.__file__).parent / "lib").glob("lib*omp*")}
    found = [path for path in mapped if Path(path).name.startswith(("libgomp", "libomp", "libiomp"))]
    return sorted(found, key=lambda path: "torch" not in path)


def _load() -> tuple[Library | None, str | None]:
    """Returns the library, or the reason why there is none."""
    try:
        return load(), None
    except LibraryError as error:
        return None, str(error)


_library, _missing = _load()  # once, at import: a compiler that traces a read must not meet it


def unavailable() -> str | None:
    """Returns why the kernel cannot be used on this machine, or None if it can."""
    return _missing


def loaded() -> Library:
    """Returns the library; ask `unavailable` before."""
    assert _library is not None, _missing
    return _library
