"""`reluformer generate`, and `evaluate` for language models: a text continued, perplexity and loss by position."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from reluformer import __version__
from reluformer.cli.options import AsJson, RunArgument, check_model, open_run, write_scores
from reluformer.errors import StorageError
from reluformer.training.progress import activity

if TYPE_CHECKING:
    from reluformer.language.scoring import LanguageScores


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


def evaluate_language(run: Path, split: str, limit: int | None, out: Path | None, as_json: bool) -> None:
    """Print the perplexity and the loss by position of rows as long as in training, and 2 and 4 times as long.

    Args:
        run: The run.
        split: "valid" or "test".
        limit: At most so many rows; None for all.
        out: Where the scores are written. Default: RUN/evaluation/SPLIT.json.
        as_json: Whether to print them as JSON.
    """
    check_model(run)
    from reluformer import language
    from reluformer.errors import DataError
    from reluformer.language.corpus import LanguageCorpus
    from reluformer.language.recipe import LanguageRecipe
    from reluformer.language.scoring import evaluate

    recipe = open_run(run).recipe(LanguageRecipe)
    model, corpus = language.load(run).model, LanguageCorpus(_prepared(run))
    scores = []
    with activity(f"reading the {split} split"):
        for times in (1, 2, 4):
            try:
                scores.append(evaluate(model, corpus, split, times * recipe.data.context, limit))
            except DataError:
                if times == 1:
                    raise
    content = {
        "reluformer": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "split": split,
        "limit": limit,
        "note": open_run(run).weights_note,
        "scores": [score.to_dict() for score in scores],
    }
    if as_json:
        typer.echo(json.dumps(content, indent=2))
    else:
        Console().print(_table(scores))
    write_scores(run / "evaluation" / f"{split}.json" if out is None else out, content, required=out is not None)


def _prepared(run: Path) -> Path:
    """Return the directory of the prepared corpus, which is that of the run unless it was trained elsewhere."""
    path = run / "data"
    if not path.is_dir():
        raise StorageError(f"{run}: has no prepared corpus in {path}; copy it there, or train the run again")
    return path


def _table(scores: list[LanguageScores]) -> Table:
    """Show the loss of each length of rows, overall and by position."""
    table = Table(title="loss in nats for each token", title_justify="left")
    table.add_column("")
    for score in scores:
        table.add_column(f"{score.context:,} tokens", justify="right")
    table.add_row("perplexity", *(f"{score.perplexity:.2f}" for score in scores))
    table.add_row("loss", *(f"{score.loss:.4f}" for score in scores))
    table.add_row("weights exactly zero", *(f"{score.zero_fraction:.1%}" for score in scores))
    table.add_row("rows", *(f"{score.rows:,}" for score in scores))
    for bucket in scores[-1].by_position:
        cells = (score.by_position.get(bucket) for score in scores)
        table.add_row(f"  after {bucket}", *("" if cell is None else f"{cell:.4f}" for cell in cells))
    return table
