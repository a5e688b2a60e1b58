"""The directory of a run: its recipe, its log, its state, and at the end its model.

recipe.yaml                     what was asked for, resolved
status.json                     running, interrupted, diverged or finished
log.jsonl                       one event a line, one clean sequence even after many resumptions
checkpoints/step-00001000/      to go on from
best/                           the weights with the lowest validation loss so far
config.json, model.safetensors  the model; only a finished run has them
tokenizer.json, ...             its tokenizer
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import yaml
from torch import Tensor

from reluformer import files
from reluformer.config import load_yaml
from reluformer.errors import ConfigError, StorageError
from reluformer.models import storage
from reluformer.models.config import ModelConfig
from reluformer.training.checkpoint import CheckpointStore
from reluformer.translation.recipe import Recipe

Status = Literal["running", "interrupted", "diverged", "finished"]

FREE_TO_CHANGE = frozenset(
    {
        "updates",
        "max_minutes",
        "patience",
        "checkpoint_every",
        "checkpoint_minutes",
        "keep_checkpoints",
        "tensorboard",
    }
)
"""Keys of `training` that may differ when a run goes on: they do not change its mathematics."""

_BEST = "best.json"
_OF_A_RUN = (
    *("status.json", "checkpoints", "best", "log.jsonl", "tensorboard", "evaluation"),
    *(storage.CONFIG, storage.WEIGHTS, "tokenizer.json", "tokenizer.meta.json"),
)
"""What a new run deletes, in this order: without the first two there is nothing to go on with."""


class RunDirectory:
    """`runs/NAME`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = CheckpointStore(self.path / "checkpoints")
        self.best = self.path / "best"
        self.log = RunLog(self.path / "log.jsonl")

    @property
    def exists(self) -> bool:
        return (self.path / "recipe.yaml").is_file()

    @property
    def status(self) -> dict[str, Any]:
        """What status.json says; empty before the run."""
        try:
            content = json.loads((self.path / "status.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StorageError(f"{self.path / 'status.json'}: damaged ({error}); delete it and start again") from None
        return dict(content)

    def set_status(self, status: Status, **details: Any) -> None:
        files.write_json(self.path / "status.json", {"status": status, **_plain(details)})

    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return load_yaml(Recipe, self.path / "recipe.yaml")

    def check_free(self) -> None:
        """Refuse a directory that holds anything but an earlier run or a prepared corpus: a new run would empty it."""
        if self.exists:
            return
        foreign = sorted(path.name for path in self._entries() if path.suffix != ".partial" and path.name != "data")
        if foreign:
            raise StorageError(f"{self.path}: not a run, it holds {', '.join(foreign[:3])}; choose a new directory")

    def begin(self, recipe: Recipe) -> None:
        """A new run here. What an earlier run left is deleted; a directory of something else is refused.

        The recipe is replaced and never missing: without one, what is left would be something else.
        """
        self.check_free()
        for name in _OF_A_RUN:
            _delete(self.path / name)
        self.set_recipe(recipe)

    def set_recipe(self, recipe: Recipe) -> None:
        text = yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        files.write_text(self.path / "recipe.yaml", text)

    def check_continues(self, recipe: Recipe) -> None:
        """Refuse to go on with another recipe, naming the keys that differ.

        Models are compared, not how a recipe spells them. Files may have moved where the log says what they held.
        """
        old, new = (_flat(_resolved(r)) for r in (self.recipe(), recipe))
        knows_corpus = any("corpus" in event for event in self.log.events("start"))
        free = {f"training.{key}" for key in FREE_TO_CHANGE}
        if recipe.training.schedule == "cosine":
            free.discard("training.updates")  # it decides every learning rate
        differing = [
            f"{key} ({old.get(key)} -> {new.get(key)})"
            for key in sorted(old.keys() | new.keys())
            if old.get(key) != new.get(key)
            and key not in free
            and not key.startswith("decoding.")
            and not (knows_corpus and _is_place(key))
        ]
        if differing:
            raise ConfigError(
                f"{self.path}: holds a run of another recipe; different: {', '.join(differing)}. Choose a new "
                "directory, or do not resume, which deletes the old run"
            )

    def save_best(self, config: ModelConfig, weights: Mapping[str, Tensor], step: int) -> None:
        """Keep the weights of `step` as the best so far; best.json is there only while they are whole."""
        _delete(self.best / _BEST)
        files.delete_partial(self.best)
        storage.save(self.best, config, weights)
        files.write_json(self.best / _BEST, {"step": step})

    @property
    def best_step(self) -> int | None:
        """The step of the weights in best/."""
        try:
            return int(json.loads((self.best / _BEST).read_text(encoding="utf-8"))["step"])
        except (OSError, ValueError, KeyError):
            return None

    def alone(self) -> AbstractContextManager[None]:
        """No second process trains here at the same time, where the system has locks."""
        return files.alone_in(self.path, busy="another process is training here; wait for it or stop it")

    def withdraw_model(self) -> None:
        """A run that goes on has no final model."""
        for name in (storage.CONFIG, storage.WEIGHTS):
            _delete(self.path / name)

    def _entries(self) -> Iterator[Path]:
        if self.path.exists():
            if not self.path.is_dir():
                raise StorageError(f"{self.path}: is a file; choose another directory for the run")
            yield from self.path.iterdir()


class RunLog:
    """One JSON object a line, in order of steps."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: str, step: int, **values: Any) -> None:
        line = json.dumps({"event": event, "step": step, **_plain(values)})
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be written: {error.strerror or error}; free some space") from None

    def flush(self) -> None:
        """Wait until it is on the disk, so that no checkpoint is ahead of it."""
        if self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def events(self, event: str | None = None) -> list[dict[str, Any]]:
        """All events, or those of one kind. A last line that was cut off by a kill is left out."""
        if not self.path.exists():
            return []
        found = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                break
        return [values for values in found if event is None or values["event"] == event]

    def cut_after(self, step: int) -> None:
        """Forget what happened after `step`: it will happen again."""
        kept = [values for values in self.events() if values["step"] <= step and values["event"] != "end"]
        files.write_text(self.path, "".join(json.dumps(values) + "\n" for values in kept))


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _resolved(recipe: Recipe) -> dict[str, Any]:
    """A recipe as plain data, its model with all sizes and rules."""
    model = recipe.model_config_for(2**31 - 1).model_dump(mode="json")
    return {**recipe.model_dump(mode="json"), "model": model}


def _is_place(key: str) -> bool:
    """Whether it says where a file of the corpus is, not what it holds."""
    return key.startswith("data.") and key.rpartition(".")[2] in ("path", "src", "tgt")


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
