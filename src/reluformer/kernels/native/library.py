"""Loads the compiled library and hands it torch's own threads.

The library is plain C behind ctypes. It is refused, with a reason, where it is missing, was
built from other sources than those beside it, or speaks another version of the structs
below, which mirror problem.h field by field.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reluformer.errors import ReluformerError
from reluformer.kernels.native.sources import source_hash

ABI = 1
PATHS = ("portable", "avx2", "avx512")


class LibraryError(ReluformerError):
    """The compiled library cannot be used; the message says why and what to do."""


class Tensor4(ctypes.Structure):
    """(B, H, T, width) with its last dimension contiguous."""

    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "head", "row")))

    @classmethod
    def of(cls, tensor: Tensor) -> Tensor4:
        return cls(tensor.data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2))


class Tensor3(ctypes.Structure):
    """(B, H, T), contiguous along T."""

    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "head")))

    @classmethod
    def of(cls, tensor: Tensor | None) -> Tensor3:
        return cls() if tensor is None else cls(tensor.data_ptr(), tensor.stride(0), tensor.stride(1))


_SIZES = ("batches", "heads", "queries", "slots", "width", "value_width")
_SWITCHES = ("causal", "threads", "path", "activation", "log_n")


class Problem(ctypes.Structure):
    """One read."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in (*_SIZES, *_SWITCHES)),
        *((name, ctypes.c_double) for name in ("scale", "factor", "exponent", "delta")),
        *((name, Tensor4) for name in ("q", "k", "v", "out")),
        ("key_mask", ctypes.c_void_p),
        ("mask_batch", ctypes.c_int64),
        *((name, Tensor3) for name in ("row_bias", "key_bias", "sum", "mean_log")),
        *((name, Tensor3) for name in ("row_sum", "entropy", "zero_fraction")),
    )


class Gradient(ctypes.Structure):
    """The gradient of one read."""

    _fields_ = (
        ("forward", Problem),
        *((name, Tensor4) for name in ("d_out", "d_q", "d_k", "d_v")),
        *((name, Tensor3) for name in ("d_row_sum", "d_entropy", "d_row_bias", "d_key_bias")),
    )


class Library:
    """The loaded library, its best vector path and whether it has threads."""

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
        self.best_path: int = self._c.reluformer_best_path()
        launch = _gomp_parallel()
        self.threaded = launch is not None
        self._c.reluformer_set_launch.argtypes = [ctypes.c_void_p]
        self._c.reluformer_set_launch(launch)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self.panel_floats = self._function("panel_floats", number, number, number, result=number)
        self.pack_linear = self._function("pack_linear", number, pointer, pointer, number, number)
        self.decode = self._function("decode", pointer, pointer, result=number)
        self.best = self._function("best", number, pointer, *[number] * 3, pointer, pointer, number)

    def forward(self, problem: Problem) -> None:
        self._check(self._c.reluformer_forward(ctypes.byref(problem)))

    def backward(self, gradient: Gradient) -> None:
        self._check(self._c.reluformer_backward(ctypes.byref(gradient)))

    def _function(self, name: str, *arguments: Any, result: Any = None) -> Any:
        function = self._c[f"reluformer_{name}"]
        function.argtypes, function.restype = arguments, result
        return function

    def _check(self, status: int) -> None:
        if status:
            raise MemoryError("the CPU kernel found no memory for its tiles")


BUILD = "build it with: pip install --no-build-isolation -e . (or pip install --force-reinstall reluformer)"


def library_file() -> Path | None:
    """Where the compiled library is, if it was built."""
    places = (Path(__file__).parent / f"_library{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((place for place in places if place.is_file()), None)


@lru_cache(maxsize=1)
def load() -> Library:
    """The library, or `LibraryError` with the reason why not."""
    path = library_file()
    if path is None:
        raise LibraryError(f"the C++ library was not built (no compiler, or the build failed); {BUILD}")
    return Library(path)


@lru_cache(maxsize=1)
def unavailable() -> str | None:
    """Why the library cannot be used; None where it can."""
    try:
        load()
    except LibraryError as error:
        return str(error)
    return None


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
