"""What makes a folder a run, told by its files alone: nothing is loaded to refuse another."""

from __future__ import annotations

import os
from pathlib import Path

from reluformer.errors import StorageError

RECIPE, MODEL = "recipe.yaml", "config.json"
ONNX = "onnx.json"
"""What the folder of an ONNX export holds instead of a model."""
MAIN = "reluformer"
"""The run that a folder of runs stands for where it holds one of this name, as that of `make demo` does."""
_NAMED = 8


def is_run(directory: Path) -> bool:
    """Whether `directory` is that of a run, of a saved model or of an ONNX export."""
    return any(os.path.isfile(directory / name) for name in (RECIPE, MODEL, ONNX))  # False where it cannot be seen


def meant_by(directory: Path) -> Path:
    """The run that is meant: `directory` itself, or the `reluformer` among the runs in it."""
    return directory / MAIN if is_run(directory / MAIN) and not is_run(directory) else directory


def refuse_folder_of_runs(directory: Path) -> None:
    """Whoever names the folder that runs stand in is told their names."""
    if not os.access(directory, os.R_OK) or not directory.is_dir() or is_run(directory):
        return
    names = sorted(path.name for path in directory.iterdir() if is_run(path))
    if names:
        more = ", ..." if len(names) > _NAMED else ""
        raise StorageError(
            f"{directory}: not a run, it holds the runs {', '.join(names[:_NAMED])}{more}; name one of them"
        )
