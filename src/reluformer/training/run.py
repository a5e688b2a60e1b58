"""The run directory: the one place that knows which files a run has and what they mean.

recipe.yaml                     the recipe, with absolute paths
status.json                     running, interrupted, diverged or finished
environment.json                for each start of the training: versions, commit, machine and command
log.jsonl                       one event a line, one clean sequence even after many resumptions
checkpoints/step-00001000/      what training resumes from
best/                           the model with the lowest validation loss so far; it loads by itself
config.json, model.safetensors  the final model; only a finished run has them
tokenizer.json, ...             its tokenizer
evaluation/, tensorboard/       what `reluformer evaluate` and TensorBoard write

A saved model without the rest, as `ReLUFormer.save` writes it, can be read through the same class. Neither
torch nor pydantic is imported before it is needed, so that the command line starts quickly.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from reluformer import files
from reluformer.errors import ConfigError, StorageError
from reluformer.models import CONFIG, WEIGHTS

if TYPE_CHECKING:
    from reluformer.training.checkpoint import CheckpointStore
    from reluformer.training.config import TrainingRecipe

Status = Literal["running", "interrupted", "diverged", "finished"]
R = TypeVar("R", bound="TrainingRecipe")

RECIPE, STATUS, LOG, BEST_STEP = "recipe.yaml", "status.json", "log.jsonl", "best.json"
ENVIRONMENT = "environment.json"
TOKENIZER = ("tokenizer.json", "tokenizer.meta.json")
ONNX = "onnx.json"
"""The manifest of an ONNX export, which has no config.json."""
MAIN = "reluformer"
"""The run that a folder of runs stands for if it holds one of this name, as that of `make demo` does."""
_OF_A_RUN = (
    *(STATUS, "checkpoints", "best", LOG, ENVIRONMENT, "tensorboard", "evaluation"),
    *(CONFIG, WEIGHTS, *TOKENIZER),
)
"""What a new run deletes, in this order: without the first two there is nothing to resume."""
_MOST_NAMES = 8
_CHECKSUM = "crc32"
"""The key of a line's checksum in the log."""


def is_run(directory: Path) -> bool:
    """Returns whether `directory` holds a run, a saved model or an ONNX export; False if it cannot be read."""
    return any(os.path.isfile(directory / name) for name in (RECIPE, CONFIG, ONNX))


def find_run(directory: Path) -> Path:
    """Returns the run that `directory` stands for: itself, or the run `reluformer` in a folder of runs."""
    return directory / MAIN if is_run(directory / MAIN) and not is_run(directory) else directory


def refuse_folder_of_runs(directory: Path) -> None:
    """Raises a `StorageError` with the names of the runs if `directory` only holds runs."""
    if not os.access(directory, os.R_OK) or not directory.is_dir() or is_run(directory):
        return
    names = sorted(path.name for path in directory.iterdir() if is_run(path))
    if names:
        more = ", ..." if len(names) > _MOST_NAMES else ""
        raise StorageError(
            f"{directory}: not a run, it holds the runs {', '.join(names[:_MOST_NAMES])}{more}; name one of them"
        )


