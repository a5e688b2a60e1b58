"""A run as the verbs take it: checked before any work, loaded when there is some."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from reluformer.errors import StorageError
from reluformer.training.run import RunDirectory

if TYPE_CHECKING:
    from reluformer.translation.recipe import Recipe
    from reluformer.translation.translator import Translator


def check_run(run: Path) -> None:
    """Refuse what is no run, saying what it is instead."""
    RunDirectory(run).check()


def check_model(run: Path) -> None:
    """Refuse what cannot translate, without loading it: input is read only for a run that can."""
    RunDirectory(run).check_model()


def check_inspectable(run: Path) -> None:
    """Refuse what can translate but not show what it read."""
    check_model(run)
    if RunDirectory(run).is_onnx:
        raise StorageError(f"{run}: an ONNX export, which only translates; give the run that it was exported from")


def check_recipe(run: Path) -> None:
    """Refuse a model that does not say what it was trained on."""
    RunDirectory(run).check_recipe()


def read_recipe(run: Path) -> Recipe:
    """Return the recipe of a run."""
    from reluformer.translation.recipe import Recipe

    return RunDirectory(run).recipe(Recipe)


def languages(run: Path) -> tuple[str, str]:
    """Return what the run translates from and into; English and German where no recipe says."""
    if RunDirectory(run).is_onnx:
        from reluformer.integrations.onnx import manifest

        return manifest.read_manifest(run).languages
    from reluformer.translation.recipe import languages_of

    return languages_of(RunDirectory(run))


def open_translator(run: Path, device: str, **decoding: Any) -> Translator:
    """Load the translator of a run or an export; `auto` is the GPU where there is one."""
    from reluformer.loading import load

    return load(run, device, **decoding)
