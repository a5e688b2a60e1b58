"""How a run went, from its status and its log; no model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_BARS = "▁▂▃▄▅▆▇█"
_ROWS = 12
_WIDE = 100
_SHOWN = ("loss", "perplexity")
_NO_SCORES = {"event", "step", "best", "tokens", "seconds", *_SHOWN}


_COLUMNS = {
    "read": "read_variance",
    "zeros": "zero_fraction",
    "H": "entropy",
    "sum": "row_sum",
    "dead": "dead",
    "cos": "anisotropy",
}
"""Heading, and its field of `ReadTelemetry`; every one has a figure a head."""


@dataclass(frozen=True)
class History:
    """What a run's directory tells about its training."""

    run: str
    status: str
    reason: str | None
    """Why it stopped, or what went wrong."""
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def read(run: Path) -> History:
    """The history of the run in a directory, finished or not."""
    from reluformer.training.run import RunDirectory

    directory = RunDirectory(run)
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
        updates_asked=directory.recipe().training.updates,
        tokens=result.get("tokens", last.get("total_tokens")),
        minutes=None if seconds is None else round(seconds / 60, 3),
        parameters=result.get("parameters"),
        weights=result.get("weights"),
        best_loss=best.get("loss"),
        best_step=best.get("step"),
        training=training,
        validation=validation,
        telemetry=telemetry[-1] if telemetry else None,
    )


def show(history: History, console: Console) -> None:
    """The history in a terminal: figures, curves, validations, memories."""
    console.print(history.run, style="bold", highlight=False, markup=False)
    console.print(_figures(history))
    for name, events in (("training", history.training), ("validation", history.validation)):
        losses = [event["loss"] for event in events if event.get("loss") is not None]
        if len(losses) > 1:
            curve = sparkline(losses, max(10, min(60, console.width - 32)))
            console.print(Text.assemble(f"{name:<10} loss ", (curve, "cyan"), f" {losses[0]:.2f} → {losses[-1]:.2f}"))
    if history.validation:
        console.print()
        console.print(_validations(history.validation))
    if history.telemetry is None:
        console.print("No look at the memories in the log yet; training.telemetry_every decides when.")
        return
    console.print()
    console.print(_memories(history.telemetry, wide=console.width >= _WIDE))
    console.print(
        "resid, read: variance of the residual stream and of what is read; zeros: weights that are exactly zero; "
        "H: entropy, nats; sum: of a row's weights; dead: rows without any; cos: mean cosine of two values; "
        "top: weight on the top 0.2 % of 500 slots or more. Bold: mean over heads.",
        style="dim",
        highlight=False,
    )


def _figures(history: History) -> Table:
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
    """A curve of bars; more values than `width` are averaged in groups."""
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)


def _validations(events: Sequence[dict[str, Any]]) -> Table:
    """At most a dozen of them, evenly spaced, the best and the last always."""
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


def _memories(event: dict[str, Any], wide: bool) -> Table:
    """A line a memory, and one a head below it."""
    reads: dict[str, dict[str, Any]] = event["reads"]
    columns = dict(_COLUMNS)
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
    """Three digits that matter; - where there is no number."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
