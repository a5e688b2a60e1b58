"""`reluformer generate`: a language model continues a text."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from reluformer.cli.options import AsJson, RunArgument, check_model


def generate(
    run: RunArgument,
    prompt: Annotated[str, typer.Argument(help="The beginning of the text.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens of the continuation.")] = 200,
    temperature: Annotated[
        float, typer.Option(min=0, help="Below 1 more likely text; 0 always the most likely token.")
    ] = 0.8,
    top_p: Annotated[float, typer.Option(help="Draw from the most likely tokens with this share, up to 1.")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same text.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Continue a text with a language model, and print it while it is drawn.

    The text ends where the model ends the document, or after --tokens.

    Example: reluformer generate runs/language "Mr President," --temperature 0.7
    """
    check_model(run)
    from reluformer.loading import load_generator

    pieces = load_generator(run).stream(prompt, tokens=tokens, temperature=temperature, top_p=top_p, seed=seed)
    if as_json:
        typer.echo(json.dumps({"prompt": prompt, "continuation": "".join(pieces)}, indent=2, ensure_ascii=False))
        return
    typer.echo(prompt, nl=False)
    for piece in pieces:
        typer.echo(piece, nl=False)
    typer.echo()
