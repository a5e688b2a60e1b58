"""A run as the verbs take it: checked before any work, loaded when there is some."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from reluformer.errors import StorageError
from reluformer.translation.runs import MODEL, ONNX, RECIPE, is_run, refuse_folder_of_runs

if TYPE_CHECKING:
    from reluformer.translation.recipe import Recipe
    from reluformer.translation.translator import Translator


def check_run(run: Path) -> None:
    """Refuse what is no run, saying what it is instead."""
    if not run.exists():
        raise StorageError(f"{run}: no such directory; give that of a run, as `reluformer train` made it")
    if not run.is_dir():
        raise StorageError(f"{run}: is a file; give the directory of a run")
    refuse_folder_of_runs(run)
    if not is_run(run):
        raise StorageError(f"{run}: not a run, it holds neither {RECIPE} nor {MODEL}; `reluformer train` makes runs")


def check_model(run: Path) -> None:
    """Refuse what cannot translate, without loading it: input is read only for a run that can."""
    check_run(run)
    if (run / MODEL).is_file() or (run / ONNX).is_file():
        return
    from reluformer.training.run import RunDirectory

    status = RunDirectory(run).status.get("status", "not started")
    raise StorageError(f"{run}: the run is {status} and has no model yet; `reluformer train` resumes it")


def check_inspectable(run: Path) -> None:
    """Refuse what can translate but not show what it read."""
    check_model(run)
    if (run / ONNX).is_file():
        raise StorageError(f"{run}: an ONNX export, which only translates; give the run that it was exported from")


def check_recipe(run: Path) -> None:
    """Refuse a model that does not say what it was trained on."""
    check_run(run)
    if not (run / RECIPE).is_file():
        raise StorageError(f"{run}: a model without {RECIPE}; give the directory of the run that it comes from")


def read_recipe(run: Path) -> Recipe:
    """What the run was asked for."""
    from reluformer.config import load_yaml
    from reluformer.translation.recipe import Recipe

    return load_yaml(Recipe, run / RECIPE)


def languages(run: Path) -> tuple[str, str]:
    """What the run translates from and into; English and German where no recipe says."""
    if (run / ONNX).is_file():
        from reluformer.integrations.onnx import manifest

        return manifest.read_manifest(run).languages
    if not (run / RECIPE).is_file():
        return "en", "de"
    data = read_recipe(run).data
    return data.source_lang, data.target_lang


def open_translator(run: Path, device: str, **decoding: Any) -> Translator:
    """Load the translator of a run or an export; `auto` is the GPU where there is one."""
    from reluformer.loading import load

    return load(run, device, **decoding)
