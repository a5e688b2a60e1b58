"""Files that several may write, and locks of directories."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from reluformer.errors import StorageError
from reluformer.files import alone_in, delete_partial, whole_directory, whole_file, write_text

fcntl = pytest.importorskip("fcntl", reason="this system has no file locks")


def test_two_may_write_one_file_at_the_same_time(tmp_path: Path) -> None:
    with whole_file(tmp_path / "run.json") as first, whole_file(tmp_path / "run.json") as second:
        first.write(b"{}")
        second.write(b"{}")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("run.json", b"{}")]


def test_a_directory_gets_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "export"
    with whole_directory(path) as partial:
        (partial / "a.txt").write_text("first")
        assert not path.exists()
    with whole_directory(path, replace=True) as partial:
        (partial / "b.txt").write_text("second")
    assert [file.name for file in path.iterdir()] == ["b.txt"]
    assert [file.name for file in tmp_path.iterdir()] == ["export"]


def test_an_error_leaves_the_old_directory(tmp_path: Path) -> None:
    path = tmp_path / "export"
    with whole_directory(path) as partial:
        (partial / "a.txt").write_text("first")
    with pytest.raises(StorageError, match="export: cannot be written: No space"), whole_directory(path, replace=True):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert [str(file.relative_to(tmp_path)) for file in sorted(tmp_path.rglob("*"))] == ["export", "export/a.txt"]


def test_what_a_kill_left_is_deleted_by_the_next_who_is_alone(tmp_path: Path) -> None:
    (tmp_path / ".model.safetensors.reluformer-3f080efa.partial").write_bytes(b"half")
    (tmp_path / "model.safetensors").write_bytes(b"whole")
    with alone_in(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


FOREIGN = ("film.partial", ".film.partial", ".export.partial", "a.3f080efa.partial", "export.reluformer-1.partial")


@pytest.mark.parametrize("name", FOREIGN)
def test_partial_files_of_other_programs_are_kept(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with alone_in(tmp_path):
        delete_partial(tmp_path, directories=True)
    with whole_directory(tmp_path / "export"):
        pass
    assert (tmp_path / name).read_text() == "precious"


@pytest.mark.parametrize("name", FOREIGN)
def test_partial_directories_of_other_programs_are_kept(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "film").write_text("precious")
    with alone_in(tmp_path):
        delete_partial(tmp_path, directories=True)
    with whole_directory(tmp_path / "export"):
        pass
    assert (tmp_path / name / "film").read_text() == "precious"


def test_a_directory_that_a_kill_left_is_deleted_when_it_is_written_again(tmp_path: Path) -> None:
    left, other = (tmp_path / f".{name}.reluformer-3f080efa.partial" for name in ("export", "other"))
    left.mkdir()
    other.mkdir()
    with whole_directory(tmp_path / "export"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"export", other.name}


def test_a_second_one_is_told_where_it_is_not_to_wait(tmp_path: Path) -> None:
    with alone_in(tmp_path / "new"), pytest.raises(StorageError, match="new: somebody is here"):
        alone_in(tmp_path / "new", busy="somebody is here").__enter__()
    with alone_in(tmp_path / "new", busy="somebody is here"):
        assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize("busy", [None, "somebody is here"])
def test_a_file_system_without_locks_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: str | None
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with alone_in(tmp_path, busy=busy):
        assert tmp_path.is_dir()


def test_what_goes_wrong_inside_is_not_taken_for_the_lock(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError, match="a pipe"), alone_in(tmp_path, busy="somebody is here"):
        raise BlockingIOError("a pipe")


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file: cannot be made"):
        alone_in(tmp_path / "file").__enter__()


def test_no_file_takes_the_place_of_a_pipe_or_a_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place, kind in ((tmp_path / "pipe", "named pipe"), (Path("/dev/null"), "device")):
        with pytest.raises(StorageError, match=f"is a {kind}, which a file cannot replace; name a regular file"):
            write_text(place, "text")
    assert (tmp_path / "pipe").is_fifo()
