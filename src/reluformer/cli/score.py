"""`reluformer score`: BLEU, d-BLEU and chrF of translations in files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from reluformer.cli.options import AsJson, Plugins
from reluformer.errors import DataError

if TYPE_CHECKING:
    from reluformer.translation.scoring import Documents, Scores
    from reluformer.translation.significance import Comparison


def score(
    hypotheses: Annotated[
        Path, typer.Argument(metavar="HYPOTHESES", help='Text or JSONL with "hyp" or "tgt".', show_default=False)
    ],
    references: Annotated[
        Path, typer.Argument(metavar="REFERENCES", help='Text or JSONL with "tgt".', show_default=False)
    ],
    against: Annotated[
        Path | None, typer.Option(metavar="OTHER", help="Hypotheses of a baseline: paired bootstrap.")
    ] = None,
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Score translations with sacreBLEU, overall and by document length, with signatures.

    Text has one sentence a line and blank lines between documents; without
    blank lines each sentence is a document. JSONL has one document a line.

    Example: reluformer score hypotheses.jsonl references.jsonl --against baseline.jsonl
    """
    from reluformer.translation import scoring

    truth = scoring.read_references(references)
    paths = [path for path in (hypotheses, against) if path is not None]
    systems = [(str(path), scoring.read_hypotheses(path, like=truth)) for path in paths]
    scores = []
    for name, documents in systems:
        try:
            scores.append((name, scoring.score(documents, truth)))
        except DataError as error:
            raise DataError(f"{name}, compared with {references}: {error}") from None
    comparisons = compare_systems(systems, truth)
    if as_json:
        typer.echo(json.dumps(_as_data(references, scores, comparisons), indent=2))
        return
    console = Console()
    for name, figures in scores:
        console.print(name, style="bold", highlight=False, markup=False)
        console.print(figures.table())
    print_comparisons(console, comparisons, len(truth))


def compare_systems(systems: Sequence[tuple[str, Documents]], references: Documents) -> list[Comparison]:
    """The first system against the second, if there is one, by sentences and, of several documents, by documents."""
    from reluformer.translation.scoring import MetricName
    from reluformer.translation.significance import compare

    if len(systems) < 2:
        return []
    (system, ours), (baseline, theirs) = systems
    metrics: list[MetricName] = ["bleu", "d_bleu"] if len(references) > 1 else ["bleu"]
    return [compare(theirs, ours, references, metric=metric, names=(baseline, system)) for metric in metrics]


def print_comparisons(console: Console, comparisons: list[Comparison], documents: int) -> None:
    """Tables, and a word on what could not be compared."""
    for comparison in comparisons:
        console.print(comparison.table())
    if comparisons and documents < 2:
        console.print("d-BLEU is not compared: a single document cannot be resampled.")


def _as_data(references: Path, scores: list[tuple[str, Scores]], comparisons: list[Comparison]) -> dict[str, Any]:
    (hypotheses, ours), *rest = scores
    return {
        "hypotheses": hypotheses,
        "references": str(references),
        "scores": ours.to_dict(),
        "against": [{"hypotheses": name, "scores": theirs.to_dict()} for name, theirs in rest],
        "comparisons": [comparison.to_dict() for comparison in comparisons],
    }
