"""Checkpoints: everything that training needs to resume as if it had never stopped.

`TrainingState` holds the counters that training carries from one update to the next. A
checkpoint is a directory of safetensors files and a `state.json` that names them with their
checksums, and has one of its own. It is written whole or not at all. The checksums reveal one
that was damaged later (by a dying disk, a bad copy); then the newest good one is used. Nothing
executable is stored.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from reluformer import files
from reluformer.errors import StorageError
from reluformer.regularizers import RegularizerConfig
from reluformer.training.task import TrainingBatch

FORMAT = 1
STATE = "state.json"
_PREFIX = "step-"


@dataclass(frozen=True)
class LogInterval:
    """Sums over the updates since the last line of the log, over all processes."""

    smoothed: float = 0.0
    plain: float = 0.0
    normalization: float = 0.0
    entropy: float = 0.0
    live: float = 0.0
    dead: float = 0.0
    active: float = 0.0
    tokens: float = 0.0
    cells: int = 0
    """Positions in the batches of this process; `filled` of them hold tokens."""
    filled: int = 0
    updates: int = 0
    gradient_norm: float = 0.0
    """Sum over updates."""
    since: float = 0.0
    """Seconds of training when the interval began."""

    @classmethod
    def from_sums(cls, sums: Sequence[float], tokens: float, batches: Sequence[TrainingBatch]) -> LogInterval:
        """Returns the interval of one update, from its sums in the order of the fields."""
        smoothed, plain, *rows = sums
        normalization, entropy, live, dead, active = rows or [0.0] * 5
        cells = sum(batch.cells for batch in batches)
        padded = sum(batch.padding for batch in batches)
        return cls(
            smoothed, plain, normalization, entropy, live, dead, active, tokens, cells=cells, filled=cells - padded
        )

    @property
    def loss(self) -> float:
        """Smoothed cross entropy per token."""
        return self.smoothed / self.tokens

    @property
    def finite(self) -> bool:
        """Whether the loss and both terms of the regulariser are finite."""
        return math.isfinite(self.smoothed) and math.isfinite(self.normalization) and math.isfinite(self.entropy)

    @property
    def rows(self) -> dict[str, float]:
        """Shares of dead rows and of rows beyond the entropy margin; empty without a regulariser."""
        total = self.live + self.dead
        return {"dead": self.dead / total, "diffuse": self.active / max(self.live, 1)} if total else {}

    def with_update(self, update: LogInterval, gradient_norm: float) -> LogInterval:
        """Returns this interval with one more update."""
        values = asdict(self)
        for name, value in asdict(update).items():
            values[name] += value
        return LogInterval(
            **{
                **values,
                "updates": self.updates + 1,
                "gradient_norm": self.gradient_norm + (gradient_norm if math.isfinite(gradient_norm) else 0.0),
                "since": self.since,
            }
        )

    def summary(self, regularizer: RegularizerConfig | None) -> dict[str, Any]:
        """Returns the means, as they are logged."""
        values: dict[str, Any] = {
            "loss": self.loss,
            "nll": self.plain / self.tokens,
            "grad_norm": self.gradient_norm / max(self.updates, 1),
            "tokens": int(self.tokens),
            "padding": 1 - self.filled / self.cells if self.cells else 0.0,
        }
        if regularizer is not None:
            live = max(self.live, 1.0)
            means = {"normalization": self.normalization / live, "entropy": self.entropy / live}
            values["regularizer"] = {"loss": regularizer.weighted(**means), **means, **self.rows}
        return values


@dataclass
class TrainingState:
    """The state of training after `step` updates."""

    step: int = 0
    tokens: float = 0.0
    """Target tokens seen."""
    seconds: float = 0.0
    """Seconds of training, resumed parts added up."""
    best_loss: float | None = None
    """Lowest validation loss; None before the first."""
    best_step: int = 0
    stale: int = 0
    """Validations since the best one."""
    interval: LogInterval = field(default_factory=LogInterval)

    def to_json(self) -> dict[str, Any]:
        """Returns the state as plain data; floats survive JSON exactly."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainingState:
        """Returns the state that `to_json` wrote."""
        return cls(**{**values, "interval": LogInterval(**values["interval"])})


