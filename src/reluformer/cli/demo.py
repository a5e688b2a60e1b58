"""`reluformer demo`: train ReLU and softmax side by side on the embedded corpus, translate, report."""

from __future__ import annotations

import json
import time
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from reluformer.cli.options import AsJson, Overrides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reluformer.training.run import RunDirectory
    from reluformer.translation.demo import Outcome


def demo(
    out: Annotated[Path, typer.Option(help="Where the runs, results.json and report.html go.")] = Path("runs/demo"),
    overrides: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Train a ReLUFormer and a Transformer of the same size, translate unseen documents, write a report.

    Needs no download. Started again, it goes on where it was. What --set changes
    holds for both, but the Transformer keeps softmax and has no regulariser.

    Example: reluformer demo --set training.updates=500
    """
    from reluformer.config import load_yaml
    from reluformer.translation import demo as systems
    from reluformer.translation import demo_report as report
    from reluformer.translation.embedded import document_from_id
    from reluformer.translation.prepared import PreparedCorpus
    from reluformer.translation.recipe import Recipe

    console = Console(stderr=as_json)
    started = time.perf_counter()
    with resources.as_file(resources.files("reluformer.translation") / "demo.yaml") as recipe_file:
        recipe = load_yaml(Recipe, recipe_file, overrides)
        with console.status("generating the corpus"):
            summary = systems.prepare_corpus(recipe, out)
        console.print(summary.table())
        with Live(console=console, refresh_per_second=2, transient=not console.is_terminal) as live:
            systems.train_all(recipe_file, out, lambda runs: live.update(_progress(runs, recipe)), overrides)
    with console.status("translating unseen documents"):
        outcomes = list(systems.evaluate_all(out))
    seconds = time.perf_counter() - started
    results = {"systems": {o.system.name: o.to_dict() for o in outcomes}, "seconds": round(seconds, 1)}
    (out / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    documents = [document_from_id(d.id) for d in PreparedCorpus(out / "data").documents("test")]
    train = summary.splits["train"]
    corpus = f"{train.documents:,} generated English-German documents ({train.target_tokens:,} target tokens)"
    report.write(out / "report.html", outcomes, documents, seconds, corpus)
    if as_json:
        typer.echo(json.dumps(results, indent=2))
        return
    for table in _tables(outcomes):
        console.print(table)
    done = f"{seconds / 60:.1f} minutes. Open {out / 'report.html'}; figures are in {out / 'results.json'}."
    console.print(done, markup=False)


def _progress(runs: dict[str, RunDirectory], recipe: Any) -> Table:
    """Where both trainings are."""
    table = Table(title="Training side by side", title_justify="left")
    for column in ("system", "update", "loss", "validation", "tokens/s", "minutes"):
        table.add_column(column, justify="left" if column == "system" else "right")
    for name, run in runs.items():
        steps, validations = run.log.events("train"), run.log.events("valid")
        last: dict[str, Any] = steps[-1] if steps else {}
        table.add_row(
            name,
            f"{last.get('step', 0):,} / {recipe.training.updates:,}",
            f"{last['loss']:.3f}" if last else "",
            f"{validations[-1]['loss']:.3f}" if validations else "",
            f"{last['tokens_per_second']:,.0f}" if last else "",
            f"{last['seconds'] / 60:.1f}" if last else "",
        )
    return table


def _tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """The scores, and d-BLEU by length of the document."""
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
    ):
        scores.add_row(label, *("–" if f[key] is None else f"{f[key]:.1f}" for f in figures.values()))
    for rows in zip(*(outcome.scores.buckets for outcome in outcomes), strict=True):
        cells = ["–" if bucket.d_bleu is None else f"{bucket.d_bleu:.1f}" for bucket in rows]
        lengths.add_row(f"{rows[0].label} ({rows[0].documents} documents)", *cells)
    return [scores, lengths]
