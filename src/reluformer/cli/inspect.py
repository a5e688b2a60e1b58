"""`reluformer inspect`: shows the training of a run, its memories, and what each word of a translation read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reluformer.cli.options import (
    AsJson,
    Beam,
    Device,
    LengthPenalty,
    Plugins,
    RunArgument,
    Settings,
    SplitterName,
    check_inspectable,
    decoding_changes,
    languages,
    open_run,
)
from reluformer.cli.text_files import STDIN, FormatChoice
from reluformer.errors import ArgumentError, DataError, nearest

if TYPE_CHECKING:
    from reluformer.training.config import TrainingRecipe
    from reluformer.translation.inspection import AttentionKind, ReadWindow, Word

_BARS = "▁▂▃▄▅▆▇█"
_ROWS = 12
_WIDE = 100
_SHOWN = ("loss", "perplexity")
_NO_SCORES = {"event", "step", "best", "tokens", "seconds", *_SHOWN}


_TELEMETRY_COLUMNS = {
    "read": "read_variance",
    "zeros": "zero_fraction",
    "H": "entropy",
    "sum": "row_sum",
    "dead": "dead",
    "cos": "anisotropy",
}
"""The heading of each column, and the field of `ReadTelemetry` that it shows for each head."""
_WORD_WIDTH = 16
_BOLD_SHARE, _DIM_SHARE = 0.3, 0.1


def inspect(
    run: RunArgument,
    document: Annotated[
        Path | None, typer.Argument(metavar="DOCUMENT", help="A text file, or - for standard input.")
    ] = None,
    attention: Annotated[
        str, typer.Option(help="Which attention to show: cross, or the self-attention of encoder or decoder.")
    ] = "cross",
    layer: Annotated[int | None, typer.Option(min=0, help="Show reads of this layer only, counted from 0.")] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Show reads of this head only, counted from 0.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many of the words that it read to show for each word.")] = 5,
    splitter: SplitterName = "simple",
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    settings: Settings = [],  # noqa: B006
    device: Device = "auto",
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Show the training history and the memories of a run, or what each word of a document read.

    A read is the sum of attention weights over layers, heads and the
    subwords of a word. Weights that are exactly zero are not shown.

    Example: reluformer inspect runs/demo/reluformer letter.txt --layer 1 --head 0
    """
    open_run(run).check()
    if document is None:
        if layer is not None or head is not None or attention != "cross":
            raise ArgumentError("--attention, --layer and --head choose what a translation read; give a DOCUMENT")
        open_run(run).check_recipe()
        found = read_history(run)
        if as_json:
            typer.echo(json.dumps(found.to_dict(), indent=2))
        else:
            print_history(found, Console())
        return
    kind = _attention_kind(attention)
    check_inspectable(run)
    source = None if str(document) == "-" else document
    skeleton = FormatChoice(None, splitter, languages(run)).parse(source)
    if not skeleton.sentences:
        raise DataError(f"{STDIN if source is None else source}: holds no sentence")
    changes = decoding_changes(settings, beam=beam, length_penalty=length_penalty)
    from reluformer.loading import load_translator
    from reluformer.translation.inspection import read_windows, windows_as_json

    translator = load_translator(run, device, int8=False, **changes)
    windows = read_windows(translator, skeleton.sentences, layer, head, kind)
    if as_json:
        typer.echo(json.dumps(windows_as_json(windows), indent=2, ensure_ascii=False))
    else:
        print_windows(windows, top, Console())


@dataclass(frozen=True)
class History:
    """What the directory of a run tells about its training."""

    run: str
    status: str
    reason: str | None
    """Why the training stopped, or what went wrong."""
    updates: int
    updates_asked: int
    tokens: float | None
    minutes: float | None
    parameters: int | None
    weights: str | None
    best_loss: float | None
    best_step: int | None
    training: list[dict[str, Any]]
    """The events `train` of the log."""
    validation: list[dict[str, Any]]
    """The events `valid` of the log."""
    telemetry: dict[str, Any] | None
    """The last event `telemetry` of the log."""
    damaged: list[str]
    """A sentence for each damaged line of the log, which is left out."""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return asdict(self)