class RunDirectory:
    """A directory such as `runs/NAME`, for reading and writing."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.best = self.path / "best"
        self.log = RunLog(self.path / LOG)

    @cached_property
    def checkpoints(self) -> CheckpointStore:
        """The checkpoints that training resumes from."""
        from reluformer.training.checkpoint import CheckpointStore

        return CheckpointStore(self.path / "checkpoints")

    @property
    def exists(self) -> bool:
        """Whether a run was started here."""
        return (self.path / RECIPE).is_file()

    @property
    def has_model(self) -> bool:
        """Whether the directory holds a whole model."""
        return (self.path / CONFIG).is_file()

    @property
    def model(self) -> Path:
        """The directory whose model translates: that of the run, or best/ if the run has not finished."""
        return self.best if self.is_unfinished else self.path

    @property
    def is_unfinished(self) -> bool:
        """Whether the run has no final model, but a best one so far."""
        return self.exists and not self.has_model and self.best_step is not None

    @property
    def weights_note(self) -> str | None:
        """A sentence that says which weights an unfinished run translates with; None for other runs."""
        if not self.is_unfinished:
            return None
        return (
            f"{self.path}: the training has not finished; using its best weights so far, those of update "
            f"{self.best_step:,}. `reluformer train {self.path}` resumes it"
        )

    @property
    def status(self) -> dict[str, Any]:
        """The content of status.json; empty before the run."""
        try:
            content = dict(files.parse_json(files.read_text(self.path / STATUS)))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            raise StorageError(f"{self.path / STATUS}: damaged ({error}); delete it and start again") from None
        return content

    def set_status(self, status: Status, **details: Any) -> None:
        """Replaces status.json."""
        files.write_json(self.path / STATUS, {"status": status, **_plain(details)})

    @property
    def was_trained(self) -> bool:
        """Whether a training ran here; a run imported from an export has neither a status nor checkpoints."""
        return any((self.path / name).exists() for name in (STATUS, "checkpoints"))

    @property
    def is_onnx(self) -> bool:
        """Whether the directory holds an ONNX export instead of a run."""
        return (self.path / ONNX).is_file()

    @property
    def recipe_file(self) -> Path:
        """The recipe.yaml of the run; best/ of version 0.1 has that of the run around it."""
        return self._own_or_parents(RECIPE)

    @property
    def tokenizer(self) -> Path:
        """The directory that holds the tokenizer; best/ of version 0.1 has that of the run around it."""
        return self._own_or_parents(TOKENIZER[0]).parent

    def _own_or_parents(self, name: str) -> Path:
        around = self.path.absolute().parent
        is_best = self.path.absolute().name == "best" and (around / RECIPE).is_file()
        own = self.path / name
        return around / name if is_best and not own.is_file() and (around / name).is_file() else own

    def recipe(self, schema: type[R]) -> R:
        """Returns the recipe of the run; `schema` is the recipe class of its task."""
        from reluformer.config import load_yaml

        return load_yaml(schema, self.recipe_file)

    def recipe_values(self) -> dict[str, Any]:
        """Returns recipe.yaml as plain data, without validation; empty if there is none.

        Raises:
            StorageError: The file is damaged.
        """
        from reluformer.config import read_yaml

        path = self.recipe_file
        if not path.is_file():
            return {}
        try:
            return dict(read_yaml(path))
        except (ConfigError, ValueError, TypeError):
            raise StorageError(f"{path}: damaged, not a recipe; delete it to translate with default settings") from None

    def check(self) -> None:
        """Raises a `StorageError` if the directory holds no run or model; the message says what it is instead."""
        if not self.path.exists():
            raise StorageError(f"{self.path}: no such directory; give that of a run, as `reluformer train` made it")
        if not self.path.is_dir():
            raise StorageError(f"{self.path}: is a file; give the directory of a run")
        refuse_folder_of_runs(self.path)
        if not is_run(self.path):
            raise StorageError(
                f"{self.path}: not a run, it holds neither {RECIPE} nor {CONFIG}; `reluformer train` makes runs"
            )

    def check_model(self) -> None:
        """Raises a `StorageError` if there is no model that could translate; nothing is loaded."""
        self.check()
        if not self.has_model and not self.is_onnx and not self.is_unfinished:
            status = self.status.get("status", "not started")
            raise StorageError(
                f"{self.path}: the run is {status} and has no model yet; `reluformer train` resumes it, and the first "
                "validation gives it one"
            )

    def check_recipe(self) -> None:
        """Raises a `StorageError` for a model without a recipe, which does not say what it was trained on."""
        self.check()
        if not self.recipe_file.is_file():
            raise StorageError(
                f"{self.path}: a model without {RECIPE}; give the directory of the run that it comes from"
            )

    def copy_recipe(self, directory: Path) -> None:
        """Copies recipe.yaml, if there is one, to the directory of an export."""
        if self.recipe_file.is_file():
            shutil.copyfile(self.recipe_file, directory / RECIPE)

    def check_free(self) -> None:
        """Refuses a directory that holds anything but an earlier run or a prepared corpus."""
        if self.exists:
            return
        foreign = sorted(path.name for path in self._entries() if path.name != "data" and not files.is_partial(path))
        if foreign:
            raise StorageError(f"{self.path}: not a run, it holds {', '.join(foreign[:3])}; choose a new directory")

    def begin(self, recipe: TrainingRecipe) -> None:
        """Starts a new run here. The files of an earlier run are deleted; a directory of something else is refused.

        The recipe is replaced and never missing, because a directory without one is no run.
        """
        self.check_free()
        for name in _OF_A_RUN:
            _delete(self.path / name)
        self.set_recipe(recipe)

    def resume(self, recipe: TrainingRecipe, step: int) -> None:
        """Prepares the directory for training after `step`: without a final model or any trace of later steps."""
        self.set_status("running")  # first: a finished run has its model
        for name in (CONFIG, WEIGHTS):
            _delete(self.path / name)
        self.set_recipe(recipe)
        self.checkpoints.drop_after(step)
        self.log.cut_after(step)

    def set_recipe(self, recipe: TrainingRecipe) -> None:
        """Replaces recipe.yaml, also beside the best model."""
        import yaml

        text = yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        files.write_text(self.path / RECIPE, text)
        if (self.best / RECIPE).is_file():
            files.write_text(self.best / RECIPE, text)

    @property
    def environments(self) -> list[dict[str, Any]]:
        """What each start of the training was made with, from the first; empty for a run of version 0.1.

        Starts in an unchanged environment are one entry, with the step after which the first of them began.
        """
        try:
            return [dict(entry) for entry in files.parse_json(files.read_text(self.path / ENVIRONMENT))["starts"]]
        except (OSError, ValueError, KeyError, TypeError, StorageError):
            return []  # only a record; training does not depend on it

    def add_environment(self, step: int, values: Mapping[str, Any]) -> None:
        """Records versions, machine and command of a training that starts or resumes after `step`."""
        starts = [entry for entry in self.environments if entry.get("step", 0) <= step]
        if not starts or {**starts[-1], "step": step} != {"step": step, **_plain(values)}:
            starts.append({"step": step, **_plain(values)})
        files.write_json(self.path / ENVIRONMENT, {"starts": starts})

    def check_resumable(self, recipe: TrainingRecipe) -> None:
        """Refuses to resume with another recipe; the error names the keys that differ.

        Models are compared, not how a recipe writes them. Files may have moved if the log identifies the corpus.
        """
        old, new = (_flat(r.resolved()) for r in (self.recipe(type(recipe)), recipe))
        corpus_known = any("corpus" in event for event in self.log.events("start"))
        differing = [
            f"{key} ({old.get(key)} -> {new.get(key)})"
            for key in sorted(old.keys() | new.keys())
            if old.get(key) != new.get(key) and not recipe.is_free(key, corpus_known=corpus_known)
        ]
        if differing:
            raise ConfigError(
                f"{self.path}: holds a run of another recipe; different: {', '.join(differing)}. Choose a new "
                "directory, or start again here with --fresh, which deletes the old run"
            )

    def save_best(self, save: Callable[[Path], None], step: int) -> None:
        """Keeps the model of `step` as the best so far, with its recipe, so that best/ loads by itself.

        Args:
            save: Writes the model and what it needs into a directory.
            step: The update after which the model was validated. best.json has it only while the model is whole.
        """
        _delete(self.best / BEST_STEP)
        files.delete_partial(self.best)
        if self.exists:
            files.write_text(self.best / RECIPE, (self.path / RECIPE).read_text(encoding="utf-8"))
        save(self.best)
        files.write_json(self.best / BEST_STEP, {"step": step})

    def drop_checkpoints(self) -> None:
        """Deletes the checkpoints and the best model, which nothing needs once the run has ended and was measured."""
        for directory in (self.checkpoints.directory, self.best):
            shutil.rmtree(directory, ignore_errors=True)

    @property
    def best_step(self) -> int | None:
        """The step of the model in best/; None without a whole one."""
        try:
            return int(files.parse_json(files.read_text(self.best / BEST_STEP))["step"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return None

    def alone(self) -> AbstractContextManager[None]:
        """Returns a lock that keeps a second process from training here, where the system has locks."""
        return files.alone_in(self.path, busy="another process is training here; wait for it or stop it")

    def _entries(self) -> Iterator[Path]:
        if self.path.exists():
            if not self.path.is_dir():
                raise StorageError(f"{self.path}: is a file; choose another directory for the run")
            yield from self.path.iterdir()


class RunLog:
    """A log with one JSON object a line, in the order of steps; each line has a checksum of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, event: str, step: int, **values: Any) -> None:
        """Adds an event with its step and values; numbers that are not finite become null."""
        line = _log_line({"event": event, "step": step, **_plain(values)})
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be written: {error.strerror or error}; free some space") from None

    def flush(self) -> None:
        """Waits until the log is on the disk, so that no checkpoint is ahead of it."""
        if self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def events(self, event: str | None = None) -> list[dict[str, Any]]:
        """Returns all events, or those of one kind. Damaged lines are left out; `problems` names them."""
        return [values for values in self._read()[0] if event is None or values["event"] == event]

    def problems(self) -> list[str]:
        """Returns a sentence for each damaged line, but not for a last line that a killed process cut off."""
        return self._read()[1]

    def _read(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Returns the events of all good lines, and what is wrong with the others."""
        files.check_regular(self.path)
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return [], []
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        checked = f'"{_CHECKSUM}"'.encode() in content  # a log of version 0.1 has no checksum in any line
        *lines, rest = content.split(b"\n")
        events, problems = [], []
        for number, line in enumerate(lines, 1):
            try:
                events.append(_parse_log_line(line, checked=checked))
            except ValueError as error:
                problems.append(f"{self.path}:{number}: {error}")
        if rest:  # a last line without its end
            with suppress(ValueError):
                events.append(_parse_log_line(rest, checked=checked))
        return events, problems

    def cut_after(self, step: int) -> None:
        """Drops the events after `step`, which will be logged again, and damaged lines."""
        kept = [values for values in self.events() if values["step"] <= step and values["event"] != "end"]
        files.write_text(self.path, "".join(map(_log_line, kept)))


def _log_line(values: Mapping[str, Any]) -> str:
    return json.dumps({**values, _CHECKSUM: _line_checksum(values)}) + "\n"


def _parse_log_line(line: bytes, *, checked: bool) -> dict[str, Any]:
    """Returns an event of the log, or raises a `ValueError` that says what is wrong with its line.

    Args:
        line: The line without its end.
        checked: Whether the lines of this log have checksums, so that one without is damaged.
    """
    try:
        values = files.parse_json(line.decode("utf-8"))
    except ValueError:
        raise ValueError("damaged, not JSON") from None
    if not isinstance(values, dict) or type(values.get("event")) is not str or type(values.get("step")) is not int:
        raise ValueError("damaged, not an event with its step")
    checksum = values.pop(_CHECKSUM, None)
    if checked and checksum != _line_checksum(values):
        raise ValueError("damaged, or changed since it was written")
    return values


def _line_checksum(values: Mapping[str, Any]) -> str:
    """Returns the checksum of an event, which JSON keeps exactly."""
    return f"{zlib.crc32(json.dumps(values).encode()):08x}"


def _plain(value: Any) -> Any:
    """Returns the value with None for NaN and infinity, which JSON lacks."""
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
        if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            value = {str(place): item for place, item in enumerate(value)}
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
