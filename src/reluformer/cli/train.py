"""`reluformer train` and `reluformer demo`: trains the model of a recipe, or the models of the demo."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from reluformer.cli.options import AsJson, Overrides, Plugins, RecipeFile, default_run, require_extra
from reluformer.training.progress import activity, time_left

if TYPE_CHECKING:
    from reluformer.loading import AnyRecipe
    from reluformer.training.fit import TrainingResult
    from reluformer.training.run import RunDirectory
    from reluformer.translation.demo import DemoOutcome
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
    prepared: Annotated[Path | None, typer.Option(help="Directory of a prepared corpus, e.g. of another run.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start again instead of resuming the run.")] = False,
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Train the model of a recipe, or resume its run from the last checkpoint.

    RECIPE may also be the directory of a run, even one that was moved. Its training
    then resumes, and no longer needs the files of its corpus.

    Example: reluformer train configs/multi30k.yaml --set training.max_minutes=10
    """
    from reluformer.config import load_yaml
    from reluformer.loading import recipe_class
    from reluformer.loading import train as run_training
    from reluformer.training.progress import WarningProgress, for_terminal
    from reluformer.training.run import RECIPE, RunDirectory

    if RunDirectory(config).exists:
        run, config = run or config, config / RECIPE
    recipe: AnyRecipe = load_yaml(recipe_class(config), config, overrides)
    if recipe.training.tensorboard:
        require_extra("tensorboard", "training.tensorboard=true")
    directory = run or default_run(config)
    result = run_training(
        recipe,
        directory,
        init_from=init_from,
        resume=not fresh,
        progress=WarningProgress() if as_json else for_terminal(),
        prepared=prepared,
    )
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
    else:
        Console().print(_summary(result, recipe), markup=False)
    if result.status == "interrupted":
        raise typer.Exit(130)


def _summary(result: TrainingResult, recipe: AnyRecipe) -> str:
    """Say in a sentence how the training ended, and which command comes next."""
    from reluformer.images.recipe import ImageRecipe

    minutes, targets = result.seconds / 60, "images" if isinstance(recipe, ImageRecipe) else "target tokens"
    best = "" if result.best_loss is None else f", best validation loss {result.best_loss:.3f} at {result.best_step:,}"
    sentence = (
        f"{result.status} after {result.step:,} updates ({result.reason}): {result.tokens:,.0f} {targets} in "
        f"{minutes:.1f} minutes, {result.tokens_per_second:,.0f} {targets.split()[-1]}/s{best}."
    )
    if result.status == "finished":
        sentence += f"\nNext: reluformer {_next_command(result.directory, recipe)}"
    return sentence


def _next_command(directory: str, recipe: AnyRecipe) -> str:
    """Returns the command that makes sense after a training: an evaluation, if there is something to evaluate on."""
    from reluformer.images.recipe import ImageRecipe
    from reluformer.language.recipe import LanguageRecipe

    if isinstance(recipe, ImageRecipe) or recipe.data.test is not None:
        return f"evaluate {directory}"
    if recipe.data.valid is not None:
        return f"evaluate {directory} --split valid"
    return f"generate {directory}" if isinstance(recipe, LanguageRecipe) else f"translate {directory} FILE"


