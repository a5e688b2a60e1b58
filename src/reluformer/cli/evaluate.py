"""`reluformer evaluate` and `reluformer score`: scores a run on a split of its data, or translations in files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reluformer import __version__
from reluformer.cli.options import (
    AsJson,
    Beam,
    Device,
    Int8,
    LengthPenalty,
    Plugins,
    RunArgument,
    Settings,
    check_model,
    decoding_changes,
    find_run,
    open_run,
    task_of,
    write_scores,
)
from reluformer.errors import ArgumentError, DataError, StorageError
from reluformer.training.progress import activity, counted

if TYPE_CHECKING:
    from reluformer.language.scoring import LanguageScores
    from reluformer.translation.embedded import DiscourseScores
    from reluformer.translation.scoring import EvaluatedRun, Scores
    from reluformer.translation.significance import Comparison


class EvaluatedSplit(StrEnum):
    """The splits that a model may be scored on."""

    valid = "valid"
    test = "test"


def evaluate(
    run: RunArgument,
    split: Annotated[EvaluatedSplit, typer.Option(help="Split of the run's corpus.")] = EvaluatedSplit.test,
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
    int8: Int8 = False,
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Translate a split of the run's corpus and score it: BLEU, d-BLEU, chrF, by length.

    For the embedded corpus it also counts the right pronouns and terms, which
    depend on earlier sentences. It writes the scores to RUN/evaluation/SPLIT.json
    and the translations to SPLIT.jsonl; --limit and --sentence-level become part of
    the names. If the run is read-only, the scores are only printed; --out FILE keeps them.
    For a language model it prints perplexity and loss by position; --limit then counts rows.
    For an image model it prints the accuracy; --limit then counts images.

    Example: reluformer evaluate runs/demo/reluformer --against runs/demo/transformer
    """
    if out is not None and (out.is_dir() or out.suffix == ".jsonl"):
        raise ArgumentError(f"--out {out}: give the name of a JSON file; the translations go beside it as .jsonl")
    task = task_of(run)
    if task != "translation":
        given = (against, sentence_level, settings, beam is not None, length_penalty is not None, int8)
        if any(given) or device not in ("auto", "cpu"):
            kind = "a language model" if task == "language" else "an image model"
            raise ArgumentError(f"{run}: {kind} has no translations; give only --split, --limit and --out")
        (_evaluate_language if task == "language" else _evaluate_images)(run, split.value, limit, out, as_json)
        return
    against = None if against is None else find_run(against)
    open_run(run).check_recipe()
    for path in (run, against):
        if path is not None:
            check_model(path)
    from reluformer.loading import load_translator
    from reluformer.translation import scoring
    from reluformer.translation.significance import compare_systems

    documents, embedded = scoring.read_split(run, split.value, limit)
    changes = decoding_changes(settings, beam=beam, length_penalty=length_penalty)
    if sentence_level:
        changes["window_tokens"] = "sentence"
    systems = []
    for path in (run, against):
        if path is not None:
            translator = load_translator(path, device, int8=int8, **changes)
            total = sum(len(document.src) for document in documents)
            with counted(f"translating with {escape(path.resolve().name)}", "sentences", total) as report:
                systems.append(scoring.evaluate(path, translator, documents, embedded=embedded, report=report))
    references = [document.tgt or () for document in documents]
    with activity("comparing by a paired bootstrap"):
        comparisons = compare_systems([(str(system.run), system.hypotheses) for system in systems], references)
    content = {
        "reluformer": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "split": str(split),
        "limit": limit,
        "sentence_level": sentence_level,
        "note": open_run(run).weights_note,
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
        scoring.write_evaluation(place, content, documents, systems[0].hypotheses)
    except StorageError as error:
        if out is not None:
            raise
        typer.echo(f"warning: the scores are printed only, --out FILE writes them elsewhere: {error}", err=True)
        return
    written = f"Wrote {place} and {place.with_suffix('.jsonl').name} beside it."
    Console(stderr=as_json).print(written, highlight=False, markup=False)


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
    """Returns counts and accuracies by the label that the table shows."""
    by_distance = {f"  antecedent {distance} back": tally for distance, tally in discourse.pronoun_by_distance.items()}
    tallies = {"pronouns": discourse.pronoun, **by_distance, "terms": discourse.term}
    return {label: tally.to_dict() for label, tally in tallies.items()}


def _evaluate_language(run: Path, split: str, limit: int | None, out: Path | None, as_json: bool) -> None:
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
    figures = {"scores": [score.to_dict() for score in scores]}
    _show_and_write(run, split, limit, out, as_json, figures, _table_of_lengths(scores))


def _evaluate_images(run: Path, split: str, limit: int | None, out: Path | None, as_json: bool) -> None:
    """Print the accuracy of a run on one split; the arguments are those of `_evaluate_language`, for images."""
    check_model(run)
    from reluformer.images import scoring

    with activity(f"classifying the {split} images"):
        scores = scoring.evaluate(scoring.load(run), scoring.images_of(run, split, limit))
    shown = (
        f"accuracy {scores.accuracy:.2%} of {scores.images:,} images, cross-entropy {scores.loss:.4f}, "
        f"{scores.zero_fraction:.1%} of the attention weights exactly zero; {scores.seconds:.1f} s"
    )
    _show_and_write(run, split, limit, out, as_json, scores.to_dict(), shown)


def _show_and_write(
    run: Path,
    split: str,
    limit: int | None,
    out: Path | None,
    as_json: bool,
    figures: Mapping[str, Any],
    shown: str | Table,
) -> None:
    """Print the figures of a model that does not translate, as JSON or as they are `shown`, and write them."""
    content = {
        "reluformer": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "split": split,
        "limit": limit,
        "note": open_run(run).weights_note,
        **figures,
    }
    if as_json:
        typer.echo(json.dumps(content, indent=2))
    else:
        Console(highlight=False).print(shown)
    write_scores(run / "evaluation" / f"{split}.json" if out is None else out, content, required=out is not None)


def _prepared(run: Path) -> Path:
    """Returns the directory of the prepared corpus, which is that of the run unless it was trained elsewhere."""
    path = run / "data"
    if not path.is_dir():
        raise StorageError(f"{run}: has no prepared corpus in {path}; copy it there, or train the run again")
    return path


def _table_of_lengths(scores: list[LanguageScores]) -> Table:
    """Show the loss of each length of rows, overall and by position."""
    table = Table(title="loss in nats for each token", title_justify="left")
    table.add_column("")
    for score in scores:
        table.add_column(f"{score.context:,} tokens", justify="right")
    table.add_row("perplexity", *(f"{score.perplexity:.2f}" for score in scores))
    table.add_row("loss", *(f"{score.loss:.4f}" for score in scores))
    table.add_row("weights exactly zero", *(f"{score.zero_fraction:.1%}" for score in scores))
    if any(score.skipped_share is not None for score in scores):
        shares = (score.skipped_share for score in scores)
        table.add_row("pairs skipped by the gate", *("" if share is None else f"{share:.1%}" for share in shares))
    table.add_row("rows", *(f"{score.rows:,}" for score in scores))
    for bucket in scores[-1].by_position:
        cells = (score.by_position.get(bucket) for score in scores)
        table.add_row(f"  after {bucket}", *("" if cell is None else f"{cell:.4f}" for cell in cells))
    return table


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
    from reluformer.translation.significance import compare_systems

    truth = scoring.read_references(references)
    paths = [path for path in (hypotheses, against) if path is not None]
    systems = [(str(path), scoring.read_hypotheses(path, like=truth)) for path in paths]
    scores = []
    for name, documents in systems:
        try:
            scores.append((name, scoring.score(documents, truth)))
        except DataError as error:
            raise DataError(f"{name}, compared with {references}: {error}") from None
    with activity("comparing by a paired bootstrap"):
        comparisons = compare_systems(systems, truth)
    if as_json:
        typer.echo(json.dumps(_scores_as_json(references, scores, comparisons), indent=2))
        return
    console = Console()
    for name, figures in scores:
        console.print(name, style="bold", highlight=False, markup=False)
        console.print(figures.table())
    _print_comparisons(console, comparisons, len(truth))


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
