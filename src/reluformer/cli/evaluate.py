"""`reluformer evaluate` and `reluformer score`: scores the translations of a run, or of files."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reluformer import __version__
from reluformer.cli.options import AsJson, Beam, Device, LengthPenalty, Plugins, RunArgument, Settings, decoding_changes
from reluformer.cli.text_files import sentence_bar
from reluformer.errors import ArgumentError, DataError, StorageError
from reluformer.training.run import RunDirectory, find_run

if TYPE_CHECKING:
    from reluformer.translation.document import Document
    from reluformer.translation.embedded import DiscourseScores
    from reluformer.translation.scoring import Documents, Scores
    from reluformer.translation.significance import Comparison


class EvaluatedSplit(StrEnum):
    """The splits that a model may be scored on."""

    valid = "valid"
    test = "test"


def evaluate(
    run: RunArgument,
    split: Annotated[EvaluatedSplit, typer.Option(help="Split of the run's recipe.")] = EvaluatedSplit.test,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Score only the first documents.", show_default=False)
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="OTHER_RUN", help="Baseline, compared on the same documents by a paired bootstrap."),
    ] = None,
    sentence_level: Annotated[
        bool, typer.Option("--sentence-level", help="Translate each sentence without its context.")
    ] = False,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    settings: Settings = [],  # noqa: B006
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON file for the scores, instead of one in RUN/evaluation."),
    ] = None,
    device: Device = "auto",
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Translate a split of the run's corpus and score it: BLEU, d-BLEU, chrF, by length.

    For the embedded corpus it also counts the right pronouns and terms, which
    depend on earlier sentences. It writes the scores to RUN/evaluation/SPLIT.json
    and the translations to SPLIT.jsonl; --limit and --sentence-level add to the names.
    Where the run is read-only, it only prints the scores, or writes them to --out FILE.

    Example: reluformer evaluate runs/demo/reluformer --against runs/demo/transformer
    """
    if out is not None and (out.is_dir() or out.suffix == ".jsonl"):
        raise ArgumentError(f"--out {out}: give the name of a JSON file; the translations go beside it as .jsonl")
    against = None if against is None else find_run(against)
    RunDirectory(run).check_recipe()
    for path in (run, against):
        if path is not None:
            RunDirectory(path).check_model()
    documents, embedded = _documents(run, split, limit)
    changes = decoding_changes(settings, beam=beam, length_penalty=length_penalty)
    if sentence_level:
        changes["window_tokens"] = "sentence"
    systems = [
        _evaluate_run(path, documents, embedded, device, changes, escape(path.resolve().name))
        for path in (run, against)
        if path is not None
    ]
    references = [document.tgt or () for document in documents]
    comparisons = _compare_systems([(str(system.run), system.hypotheses) for system in systems], references)
    content = {
        "reluformer": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "split": str(split),
        "limit": limit,
        "sentence_level": sentence_level,
        **systems[0].to_dict(),
        "against": [system.to_dict() for system in systems[1:]],
        "comparisons": [comparison.to_dict() for comparison in comparisons],
    }
    name = f"{split}{'-sentences' if sentence_level else ''}{f'-first-{limit}' if limit else ''}"
    if as_json:
        typer.echo(json.dumps(content, indent=2))
    else:
        _print_evaluation(systems, comparisons, len(documents))
    place = run / "evaluation" / f"{name}.json" if out is None else out
    try:
        _write_evaluation(place, content, documents, systems[0].hypotheses)
    except StorageError as error:
        if out is not None:
            raise
        typer.echo(f"warning: the scores are printed only, --out FILE writes them elsewhere: {error}", err=True)
        return
    written = f"Wrote {place} and {place.with_suffix('.jsonl').name} beside it."
    Console(stderr=as_json).print(written, highlight=False, markup=False)


@dataclass(frozen=True)
class EvaluatedRun:
    """The translations of a split by one run, and their scores."""

    run: Path
    hypotheses: list[list[str]]
    scores: Scores
    discourse: DiscourseScores | None
    decoding: dict[str, Any]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "run": str(self.run),
            "decoding": self.decoding,
            "seconds": round(self.seconds, 2),
            "scores": self.scores.to_dict(),
            "discourse": None if self.discourse is None else self.discourse.to_dict(),
        }


def _documents(run: Path, split: EvaluatedSplit, limit: int | None) -> tuple[list[Document], bool]:
    """Return the documents of a split, and whether they come from the embedded corpus."""
    from reluformer.translation.corpus import read_documents
    from reluformer.translation.recipe import Recipe

    data = RunDirectory(run).recipe(Recipe).data
    source = data.test if split == EvaluatedSplit.test else data.valid
    if source is None:
        others = [name for name in ("test", "valid") if getattr(data, name) is not None]
        hint = f"use --split {others[0]}" if others else "add it to the recipe, and to recipe.yaml of the run"
        raise ArgumentError(f"{run}: its recipe names no {split} split; {hint}")
    languages = (data.source_lang, data.target_lang)
    stream = read_documents(source, limits=data.limits, languages=languages, split=split.value)
    documents = list(islice(stream, limit))
    if not documents:
        raise DataError(f"{run}: the {split} split of its recipe holds no documents")
    return documents, source.embedded is not None


