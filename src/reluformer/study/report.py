"""The report: for each claim the paper's figures beside ours, and the verdict with its reasons.

report.html stands alone; report.md shows the same pictures from figures/, where each has its
SVG, its PNG and the JSON it was drawn from. results.json holds every verdict and mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reluformer import files
from reluformer.report_page import FONTS, inline_svg
from reluformer.study import bootstrap, figures, measures
from reluformer.study.experiment import Experiment, Figure
from reluformer.study.folder import StudyFolder, seconds_of
from reluformer.study.gathered import Gathered
from reluformer.study.intervals import interval
from reluformer.study.plan import Plan
from reluformer.study.sections import Drawn, Section, Table, html_page, in_order, markdown_page
from reluformer.study.verdicts import Verdict, judge


@dataclass
class Written:
    """What a report says."""

    verdicts: list[Verdict]
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {"verdicts": [verdict.to_dict() for verdict in self.verdicts], "notes": self.notes}


def write(plan: Plan, folder: StudyFolder) -> Written:
    """Draw everything from the results that are there."""
    gathered = Gathered(plan, folder)
    sections = in_order([_section(one, plan, gathered, folder) for one in plan.experiments])
    written = Written([verdict for section in sections for verdict in section.verdicts], _notes(plan, folder))
    tables = {section.experiment.name: [table._asdict() for table in section.tables] for section in sections}
    files.write_json(folder.path / "results.json", {"scale": plan.scale, **written.to_dict(), "tables": tables})
    files.write_text(folder.path / "report.html", html_page(plan.scale, sections, written.notes))
    files.write_text(folder.path / "report.md", markdown_page(plan.scale, sections, written.notes))
    return written


def _notes(plan: Plan, folder: StudyFolder) -> list[str]:
    done = [result for address in plan.runs if (result := folder.result(address)) is not None]
    minutes = sum(map(seconds_of, done)) / 60
    took = f"{minutes:,.0f} minutes" if minutes < 120 else f"{minutes / 60:,.1f} hours"
    notes = [f"{len(done)} of {len(plan.runs)} runs are done; together they took {took}."]
    for version, count in folder.foreign().items():
        were = "result was" if count == 1 else "results were"
        notes.append(f"{count} {were} written by version {version} of the study and left out.")
    return [*notes, *_corpora_that_differ(done)]


def _corpora_that_differ(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a corpus holds is no part of a run's address; runs on another one are not comparable."""
    seen: dict[tuple[str, str], set[str]] = {}
    for result in results:
        if result.get("data"):
            kind = (result["run"]["dataset"], json.dumps(result["run"].get("data", {}), sort_keys=True))
            seen.setdefault(kind, set()).add(json.dumps(result["data"], sort_keys=True))
    differing = sorted({name for (name, _), found in seen.items() if len(found) > 1})
    return [
        f"Careful: runs on {name} were made with corpora that differ, and are compared all the same."
        for name in differing
    ]


def _section(one: Experiment, plan: Plan, gathered: Gathered, folder: StudyFolder) -> Section:
    verdicts = [judge(one, j, gathered, plan.scale) for j in one.verdicts if plan.scale in j.scales]
    tables = [table for part in one.parts if (table := _table(one, part, gathered)) is not None]
    drawn = [found for figure in one.figures if (found := _draw(figure, one.name, gathered, folder)) is not None]
    paired = [line for part in one.parts for line in bootstrap.lines(one, part, gathered)]
    return Section(one, verdicts, tables, drawn, paired)


# ------------------------------------------------------------------ numbers


def _table(one: Experiment, part: str, gathered: Gathered) -> Table | None:
    """A row for each place of the grid: mean and interval of the metrics that the experiment draws or judges."""
    places = gathered.places(one.name, part)
    if not places:
        return None
    if one.parts[part].kind == "speed":
        return _speed_table(one, part, gathered)
    metrics = [m for m in _metrics(one, part) if any(gathered.values(one.name, part, place, m) for place in places)]
    axes = list(places[0])
    head = [*axes, "seeds", *(measures.label(metric) for metric in metrics), "learning rate"]
    rows = []
    for place in places:
        results = gathered.at(one.name, part, place)
        rates = {f"{r['lr']:g}" for found in results.values() for r in found.values() if r.get("lr") is not None}
        cells = [_mean_cell(gathered.values(one.name, part, place, metric), metric) for metric in metrics]
        rows.append([*place.values(), str(len(results)), *cells, ", ".join(sorted(rates)) or "–"])
    return Table(one.parts[part].title, head, rows)


def _metrics(one: Experiment, part: str) -> list[str]:
    wanted = [c.metric for j in one.verdicts for c in (*j.conditions, *j.requires) if c.part == part]
    for figure in one.figures:
        if figure.part == part and figure.kind in ("points", "lines"):
            wanted += [figure.metric] if isinstance(figure.metric, str) else figure.metric
    return list(dict.fromkeys(wanted))


def _mean_cell(values: Mapping[int, float], metric: str) -> str:
    finite = [value for value in values.values() if math.isfinite(value)]
    diverged = len(values) - len(finite)
    told = f" ({diverged} diverged)" if diverged else ""
    if not finite:
        return "diverged" if diverged else "–"
    digits = measures.measure(metric).digits
    found = interval(finite)
    half = f" ± {found.high - found.mean:.{digits}f}" if len(finite) > 1 else ""
    return f"{found.mean:.{digits}f}{half}{told}"


def _speed_table(one: Experiment, part: str, gathered: Gathered) -> Table:
    """Ratios to softmax by tier and length: training, translation, and megabytes of a training step."""
    seeds = [results["speed"] for _, results in gathered.cells(one.name, part)]
    places = list(seeds[0]["training"])
    rules = list(seeds[0]["training"][places[0]])
    rows = []
    for place in places:
        for rule in rules:
            ratios = [
                sum(s[what][place][rule]["ratio"] for s in seeds) / len(seeds) for what in ("training", "translation")
            ]
            speed = sum(s["training"][place][rule]["tokens_per_second"] for s in seeds) / len(seeds)
            memory = seeds[0]["memory"][place][rule]
            rows.append([place, rule, f"{speed:,.0f}", *(f"{ratio:.2f}" for ratio in ratios), f"{memory:,.0f}"])
    head = ["tier, tokens", "rule", "target tokens/s", "training, × softmax", "translation, × softmax", "MB of a step"]
    return Table(one.parts[part].title, head, rows)


def _draw(figure: Figure, experiment: str, gathered: Gathered, folder: StudyFolder) -> Drawn | None:
    """The figure as SVG and PNG beside the JSON it is drawn from."""
    data = figures.figure_data(figure, experiment, gathered)
    if data is None:
        return None
    folder.figures.mkdir(parents=True, exist_ok=True)
    path = folder.figures / figure.name
    files.write_text(path.with_suffix(".json"), json.dumps(data, indent=1) + "\n")
    from matplotlib import pyplot as plt

    with plt.rc_context(FONTS):
        drawn = figures.draw(data)
        svg = inline_svg(drawn)
        files.write_text(path.with_suffix(".svg"), svg)
        drawn.savefig(path.with_suffix(".png"), dpi=130)
        plt.close(drawn)
    return Drawn(figure, svg)
