"""Checkpoints: everything that training needs to go on as if it had never stopped.

A checkpoint is a directory of safetensors files and a `state.json` that names them with
their checksums. It is written under another name, flushed, and renamed when it is whole;
one that is torn all the same (a dying disk, a bad copy) is told by its checksums, and
the newest good one is used. Nothing executable is stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from reluformer.errors import StorageError

FORMAT = 1
STATE = "state.json"
_PREFIX = "step-"


@dataclass(frozen=True)
class Checkpoint:
    """After `step` updates: tensors by file ("model", "optimizer", ...) and name, and plain data."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


class CheckpointStore:
    """The checkpoints of one run, `directory`/step-00001000 and so on."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, step: int) -> Path:
        return self.directory / f"{_PREFIX}{step:08d}"

    def steps(self) -> list[int]:
        """Steps with a checkpoint, good or not, oldest first."""
        names = (path.name.removeprefix(_PREFIX) for path in self.directory.glob(f"{_PREFIX}*"))
        return sorted(int(name) for name in names if name.isdigit())

    def write(self, checkpoint: Checkpoint, keep: int) -> None:
        """Store a checkpoint, whole or not at all, and then drop all but the newest `keep`."""
        partial = self.directory / f".{_PREFIX}{checkpoint.step:08d}.partial"
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            self._fill(partial, checkpoint)
            shutil.rmtree(self.path(checkpoint.step), ignore_errors=True)
            partial.rename(self.path(checkpoint.step))
            _flush(self.directory)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            kept = f"the one of step {self.steps()[-1]} is intact; " if self.steps() else ""
            raise StorageError(
                f"{self.path(checkpoint.step)}: cannot save the checkpoint: {error}; {kept}"
                "free some space and start the same command again"
            ) from error
        for step in self.steps()[:-keep]:
            shutil.rmtree(self.path(step), ignore_errors=True)

    def _fill(self, directory: Path, checkpoint: Checkpoint) -> None:
        files = {}
        for name, tensors in checkpoint.tensors.items():
            path = directory / f"{name}.safetensors"
            save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
            _flush(path)
            files[path.name] = _checksum(path)
        content = {"format": FORMAT, "step": checkpoint.step, "files": files, "state": dict(checkpoint.state)}
        with (directory / STATE).open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        _flush(directory)

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest good checkpoint, and what was wrong with newer ones."""
        problems: list[str] = []
        for step in reversed(self.steps()):
            try:
                return self.read(step), problems
            except StorageError as error:
                problems.append(str(error))
        return None, problems

    def read(self, step: int) -> Checkpoint:
        """One checkpoint, every byte of it checked."""
        content = self._manifest(step)
        tensors = {}
        for name, checksum in content["files"].items():
            path = self.path(step) / name
            try:
                if _checksum(path) != checksum:
                    raise StorageError(f"{path}: torn or changed since it was written")
                tensors[path.stem] = load_file(path)
            except (OSError, SafetensorError) as error:
                if isinstance(error, StorageError):
                    raise
                raise StorageError(f"{path}: cannot be read: {error}") from None
        return Checkpoint(step, tensors, content["state"])

    def _manifest(self, step: int) -> dict[str, Any]:
        path = self.path(step) / STATE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found = content["format"], content["step"], content["files"], content["state"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StorageError(f"{path}: torn: {error}") from None
        if found[:2] != (FORMAT, step):
            raise StorageError(f"{path}: format {found[0]} of step {found[1]}; expected {FORMAT} of step {step}")
        return dict(content)

    def drop_after(self, step: int) -> None:
        """Delete checkpoints past `step`, and what an interrupted write left behind."""
        for later in self.steps():
            if later > step:
                shutil.rmtree(self.path(later), ignore_errors=True)
        for partial in self.directory.glob(f".{_PREFIX}*.partial"):
            shutil.rmtree(partial, ignore_errors=True)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Wait until a file or directory is on the disk."""
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