def _evaluate_run(
    run: Path, documents: list[Document], embedded: bool, device: str, changes: dict[str, Any], what: str
) -> EvaluatedRun:
    """Translate the documents with one run and score the translations."""
    from reluformer.loading import load
    from reluformer.translation import scoring
    from reluformer.translation.embedded import document_from_id, score_discourse

    translator = load(run, device, **changes)
    started = time.perf_counter()
    with sentence_bar(what, sum(len(document.src) for document in documents)) as report:
        hypotheses = translator.translate_documents([document.src for document in documents], report)
    seconds = time.perf_counter() - started
    scores = scoring.score(hypotheses, [document.tgt or () for document in documents])
    discourse = None
    if embedded:
        discourse = score_discourse([document_from_id(document.id) for document in documents], hypotheses)
    return EvaluatedRun(run, hypotheses, scores, discourse, translator.config.model_dump(mode="json"), seconds)


def _write_evaluation(
    place: Path, content: dict[str, Any], documents: list[Document], hypotheses: list[list[str]]
) -> None:
    """Write the translations beside `place`, then the scores."""
    from reluformer.files import write_text

    lines = [
        json.dumps({"id": document.id, "src": document.src, "tgt": document.tgt, "hyp": found}, ensure_ascii=False)
        for document, found in zip(documents, hypotheses, strict=True)
    ]
    write_text(place.with_suffix(".jsonl"), "".join(line + "\n" for line in lines))
    write_text(place, json.dumps(content, indent=2) + "\n")


def _print_evaluation(systems: list[EvaluatedRun], comparisons: list[Comparison], documents: int) -> None:
    """Print the scores of each run and the comparisons."""
    console = Console()
    for system in systems:
        speed = system.scores.sentences / max(system.seconds, 1e-9)
        console.print(f"{system.run}  {system.seconds:.1f} s, {speed:.1f} sentences/s", style="bold", markup=False)
        console.print(system.scores.table())
    if any(system.discourse is not None for system in systems):
        console.print(_discourse_table(systems))
    _print_comparisons(console, comparisons, documents)


def _discourse_table(systems: list[EvaluatedRun]) -> Table:
    """Show the shares of right pronouns and terms, with one column for each run."""
    table = Table(title="what crosses sentences, right", title_justify="left")
    table.add_column("")
    table.add_column("cases", justify="right")
    for system in systems:
        table.add_column(escape(system.run.resolve().name), justify="right")
    columns = [_tallies(system.discourse) for system in systems if system.discourse is not None]
    for label, first in columns[0].items():
        if first["count"]:
            shares = [column[label]["accuracy"] for column in columns]
            table.add_row(label, str(first["count"]), *(f"{share:.1%}" for share in shares))
    return table


def _tallies(discourse: DiscourseScores) -> dict[str, dict[str, Any]]:
    """Return counts and accuracies by the label that the table shows."""
    by_distance = {f"  antecedent {distance} back": tally for distance, tally in discourse.pronoun_by_distance.items()}
    tallies = {"pronouns": discourse.pronoun, **by_distance, "terms": discourse.term}
    return {label: tally.to_dict() for label, tally in tallies.items()}


def score(
    hypotheses: Annotated[
        Path, typer.Argument(metavar="HYPOTHESES", help='Text or JSONL with "hyp" or "tgt".', show_default=False)
    ],
    references: Annotated[
        Path, typer.Argument(metavar="REFERENCES", help='Text or JSONL with "tgt".', show_default=False)
    ],
    against: Annotated[
        Path | None, typer.Option(metavar="OTHER", help="Hypotheses of a baseline, compared by a paired bootstrap.")
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
    comparisons = _compare_systems(systems, truth)
    if as_json:
        typer.echo(json.dumps(_scores_as_json(references, scores, comparisons), indent=2))
        return
    console = Console()
    for name, figures in scores:
        console.print(name, style="bold", highlight=False, markup=False)
        console.print(figures.table())
    _print_comparisons(console, comparisons, len(truth))


def _compare_systems(systems: Sequence[tuple[str, Documents]], references: Documents) -> list[Comparison]:
    """Compare the first system with the second, if there is one.

    Sentences are always resampled, and documents if there are several.
    """
    from reluformer.translation.scoring import MetricName
    from reluformer.translation.significance import compare

    if len(systems) < 2:
        return []
    (system, ours), (baseline, theirs) = systems
    metrics: list[MetricName] = ["bleu", "d_bleu"] if len(references) > 1 else ["bleu"]
    return [compare(theirs, ours, references, metric=metric, names=(baseline, system)) for metric in metrics]


def _print_comparisons(console: Console, comparisons: list[Comparison], documents: int) -> None:
    """Print a table for each comparison, and say what could not be compared."""
    for comparison in comparisons:
        console.print(comparison.table())
    if comparisons and documents < 2:
        console.print("d-BLEU is not compared: a single document cannot be resampled.")


def _scores_as_json(
    references: Path, scores: list[tuple[str, Scores]], comparisons: list[Comparison]
) -> dict[str, Any]:
    (hypotheses, ours), *rest = scores
    return {
        "hypotheses": hypotheses,
        "references": str(references),
        "scores": ours.to_dict(),
        "against": [{"hypotheses": name, "scores": theirs.to_dict()} for name, theirs in rest],
        "comparisons": [comparison.to_dict() for comparison in comparisons],
    }
