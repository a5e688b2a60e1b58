"""`reluformer inspect`: how a run went, what its memories do, and what a translation read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from reluformer.cli import history, models, reading, texts
from reluformer.cli.options import (
    AsJson,
    Beam,
    Device,
    LengthPenalty,
    Plugins,
    Run,
    Settings,
    SplitterName,
    decoding_changes,
)
from reluformer.errors import ArgumentError, DataError


def inspect(
    run: Run,
    document: Annotated[
        Path | None, typer.Argument(metavar="DOCUMENT", help="A text file, or - for standard input.")
    ] = None,
    layer: Annotated[int | None, typer.Option(min=0, help="Reads of this decoder layer only, from 0.")] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Reads of this head only, from 0.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Source words to show for each output word.")] = 5,
    splitter: SplitterName = "simple",
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    settings: Settings = [],  # noqa: B006
    device: Device = "auto",
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Show the history of a run and its memories; with a document, what each output word read.

    Reads are the weights of cross attention, added up over layers, heads and
    the subwords of a word. Weights that are exactly zero are not shown.

    Example: reluformer inspect runs/demo/reluformer letter.txt --layer 1 --head 0
    """
    models.check_run(run)
    if document is None:
        if layer is not None or head is not None:
            raise ArgumentError("--layer and --head choose what a translation read; give a DOCUMENT")
        models.check_recipe(run)
        found = history.read(run)
        if as_json:
            typer.echo(json.dumps(found.to_dict(), indent=2))
        else:
            history.show(found, Console())
        return
    models.check_inspectable(run)
    origin = None if str(document) == "-" else document
    skeleton = texts.Layouts(None, splitter, models.languages(run)).read(origin)
    if not skeleton.sentences:
        raise DataError(f"{texts.STDIN if origin is None else origin}: holds no sentence")
    changes = decoding_changes(settings, beam=beam, length_penalty=length_penalty)
    translator = models.open_translator(run, device, **changes)
    windows = reading.read_windows(translator, skeleton.sentences, layer, head)
    if as_json:
        typer.echo(json.dumps(reading.to_dict(windows), indent=2, ensure_ascii=False))
    else:
        reading.show(windows, top, Console())