def read_history(run: Path) -> History:
    """Returns the history of the run in a directory, finished or not. No model is loaded."""
    from reluformer.loading import recipe_class

    directory = open_run(run)
    recipe: TrainingRecipe = directory.recipe(recipe_class(directory.recipe_values()))
    status = directory.status
    result = status.get("result") or {}
    events = directory.log.events()
    training, validation, telemetry = (
        [event for event in events if event["event"] == kind] for kind in ("train", "valid", "telemetry")
    )
    last = training[-1] if training else {}
    best = min((event for event in validation if event["loss"] is not None), key=lambda e: e["loss"], default={})
    seconds = result.get("seconds", last.get("seconds"))
    return History(
        run=str(run),
        status=status.get("status", "not started"),
        reason=status.get("message") or status.get("reason"),
        updates=max((event["step"] for event in events), default=0),
        updates_asked=recipe.training.updates,
        tokens=result.get("tokens", last.get("total_tokens")),
        minutes=None if seconds is None else round(seconds / 60, 3),
        parameters=result.get("parameters"),
        weights=result.get("weights"),
        best_loss=best.get("loss"),
        best_step=best.get("step"),
        training=training,
        validation=validation,
        telemetry=telemetry[-1] if telemetry else None,
        damaged=directory.log.problems(),
    )


def print_history(history: History, console: Console) -> None:
    """Print the figures, learning curves, validations and memories of a run."""
    console.print(history.run, style="bold", highlight=False, markup=False)
    console.print(_run_table(history))
    for problem in history.damaged:
        console.print(f"warning: left out a line of the log: {problem}", highlight=False, markup=False)
    for name, events in (("training", history.training), ("validation", history.validation)):
        losses = [event["loss"] for event in events if event.get("loss") is not None]
        if len(losses) > 1:
            curve = sparkline(losses, max(10, min(60, console.width - 32)))
            console.print(Text.assemble(f"{name:<10} loss ", (curve, "cyan"), f" {losses[0]:.2f} → {losses[-1]:.2f}"))
    if history.validation:
        console.print()
        console.print(_validation_table(history.validation))
    if history.telemetry is None:
        console.print("The log has no telemetry of the memories yet; training.telemetry_every sets when it is written.")
        return
    console.print()
    console.print(_memory_table(history.telemetry, wide=console.width >= _WIDE))
    console.print(
        "resid, read: variance of the residual stream and of the read; zeros: share of weights that are exactly zero; "
        "H: entropy in nats; sum: sum of a row's weights; dead: rows without weights; cos: mean cosine of two values; "
        "top: weight on the top 0.2 % of 500 slots or more. Bold: mean over heads.",
        style="dim",
        highlight=False,
    )


def _run_table(history: History) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    status = history.status if history.reason is None else f"{history.status} ({history.reason})"
    table.add_row("status", Text(status))
    table.add_row("updates", f"{history.updates:,} of {history.updates_asked:,}")
    if history.tokens is not None and history.minutes is not None:
        speed = history.tokens / max(60 * history.minutes, 1e-9)
        table.add_row("target tokens", f"{history.tokens:,.0f} in {history.minutes:,.1f} min ({speed:,.0f}/s)")
    if history.parameters is not None:
        table.add_row("model", f"{history.parameters:,} parameters, weights: {history.weights}")
    if history.best_loss is not None:
        table.add_row("best loss", f"{history.best_loss:.4f} at update {history.best_step:,}")
    return table


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw a curve of bars. If there are more values than `width`, groups of them are averaged."""
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)


def _validation_table(events: Sequence[dict[str, Any]]) -> Table:
    """Show about a dozen validations, evenly spaced, always with the best and the last."""
    losses = [event["loss"] for event in events if event["loss"] is not None]
    best = min(losses, default=None)
    step = max(1, -(-len(events) // _ROWS))
    scores = [name for name in events[-1] if name not in _NO_SCORES]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("update", *_SHOWN, *scores, ""):
        table.add_column(name, justify="right" if name else "left")
    for place, event in enumerate(events):
        is_best = best is not None and event["loss"] == best
        if (len(events) - 1 - place) % step == 0 or is_best:
            figures = [_fixed(event.get(name), 4 if name == "loss" else 2) for name in (*_SHOWN, *scores)]
            table.add_row(f"{event['step']:,}", *figures, "best" if is_best else "", style="bold" if is_best else None)
    return table


def _memory_table(event: dict[str, Any], wide: bool) -> Table:
    """Show one line for each memory, and below it one for each head."""
    reads: dict[str, dict[str, Any]] = event["reads"]
    columns = dict(_TELEMETRY_COLUMNS)
    if any(read["top_mass"] for read in reads.values()):
        columns["top"] = "top_mass"
    title = f"memories at update {event['step']:,}"
    padding = (0, 1, 0, 0) if wide else 0
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=padding)
    table.add_column("memory", no_wrap=True)
    if wide:
        table.add_column("rule", no_wrap=True)
    for name in ("slots", "resid", *columns):
        table.add_column(name, justify="right", no_wrap=True)
    for name, read in reads.items():
        heads = {column: read[key] or [] for column, key in columns.items()}
        means = [_cell(column, _mean(values)) for column, values in heads.items()]
        rule = [read["rule"]] if wide else []
        table.add_row(name, *rule, number(read["slots"]), number(read["residual_variance"]), *means, style="bold")
        if len(read["read_variance"]) > 1:
            for head in range(len(read["read_variance"])):
                cells = [_cell(column, values[head] if values else None) for column, values in heads.items()]
                table.add_row(f"  head {head}", *("" for _ in rule), "", "", *cells)
    return table


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _fixed(value: float | None, places: int) -> str:
    return "-" if value is None else f"{value:,.{places}f}"


def _cell(column: str, value: float | None) -> str:
    if value is not None and column in ("zeros", "dead", "top"):
        return f"{value:.1%}" if value < 0.9995 else "100%"
    return _fixed(value, 2) if column in ("H", "cos") else number(value)


def number(value: float | None) -> str:
    """Format a number with three significant digits, and None as a dash."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _attention_kind(name: str) -> AttentionKind:
    from reluformer.translation.inspection import ATTENTION_KINDS

    for kind in ATTENTION_KINDS:
        if kind == name:
            return kind
    raise ArgumentError(f"--attention {name}: {nearest(name, ATTENTION_KINDS)}")


