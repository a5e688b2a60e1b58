"""`reluformer train`: a recipe becomes a model, interruptible at any moment."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from reluformer.cli.options import AsJson, Overrides, Plugins, RecipeFile
from reluformer.cli.prepare import default_run

if TYPE_CHECKING:
    from reluformer.models.encoder_decoder import ReLUFormer
    from reluformer.training import TrainingResult
    from reluformer.translation.recipe import Recipe


def train(
    config: RecipeFile,
    run: Annotated[
        Path | None, typer.Option(help="Directory of the run. Default: runs/NAME.", show_default=False)
    ] = None,
    overrides: Overrides = [],  # noqa: B006
    init_from: Annotated[
        Path | None, typer.Option(help="Start from the model of this run, e.g. a sentence-level one.")
    ] = None,
    prepared: Annotated[Path | None, typer.Option(help="Use data prepared here, e.g. by another run.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew instead of going on with the run.")] = False,
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Train the model of a recipe, or go on where the run was stopped.

    Example: reluformer train configs/multi30k.yaml --set training.max_minutes=10
    """
    from reluformer.config import load_yaml
    from reluformer.training import train as run_training
    from reluformer.training.progress import SilentProgress, for_terminal
    from reluformer.translation.recipe import Recipe

    recipe = load_yaml(Recipe, config, overrides)
    directory = run or default_run(config)
    data = prepared or directory / "data"
    result = run_training(
        recipe,
        directory,
        init_from=init_from,
        resume=not fresh,
        progress=SilentProgress() if as_json else for_terminal(),
        evaluate=_validation_bleu(recipe, data),
        prepared=data,
    )
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
    else:
        Console().print(_summary(result), markup=False)
    if result.status == "interrupted":
        raise typer.Exit(130)


def _validation_bleu(recipe: Recipe, data: Path) -> Callable[[ReLUFormer], Mapping[str, float]] | None:
    """BLEU of the first validation documents, where the recipe asks for it."""
    count = recipe.training.validate_bleu
    if not count or recipe.data.valid is None:
        return None

    def bleu(model: ReLUFormer) -> Mapping[str, float]:
        from itertools import islice

        from reluformer.translation.prepared import PreparedCorpus
        from reluformer.translation.scoring import score
        from reluformer.translation.translator import Translator

        corpus = PreparedCorpus(data)
        documents = list(islice(corpus.documents("valid"), count))
        decoding = recipe.decoding_as_trained.replace(beam=1, n_best=1)
        translator = Translator(model, corpus.tokenizer, decoding)
        hypotheses = translator.translate_documents([document.src for document in documents])
        scores = score(hypotheses, [document.tgt or () for document in documents], length_borders=())
        return {"bleu": scores.bleu.value}

    return bleu


def _summary(result: TrainingResult) -> str:
    minutes = result.seconds / 60
    best = "" if result.best_loss is None else f", best validation loss {result.best_loss:.3f} at {result.best_step:,}"
    sentence = (
        f"{result.status} after {result.step:,} updates ({result.reason}): {result.tokens:,.0f} target tokens in "
        f"{minutes:.1f} minutes, {result.tokens_per_second:,.0f} tokens/s{best}."
    )
    if result.status == "finished":
        sentence += f"\nNext: reluformer evaluate {result.directory}"
    return sentence
