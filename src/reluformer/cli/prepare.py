"""`reluformer prepare`: a corpus becomes a vocabulary and segments, ready for training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from reluformer.cli.options import AsJson, Overrides, Plugins, RecipeFile


def prepare(
    config: RecipeFile,
    to: Annotated[
        Path | None, typer.Option(help="Where to write. Default: runs/NAME/data.", show_default=False)
    ] = None,
    overrides: Overrides = [],  # noqa: B006
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Train the tokenizer, cut documents into segments, and say what was kept and what was not.

    Example: reluformer prepare configs/multi30k.yaml --set data.tokenizer.vocab_size=6000
    """
    from reluformer.config import load_yaml
    from reluformer.translation import prepare as preparation
    from reluformer.translation.recipe import Recipe

    recipe = load_yaml(Recipe, config, overrides)
    console = Console(stderr=as_json)
    with console.status("preparing") as status:
        summary = preparation.prepare(
            recipe.data,
            to or default_run(config) / "data",
            progress=lambda what, pairs: status.update(f"{what}: {pairs:,} sentence pairs"),
        )
    if as_json:
        typer.echo(json.dumps(summary.to_json(), indent=2))
        return
    console.print(summary.table())
    skipped = summary.skipped_table()
    if skipped is not None:
        console.print(skipped)


def default_run(config: Path) -> Path:
    """The directory of a recipe's run, named like the recipe."""
    return Path("runs") / config.stem
