"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _load_plugins(paths: list[Path]) -> list[Path]:
    for path in paths:
        from reluformer import rules

        rules.load_plugin(path)
    return paths


Plugins = Annotated[
    list[Path],
    typer.Option(
        "--plugin", callback=_load_plugins, is_eager=True, metavar="FILE", help="Python file with rules of your own."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print figures as JSON.")]
RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="A YAML file, as in configs/.")]
Overrides = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change one value, as in training.lr=3e-4; repeatable.")
]