def demo(
    out: Annotated[Path, typer.Option(help="Directory for the runs, results.json and report.html.")] = Path(
        "runs/demo"
    ),
    paper: Annotated[
        bool, typer.Option("--paper", help="Also train the paper's own rule with its regulariser; twice the time.")
    ] = False,
    overrides: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Train a ReLUFormer and a Transformer of the same size, translate unseen documents, write a report.

    The ReLUFormer's attention uses the rule relu_exp. The demo needs no download. The same
    command resumes it. --set changes all models, but the Transformer keeps softmax.

    Example: reluformer demo --set training.updates=500
    """
    from importlib import resources

    from reluformer.config import load_yaml
    from reluformer.translation import demo as systems
    from reluformer.translation.corpus import PreparedCorpus
    from reluformer.translation.embedded import document_from_id
    from reluformer.translation.recipe import Recipe

    require_extra("plots", "the report of the demo")
    chosen = (*systems.SYSTEMS, systems.PAPER) if paper else systems.SYSTEMS
    console = Console(stderr=as_json)
    started = time.perf_counter()
    with resources.as_file(resources.files("reluformer.translation") / "demo.yaml") as recipe_file:
        recipe = load_yaml(Recipe, recipe_file, overrides)
        with activity("generating the corpus"):
            summary = systems.prepare_corpus(recipe, out)
        console.print(summary.table())
        if (skipped := summary.report()) is not None:
            console.print(skipped, highlight=False, markup=False)
        with _training_display(console, recipe) as show:
            systems.train_all(recipe_file, out, show, overrides, chosen)
    with activity("translating unseen documents") as tell:
        outcomes = []
        for outcome in systems.evaluate_all(out, chosen):
            outcomes.append(outcome)
            tell(f"translating unseen documents, {len(outcomes)} of {len(chosen)} systems done")
    seconds = time.perf_counter() - started
    results = {"systems": {o.system.name: o.to_dict() for o in outcomes}, "seconds": round(seconds, 1)}
    (out / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    documents = [document_from_id(d.id) for d in PreparedCorpus(out / "data").documents("test")]
    train = summary.splits["train"]
    corpus = f"{train.documents:,} generated English-German documents ({train.target_tokens:,} target tokens)"
    systems.write_report(out / "report.html", outcomes, documents, seconds, corpus)
    if as_json:
        typer.echo(json.dumps(results, indent=2))
        return
    for table in _score_tables(outcomes):
        console.print(table)
    done = f"{seconds / 60:.1f} minutes. Open {out / 'report.html'}; figures are in {out / 'results.json'}."
    console.print(done, markup=False)


@contextmanager
def _training_display(console: Console, recipe: Recipe) -> Iterator[Callable[[dict[str, RunDirectory]], None]]:
    """Show trainings side by side: a table that changes in a terminal; elsewhere lines, and the table at the end."""
    if console.is_terminal:
        from rich.live import Live

        with Live(console=console, refresh_per_second=2) as live:
            yield lambda runs: live.update(_training_table(runs, recipe))
        return
    seen: dict[str, RunDirectory] = {}
    with activity("training", Console(stderr=True)) as tell:

        def show(runs: dict[str, RunDirectory]) -> None:
            seen.update(runs)
            tell(f"training {_training_line(runs, recipe)}")

        yield show
    if seen:
        console.print(_training_table(seen, recipe))


def _training_line(runs: dict[str, RunDirectory], recipe: Recipe) -> str:
    """Returns the last logged update of each training and the time left on one line."""
    states = {name: _state(run, recipe) for name, run in runs.items()}
    return ", ".join(f"{name} {state.step:,}/{recipe.training.updates:,}{state.left}" for name, state in states.items())


@dataclass(frozen=True)
class _LoggedState:
    """The last logged update of a training, and the time left in words."""

    last: dict[str, Any]
    validation: float | None
    step: int
    left: str


def _state(run: RunDirectory, recipe: Recipe) -> _LoggedState:
    steps, validations = run.log.events("train"), run.log.events("valid")
    last: dict[str, Any] = steps[-1] if steps else {}
    step = int(last.get("step", 0))
    left = "" if run.has_model else time_left(last.get("seconds", 0.0), min(1.0, step / recipe.training.updates))
    return _LoggedState(last, validations[-1]["loss"] if validations else None, step, left)


def _training_table(runs: dict[str, RunDirectory], recipe: Recipe) -> Table:
    """Show the last logged update of each training."""
    table = Table(title="Training side by side", title_justify="left")
    for column in ("system", "update", "loss", "valid", "tokens/s", "minutes", "left"):
        table.add_column(column, justify="left" if column == "system" else "right")
    for name, run in runs.items():
        state = _state(run, recipe)
        last = state.last
        table.add_row(
            name,
            f"{state.step:,} / {recipe.training.updates:,}",
            f"{last['loss']:.3f}" if last else "",
            "" if state.validation is None else f"{state.validation:.3f}",
            f"{last['tokens_per_second']:,.0f}" if last else "",
            f"{last['seconds'] / 60:.1f}" if last else "",
            state.left.removeprefix(", about ").removesuffix(" left"),
        )
    return table


def _score_tables(outcomes: Sequence[DemoOutcome]) -> list[Table]:
    """Show the scores of all systems, and their d-BLEU by length of the document."""
    figures = {outcome.system.title: outcome.to_dict() for outcome in outcomes}
    scores = Table(title="Unseen documents", title_justify="left")
    lengths = Table(title="d-BLEU by words of the document", title_justify="left")
    for table in (scores, lengths):
        table.add_column("")
        for title in figures:
            table.add_column(title, justify="right")
    for key, label in (
        ("d_bleu", "d-BLEU"),
        ("bleu", "BLEU"),
        ("chrf", "chrF"),
        ("pronoun_accuracy_far", "pronouns at distance 5 or more, %"),
        ("pronoun_accuracy_far_without_context", "  sentence by sentence, %"),
        ("term_accuracy", "terms kept, %"),
        ("zero_fraction", "exact zeros in attention, %"),
        ("zeros_long", "  in the encoder at 1,024 tokens, %"),
        ("faster_than_softmax", "  its training reads, times fused softmax"),
    ):
        scores.add_row(label, *("–" if f[key] is None else f"{f[key]:.1f}" for f in figures.values()))
    for rows in zip(*(outcome.scores.buckets for outcome in outcomes), strict=True):
        cells = ["–" if bucket.d_bleu is None else f"{bucket.d_bleu:.1f}" for bucket in rows]
        lengths.add_row(f"{rows[0].label} ({rows[0].documents} documents)", *cells)
    return [scores, lengths]
