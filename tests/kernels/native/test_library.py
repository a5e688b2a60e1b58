"""The compiled library is used only if it was built from the sources beside it."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest

from reluformer.kernels.native import decoder, library, source_hash
from reluformer.kernels.native.library import Library, LibraryError


@pytest.fixture
def built() -> Path:
    path = library.library_file()
    if path is None:
        pytest.skip("the C++ library was not built")
    return path


def test_a_library_of_other_sources_is_refused(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "source_hash", lambda: "0123456789abcdef")
    with pytest.raises(LibraryError, match="built from other sources than those beside it; build it with: pip install"):
        Library(built)


def test_a_library_of_another_abi_is_refused(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = f"has ABI {library.ABI}, not 0"
    monkeypatch.setattr(library, "ABI", 0)
    with pytest.raises(LibraryError, match=expected):
        Library(built)


def test_a_broken_library_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "_library.so"
    broken.write_bytes(b"no code")
    with pytest.raises(LibraryError, match=r"_library\.so cannot be loaded"):
        Library(broken)


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "library_file", lambda: None)
    with pytest.raises(LibraryError, match="was not built"):
        library.load()


def test_the_structs_have_the_size_that_c_gives_them(built: Path) -> None:
    assert Library(built).struct_sizes() == {
        "problem": library.READ.size,
        "gradient": library.GRADIENT.size,
        "sparse": library.SPARSE.size,
        "moments": library.MOMENTS.size,
        "model": ctypes.sizeof(decoder.Model),
        "sentence": ctypes.sizeof(decoder.SentenceTask),
    }


def test_any_change_of_the_sources_changes_their_hash(tmp_path: Path) -> None:
    for path in [*Path(library.__file__).parent.glob("*.cpp"), *Path(library.__file__).parent.glob("*.h")]:
        shutil.copy(path, tmp_path)
    before = source_hash(tmp_path)
    assert before == source_hash()
    with (tmp_path / "tiles.h").open("a") as file:
        file.write("\n")
    assert source_hash(tmp_path) != before
