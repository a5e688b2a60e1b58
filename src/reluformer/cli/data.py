"""`reluformer data`, `recipe` and `prepare`: public corpora and images, the keys of recipes, and prepared corpora."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reluformer.cli.options import AsJson, Overrides, Plugins, RecipeFile, default_run
from reluformer.errors import ArgumentError
from reluformer.training.progress import activity

if TYPE_CHECKING:
    from reluformer.downloads import DownloadProgress
    from reluformer.images.downloads import ImageSet
    from reluformer.language.recipe import LanguageRecipe
    from reluformer.translation.downloads.catalogue import Dataset, ObtainedSet


def prepare(
    config: RecipeFile,
    to: Annotated[
        Path | None, typer.Option(help="Directory to write to. Default: runs/NAME/data.", show_default=False)
    ] = None,
    overrides: Overrides = [],  # noqa: B006
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Train the tokenizer, cut documents into segments, and report what was kept and what was skipped.

    Example: reluformer prepare configs/multi30k.yaml --set data.tokenizer.vocab_size=6000
    """
    from reluformer.config import load_yaml
    from reluformer.images.recipe import ImageRecipe
    from reluformer.language.recipe import LanguageRecipe
    from reluformer.loading import recipe_class
    from reluformer.translation import corpus

    recipe = load_yaml(recipe_class(config), config, overrides)
    if isinstance(recipe, ImageRecipe):
        raise ArgumentError(f"{config}: images need no preparation; use `reluformer train {config}`")
    console = Console(stderr=as_json)
    if isinstance(recipe, LanguageRecipe):
        _prepare_language(recipe, to or default_run(config) / "data", as_json)
        return
    with activity("preparing", Console(stderr=True)) as tell:
        summary = corpus.prepare(
            recipe.data,
            to or default_run(config) / "data",
            progress=lambda what, pairs, total: tell(
                f"preparing, {what}: {pairs:,} sentence pairs", min(1.0, pairs / total) if total else None
            ),
        )
    for warning in summary.warnings():
        typer.echo(warning, err=True)
    if as_json:
        typer.echo(json.dumps(summary.to_json(), indent=2))
        return
    console.print(summary.table())
    for table in (summary.skipped_table(), summary.found_table()):
        if table is not None:
            console.print(table)


def _prepare_language(recipe: LanguageRecipe, to: Path, as_json: bool) -> None:
    """Prepare the corpus of a language model and print its numbers of documents and tokens."""
    from reluformer.language import corpus

    with activity("preparing", Console(stderr=True)):
        summary = corpus.prepare(recipe.data.resolved(), to)
    typer.echo(json.dumps(summary, indent=2) if as_json else corpus.describe(summary))


def recipe(
    key: Annotated[
        str, typer.Argument(metavar="[KEY]", help="A key or a section, as in training.lr.", show_default=False)
    ] = "",
    as_schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of recipes, for editors.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the reference as a page; it is docs/recipe.md.")
    ] = False,
) -> None:
    """Explain the keys of a recipe: type, default, meaning, an example, and the tasks that have it.

    Example: reluformer recipe training.lr
    """
    from reluformer import recipe_reference

    if as_schema:
        typer.echo(json.dumps(recipe_reference.json_schema(), indent=2, ensure_ascii=False))
    elif as_markdown:
        typer.echo(recipe_reference.markdown(), nl=False)
    else:
        typer.echo(recipe_reference.explain(key))


app = typer.Typer(
    name="data",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="List, download and convert public corpora and sets of images.\n\nExample: reluformer data get multi30k",
)


@app.command(name="list")
def list_sets(as_json: AsJson = False) -> None:
    """List the public corpora that can be downloaded, with their licences and checksums.

    Example: reluformer data list
    """
    from reluformer.images.downloads import SETS
    from reluformer.translation.downloads.catalogue import DATASETS

    if as_json:
        sets = [*map(_dataset_as_json, DATASETS.values()), *map(_image_set_as_json, SETS.values())]
        typer.echo(json.dumps(sets, indent=2))
        return
    console = Console(highlight=False)
    for dataset in DATASETS.values():
        console.print(f"[bold]{dataset.name}[/bold]  {'-'.join(dataset.languages)}  {dataset.title}")
        rows = Table.grid(padding=(0, 2))
        rows.add_row("  converted:", dataset.conversion)
        rows.add_row("  licence:", dataset.licence)
        rows.add_row("  size:", dataset.sizes)
        rows.add_row("  checksum:", dataset.checksums)
        console.print(rows)
    for images in SETS.values():
        console.print(f"[bold]{images.name}[/bold]  images  {images.title}")
        rows = Table.grid(padding=(0, 2))
        rows.add_row("  licence:", images.licence)
        rows.add_row("  checksum:", f"md5 for {len(images.files)} files")
        console.print(rows)
    console.print(
        "\nA file whose checksum is unknown is trusted at its first download; later downloads must be identical."
    )


