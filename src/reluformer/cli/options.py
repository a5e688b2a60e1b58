"""Options that several verbs share, what their values mean, and the extras that verbs need."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reluformer.errors import ConfigError, MissingExtraError, StorageError

if TYPE_CHECKING:
    from reluformer.training.run import RunDirectory


def _load_plugins(paths: list[Path]) -> list[Path]:
    for path in paths:
        from reluformer import rules

        rules.load_plugin(path)
    return paths


def decoding_changes(settings: list[str], **options: int | float | str | None) -> dict[str, int | float | str]:
    """Returns the changes to `DecodingConfig` that `--set key=value` and the other options ask for."""
    changes: dict[str, int | float | str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {setting}: write it as key=value, e.g. --set context_sentences=1")
        changes[key.strip().removeprefix("decoding.")] = value.strip()
    return {**changes, **{name: value for name, value in options.items() if value is not None}}


def find_run(directory: Path) -> Path:
    """Returns the run that the directory is or holds."""
    from reluformer.training import run  # only verbs that need a run import it, so that `--help` is quick

    return run.find_run(directory)


def open_run(directory: Path) -> RunDirectory:
    """Returns the owner of the files of a run."""
    from reluformer.training.run import RunDirectory

    return RunDirectory(directory)


def check_model(run: Path) -> None:
    """Raise an error unless the directory holds a model, and say so if it is that of an unfinished run."""
    open_run(run).check_model()
    if (note := open_run(run).weights_note) is not None:
        typer.echo(note, err=True)


def check_inspectable(run: Path) -> None:
    """Raise an error unless the directory holds a model that can show what it read."""
    check_model(run)
    if open_run(run).is_onnx:
        raise StorageError(f"{run}: an ONNX export, which only translates; give the run that it was exported from")


def task_of(run: Path) -> str:
    """Returns the task of a run by its recipe: translation, language or images."""
    return str(open_run(run).recipe_values().get("task", "translation"))


def write_scores(place: Path, content: dict[str, Any], required: bool) -> None:
    """Write scores as JSON and say so. Where that fails and is not `required`, print a warning."""
    from rich.console import Console

    from reluformer import files

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(place, content)
    except (OSError, StorageError) as error:
        if required:
            raise StorageError(f"{place}: cannot be written: {error}; choose another file") from None
        typer.echo(f"warning: the scores are printed only, --out FILE writes them elsewhere: {error}", err=True)
        return
    Console(stderr=True).print(f"Wrote {place}.", highlight=False, markup=False)


def languages(run: Path) -> tuple[str, str]:
    """Returns the source and target language of a run or an export; English and German if it does not tell."""
    if open_run(run).is_onnx:
        from reluformer.integrations.onnx.runtime import read_manifest

        return read_manifest(run).languages
    from reluformer.translation.recipe import languages_of

    return languages_of(open_run(run))


def default_run(config: Path) -> Path:
    """Returns the run directory of a recipe, which is named like the recipe."""
    return Path("runs") / config.stem


Plugins = Annotated[
    list[Path],
    typer.Option(
        "--plugin", callback=_load_plugins, is_eager=True, metavar="FILE", help="Python file with rules of your own."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print figures as JSON.")]
RunArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN", callback=find_run, help="Directory of a run, e.g. runs/demo.", show_default=False),
]
Beam = Annotated[int | None, typer.Option("--beam", min=1, help="Beam size; 1 is greedy search.", show_default=False)]
LengthPenalty = Annotated[
    float | None, typer.Option("--length-penalty", min=0, help="0 prefers short translations.", show_default=False)
]
Settings = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Change another key of the decoding section; repeatable."),
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, ...; auto uses a GPU if there is one.")]
Int8 = Annotated[bool, typer.Option("--int8", help="Translate with weights of 8 bits, which is faster on a CPU.")]
SplitterName = Annotated[
    str, typer.Option("--splitter", help="Where sentences end in running text: simple, none (every line) or pysbd.")
]
RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="A YAML file, as in configs/.")]
Overrides = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change one value, as in training.lr=3e-4; repeatable.")
]

EXTRAS: dict[str, tuple[str, ...]] = {
    "plots": ("matplotlib",),
    "study": ("matplotlib", "scipy"),
    "formats": ("translate",),
    "tensorboard": ("tensorboard",),
    "hf": ("transformers",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "serve": ("fastapi", "uvicorn", "prometheus_client", "python_multipart"),
    "docs": ("mkdocs", "material", "mkdocstrings"),
}
"""The modules of each extra. Triton is not among them: `kernels.availability` tells about it."""


def missing_modules(extra: str) -> list[str]:
    """Returns the modules of an extra that are not installed."""
    return [module for module in EXTRAS[extra] if find_spec(module) is None]


def install_command(extra: str) -> str:
    """Returns the command that installs an extra.

    Example:
        >>> install_command("plots")
        "pip install 'reluformer[plots]'"
    """
    return f"pip install 'reluformer[{extra}]'"


def require_extra(extra: str, what: str) -> None:
    """Check that an extra is installed. A command calls it before it does any work.

    Args:
        extra: A key of `EXTRAS`.
        what: What needs it, for the message.

    Raises:
        MissingExtraError: A module is missing; the message has the command that installs it.
    """
    if missing := missing_modules(extra):
        raise MissingExtraError(f"{what} needs {', '.join(missing)}; {install_command(extra)}")