def print_windows(windows: Sequence[ReadWindow], top: int, console: Console) -> None:
    """Print each sentence, its translation, and what each word that reads read most."""
    from reluformer.translation.inspection import DOCUMENT_END, SENTENCE_END, zero_fraction

    for number, window in enumerate(windows, 1):
        if len(windows) > 1:
            console.rule(f"window {number} of {len(windows)}")
        for sentence in dict.fromkeys(word.sentence for word in window.source):
            _print_sentence(window, sentence, top, console)
    console.print(
        f"{zero_fraction(windows):.1%} of the weights are exactly zero. Shares are parts of all that a word read; "
        f"[n] marks a word of another sentence, {SENTENCE_END} and {DOCUMENT_END} the ends of sentences and window.",
        style="dim",
        highlight=False,
        markup=False,
    )


def _print_sentence(window: ReadWindow, sentence: int, top: int, console: Console) -> None:
    def text(words: Sequence[Word]) -> str:
        return " ".join(word.text for word in words if word.sentence == sentence and not word.is_mark)

    console.print(Text.assemble((f"{sentence + 1:>3}  ", "dim"), (text(window.source), "bold")))
    console.print(Text.assemble("     ", (text(window.target), "bold cyan")))
    table = Table(box=box.SIMPLE, show_header=False, show_edge=False, pad_edge=False, padding=(0, 1))
    table.add_column(justify="right", style="cyan", width=_WORD_WIDTH)
    table.add_column(no_wrap=True)
    width = max(20, console.width - _WORD_WIDTH - 4)
    for word, reads in zip(window.readers, window.reads, strict=True):
        if word.sentence == sentence and not word.is_mark:
            table.add_row(Text(word.text), most_read(window, word, reads, top, width))
    console.print(table)


def most_read(window: ReadWindow, word: Word, reads: dict[int, float], top: int, width: int) -> Text:
    """List the words that were read most with their shares, in lines of at most `width` characters."""
    total = sum(reads.values())
    if not total:
        return Text("nothing", style="dim")
    ranked = sorted(reads.items(), key=lambda read: -read[1])
    items = [_item(window.readable[place], word.sentence, weight / total) for place, weight in ranked[:top]]
    if len(ranked) > top:
        items.append(Text(f"+{len(ranked) - top}", style="dim"))
    lines = [items[0]]
    for item in items[1:]:
        if lines[-1].cell_len + 2 + item.cell_len <= width:
            lines[-1] = lines[-1] + "  " + item
        else:
            lines.append(item)
    return Text("\n").join(lines)


def _item(read: Word, sentence: int, share: float) -> Text:
    elsewhere = "" if read.sentence == sentence else f" [{read.sentence + 1}]"
    style = "bold" if share >= _BOLD_SHARE else "dim" if share < _DIM_SHARE else ""
    return Text(f"{read.text}{elsewhere} {share:.0%}", style=style)
