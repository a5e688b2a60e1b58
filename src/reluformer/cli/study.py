"""`reluformer study`: the paper's claims as experiments. So far: the variance of a read, claims C5 and C6."""

from __future__ import annotations

import base64
import html
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from reluformer.cli.options import AsJson, Plugins

if TYPE_CHECKING:
    from reluformer.study.variance import VariancePoint

SLOTS = (16, 64, 256, 1024, 4096)
CORRELATIONS = (0.0, 0.05)
EXPERIMENTS = ("variance",)
RULES = ("relu_plain", "relu", "relu_seqlen", "softmax")


def study(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help=f"One of: {', '.join(EXPERIMENTS)}.")],
    out: Annotated[Path, typer.Option(help="Where to write results.json, variance.png and report.html.")] = Path(
        "runs/study"
    ),
    rule: Annotated[list[str], typer.Option(help="A rule to measure; repeat for more.")] = list(RULES),  # noqa: B006
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Show how the variance of a read grows with its slots, rule by rule.

    Example: reluformer study variance --plugin my_rules.py --rule relu --rule my_rule
    """
    from reluformer.errors import UnknownNameError, nearest
    from reluformer.study import variance

    if experiment not in EXPERIMENTS:
        raise UnknownNameError(f"unknown experiment '{experiment}'; {nearest(experiment, EXPERIMENTS)}")

    started = time.perf_counter()
    points = list(variance.sweep(rule, SLOTS, CORRELATIONS))
    out.mkdir(parents=True, exist_ok=True)
    variance.draw(points, out / "variance.png")
    results = {
        "experiment": "variance of a read, claim C5",
        "points": [point.to_dict() for point in points],
        "seconds": round(time.perf_counter() - started, 2),
    }
    (out / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    (out / "report.html").write_text(_report(points, out / "variance.png"), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(results, indent=2))
        return
    console = Console()
    console.print(_table(points))
    console.print(
        "ρ is the correlation between two values. Plain ReLU grows with n; divided by sqrt(n/2) it stays at one\n"
        "while the values are uncorrelated (claims C5 and C6).\n"
        f"Wrote {out / 'report.html'}, {out / 'variance.png'} and {out / 'results.json'}."
    )


def _cells(points: list[VariancePoint], between: str) -> list[tuple[str, str, list[str]]]:
    """A row a rule and correlation: measured and theory for each number of slots."""
    rows = []
    for name, correlation in dict.fromkeys((point.rule, point.correlation) for point in points):
        chosen = [p for p in points if (p.rule, p.correlation) == (name, correlation)]
        cells = [_number(p.measured) + ("" if p.theory is None else between + _number(p.theory)) for p in chosen]
        rows.append((name, f"{correlation:g}", cells))
    return rows


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _table(points: list[VariancePoint]) -> Table:
    table = Table(title="Variance of a read: measured, and what theory says below it", title_justify="left")
    table.add_column("rule", style="bold")
    table.add_column("ρ")
    for slots in SLOTS:
        table.add_column(f"n = {slots}", justify="right")
    previous = None
    for name, correlation, cells in _cells(points, "\n[dim]"):
        if previous not in (None, name):
            table.add_section()
        table.add_row(name if name != previous else "", correlation, *cells)
        previous = name
    return table


def _report(points: list[VariancePoint], picture: Path) -> str:
    encoded = base64.b64encode(picture.read_bytes()).decode()
    head = "".join(f"<th>n = {slots}</th>" for slots in SLOTS)
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{correlation}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        for name, correlation, cells in _cells(points, "<br><small>")
    )
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Variance of a read</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
img {{ width: 100% }} table {{ border-collapse: collapse }}
td, th {{ padding: .25rem .75rem; text-align: right; border-bottom: 1px solid #ddd }}
td:first-child, th:first-child {{ text-align: left }}
</style>
<h1>The variance of a read</h1>
<p>Scores and values are drawn from N(0, 1). Plain ReLU reads with variance n/2; divided by √(n/2) it stays at one
while the values are uncorrelated. With correlated values it grows again, as theory says.</p>
<img alt="Variance of the read against the number of slots" src="data:image/png;base64,{encoded}">
<table><tr><th>rule</th><th>ρ</th>{head}</tr>{rows}</table>
<p>ρ is the correlation between two values. Each cell: measured, and below it what theory says.</p></html>
"""