@dataclass(frozen=True)
class Checkpoint:
    """The state after `step` updates: tensors by file ("model", "optimizer", ...) and name, and plain data."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


class CheckpointStore:
    """The checkpoints of one run, `directory`/step-00001000 and so on."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, step: int) -> Path:
        """Returns the directory of a checkpoint."""
        return self.directory / f"{_PREFIX}{step:08d}"

    def steps(self) -> list[int]:
        """Returns the steps with a checkpoint, good or not, oldest first."""
        names = (path.name.removeprefix(_PREFIX) for path in self.directory.glob(f"{_PREFIX}*"))
        return sorted(int(name) for name in names if name.isdigit())

    def write(self, checkpoint: Checkpoint, keep: int) -> None:
        """Stores a checkpoint, whole or not at all, and then deletes all but the newest `keep`."""
        path = self.path(checkpoint.step)
        try:
            with files.whole_directory(path, replace=True) as partial:
                self._fill(partial, checkpoint)
        except (StorageError, SafetensorError) as error:
            kept = f"the one of step {self.steps()[-1]} is intact; " if self.steps() else ""
            raise StorageError(
                f"{path}: cannot save the checkpoint: {error.__cause__ or error}; {kept}"
                "free some space and start the same command again"
            ) from error
        for step in self.steps()[:-keep]:
            shutil.rmtree(self.path(step), ignore_errors=True)

    def _fill(self, directory: Path, checkpoint: Checkpoint) -> None:
        checksums = {}
        for name, tensors in checkpoint.tensors.items():
            path = directory / f"{name}.safetensors"
            save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
            checksums[path.name] = _checksum(path)
        content = {"format": FORMAT, "step": checkpoint.step, "files": checksums, "state": dict(checkpoint.state)}
        content["checksum"] = _checksum_of(content)
        (directory / STATE).write_text(json.dumps(content, indent=2), encoding="utf-8")

    def newest(self, check: Callable[[Checkpoint], None] | None = None) -> tuple[Checkpoint | None, list[str]]:
        """Returns the newest good checkpoint, and what was wrong with newer ones.

        Args:
            check: Raises a `StorageError` for a checkpoint whose state cannot be used.
        """
        problems: list[str] = []
        for step in reversed(self.steps()):
            try:
                checkpoint = self.read(step)
                if check is not None:
                    check(checkpoint)
                return checkpoint, problems
            except StorageError as error:
                problems.append(str(error))
        return None, problems

    def read(self, step: int) -> Checkpoint:
        """Returns one checkpoint after checking every byte of it.

        Raises:
            StorageError: A file is missing or damaged. The state.json of version 0.1 has no checksum to tell.
        """
        content = self._manifest(step)
        tensors = {}
        for name, checksum in content["files"].items():
            path = self.path(step) / name
            try:
                files.check_regular(path)
                if _checksum(path) != checksum:
                    raise StorageError(f"{path}: torn or changed since it was written")
                tensors[path.stem] = load_file(path)
            except (OSError, ValueError, SafetensorError) as error:
                if isinstance(error, StorageError):
                    raise
                raise StorageError(f"{path}: cannot be read: {error}") from None
        return Checkpoint(step, tensors, content["state"])

    def _manifest(self, step: int) -> dict[str, Any]:
        path = self.path(step) / STATE
        try:
            content = files.parse_json(files.read_text(path))
            checksum = content.pop("checksum", None)  # version 0.1 wrote none
            found = content["format"], content["step"], content["files"], content["state"]
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise StorageError(f"{path}: torn: {error}") from None
        if found[:2] != (FORMAT, step):
            raise StorageError(f"{path}: format {found[0]} of step {found[1]}; expected {FORMAT} of step {step}")
        whole = len(content) == len(found) and isinstance(found[2], dict) and isinstance(found[3], dict)
        if not whole or checksum not in (None, _checksum_of(content)):
            raise StorageError(f"{path}: torn or changed since it was written")
        return dict(content)

    def drop_after(self, step: int) -> None:
        """Deletes checkpoints after `step`, and what an interrupted write left behind."""
        for later in self.steps():
            if later > step:
                shutil.rmtree(self.path(later), ignore_errors=True)
        files.delete_partial(self.directory, directories=True)


def _checksum_of(content: Mapping[str, Any]) -> str:
    """Returns the checksum of plain data, which JSON keeps exactly."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