@app.command(name="get")
def get_set(
    name: Annotated[str, typer.Argument(help="A set that `reluformer data list` shows.")],
    to: Annotated[Path, typer.Option(help="Directory for DIR/NAME/{train,valid,test}.jsonl.gz.")] = Path("data"),
    mirror: Annotated[
        str | None, typer.Option(metavar="URL", help="Server that replaces scheme and host of every address.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download a public corpus or set of images and check it. Files that exist already are kept.

    A corpus is converted to documents; images stay as they are.

    Example: reluformer data get multi30k --to data
    """
    from reluformer.images.downloads import SETS
    from reluformer.translation.downloads.catalogue import find, obtain

    if name in SETS:
        with _download_bars() as progress:
            _get_images(SETS[name], to, mirror, progress, as_json)
        return
    dataset = find(name, SETS)
    with _download_bars() as progress:
        outcome = obtain(dataset, to, mirror=mirror, progress=progress)
    if as_json:
        typer.echo(
            json.dumps({"directory": str(outcome.directory), "fresh": outcome.fresh, **outcome.record}, indent=2)
        )
        return
    _print_outcome(dataset, outcome)


def _get_images(chosen: ImageSet, to: Path, mirror: str | None, progress: DownloadProgress, as_json: bool) -> None:
    """Download a set of images, and print what it holds and the lines that a recipe needs."""
    from reluformer.images.downloads import obtain

    counts = obtain(chosen, to, mirror=mirror, progress=progress)
    directory = to / chosen.name
    if as_json:
        typer.echo(json.dumps({"directory": str(directory), "images": counts}, indent=2))
        return
    typer.echo(", ".join(f"{count:,} images in {split}" for split, count in counts.items()) + f": {directory}")
    typer.echo(f"Licence: {chosen.licence}. Cite: {chosen.citation}.")
    typer.echo(f"In a recipe:\ntask: images\ndata:\n  directory: {json.dumps(str(directory))}")


def _dataset_as_json(dataset: Dataset) -> dict[str, Any]:
    """Returns what the catalogue holds about a corpus as plain data."""
    files = [
        {
            "url": file.url,
            "size": file.size,
            "checksum": f"{file.checksum.algorithm}:{file.checksum.digest}" if file.checksum else "unknown",
            "checksum_source": file.checksum.source if file.checksum else None,
        }
        for file in dataset.files
    ]
    return {
        "name": dataset.name,
        "title": dataset.title,
        "languages": list(dataset.languages),
        "licence": dataset.licence,
        "citation": dataset.citation,
        "conversion": dataset.conversion,
        "files": files,
    }


def _image_set_as_json(images: ImageSet) -> dict[str, Any]:
    """Returns what the catalogue holds about a set of images as plain data."""
    return {
        "name": images.name,
        "title": images.title,
        "licence": images.licence,
        "citation": images.citation,
        "files": [
            {"url": file.url, "checksum": f"md5:{file.checksum and file.checksum.digest}"} for file in images.files
        ],
    }


@contextmanager
def _download_bars() -> Iterator[DownloadProgress]:
    """Show one bar for each file on standard error, or lines if that is no terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    if not console.is_terminal:
        with activity("downloading", console) as tell:
            yield lambda file, received, total: tell(
                f"downloading {file}, {received:,}{_of(total)} bytes", received / total if total else None
            )
        return
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def show(file: str, received: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=received, total=total)

        yield show


def _of(total: int | None) -> str:
    return "" if total is None else f" of {total:,}"


def _print_outcome(dataset: Dataset, outcome: ObtainedSet) -> None:
    """Print what was written, the licence, and the lines that a recipe needs."""
    console = Console()
    table = Table(title=dataset.title, title_justify="left")
    for column in ("split", "documents", "sentences", "left out", "file"):
        table.add_column(column, justify="left" if column in ("split", "file") else "right", overflow="fold")
    for split, path in outcome.paths.items():
        written = outcome.record["splits"][split]
        left_out = sum(reason["count"] for reason in written["left_out"].values())
        counts = (f"{number:,}" for number in (written["documents"], written["sentences"], left_out))
        table.add_row(split, *counts, escape(str(path)))
    console.print(table)
    if not outcome.fresh:
        console.print("The corpus exists already; nothing was downloaded.")
    unknown = sum(entry["published_checksum"] == "unknown" for entry in outcome.record["files"].values())
    if unknown:
        console.print(f"checksum: unknown for {unknown} of {len(dataset.files)} files, recorded in downloads.json.")
    source, target = dataset.languages
    typer.echo(f"Licence: {dataset.licence}. Cite: {dataset.citation}.")
    typer.echo("In a recipe:\ndata:")
    for split, path in outcome.paths.items():
        typer.echo(f"  {split}: {{path: {json.dumps(str(path))}}}")
    typer.echo(f"  source_lang: {source}\n  target_lang: {target}")
