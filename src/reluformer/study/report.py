"""The report: for each claim the paper's figures beside ours, and the verdict with its reasons.

report.html stands alone; report.md shows the same pictures from figures/, where each has its
SVG, its PNG and the JSON it was drawn from. results.json holds every verdict and mean.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reluformer import files
from reluformer.scoring import compare, read_hypotheses
from reluformer.study import figures, measures
from reluformer.study.experiment import Experiment, Figure
from reluformer.study.folder import StudyFolder
from reluformer.study.gathered import Gathered
from reluformer.study.page import FONTS, inline_svg, page
from reluformer.study.plan import Plan
from reluformer.study.verdicts import Verdict, interval, judge


@dataclass
class Written:
    """What a report says."""

    verdicts: list[Verdict]
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {"verdicts": [verdict.to_dict() for verdict in self.verdicts], "notes": self.notes}


@dataclass(frozen=True)
class Drawn:
    """A figure of the report."""

    figure: Figure
    svg: str


@dataclass(frozen=True)
class Section:
    """One experiment in the report, as plain text and rows; HTML and Markdown are made from it."""

    experiment: Experiment
    verdicts: Sequence[Verdict]
    tables: Sequence[tuple[str, list[str], list[list[str]]]]
    drawn: Sequence[Drawn]
    bootstrap: Sequence[str]


def write(plan: Plan, folder: StudyFolder) -> Written:
    """Draw everything from the results that are there."""
    gathered = Gathered(plan, folder)
    sections = [_section(one, plan, gathered, folder) for one in plan.experiments]
    written = Written([verdict for section in sections for verdict in section.verdicts], _notes(plan, folder))
    files.write_json(folder.path / "results.json", {"scale": plan.scale, **written.to_dict(), "tables": _json(sections)})
    files.write_text(folder.path / "report.html", _html(plan, sections, written))
    files.write_text(folder.path / "report.md", _markdown(plan, sections, written))
    return written


def _notes(plan: Plan, folder: StudyFolder) -> list[str]:
    done = sum(folder.result(address) is not None for address in plan.runs)
    notes = [f"{done} of {len(plan.runs)} runs are done."]
    for version, count in folder.foreign().items():
        notes.append(f"{count} results were written by version {version} of the study and are left out.")
    return notes


def _section(one: Experiment, plan: Plan, gathered: Gathered, folder: StudyFolder) -> Section:
    verdicts = [judge(one, j, gathered, plan.scale) for j in one.verdicts if plan.scale in j.scales]
    tables = [table for part in one.parts if (table := _table(one, part, gathered)) is not None]
    drawn = [found for figure in one.figures if (found := _draw(figure, one.name, gathered, folder)) is not None]
    bootstrap = [line for part in one.parts for line in _bootstrap(one, part, gathered)]
    return Section(one, verdicts, tables, drawn, bootstrap)


# ------------------------------------------------------------------ numbers


def _table(one: Experiment, part: str, gathered: Gathered) -> tuple[str, list[str], list[list[str]]] | None:
    """A row for each place of the grid: mean and interval of the metrics that the experiment draws or judges."""
    places = gathered.places(one.name, part)
    if not places:
        return None
    if one.parts[part].kind == "speed":
        return _speed_table(one, part, gathered)
    metrics = [m for m in _metrics(one, part) if any(gathered.values(one.name, part, place, m) for place in places)]
    axes = list(places[0])
    head = [*axes, "seeds", *(_label(metric) for metric in metrics), "learning rate"]
    rows = []
    for place in places:
        results = gathered.at(one.name, part, place)
        rates = {f"{r['lr']:g}" for found in results.values() for r in found.values() if r.get("lr") is not None}
        cells = [_mean_cell(gathered.values(one.name, part, place, metric), metric) for metric in metrics]
        rows.append([*place.values(), str(len(results)), *cells, ", ".join(sorted(rates)) or "–"])
    return one.parts[part].title, head, rows


def _metrics(one: Experiment, part: str) -> list[str]:
    wanted = [c.metric for j in one.verdicts for c in (*j.conditions, *j.requires) if c.part == part]
    for figure in one.figures:
        if figure.part == part and figure.kind in ("points", "lines"):
            wanted += [figure.metric] if isinstance(figure.metric, str) else figure.metric
    return list(dict.fromkeys(wanted))


def _label(metric: str) -> str:
    _, at, rest = metric.partition("@")
    return measures.measure(metric).label + (f" at {rest}" if at else "")


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


def _speed_table(one: Experiment, part: str, gathered: Gathered) -> tuple[str, list[str], list[list[str]]]:
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
    return one.parts[part].title, head, rows


def _bootstrap(one: Experiment, part: str, gathered: Gathered) -> list[str]:
    """Paired bootstrap of every system against the first place, seed by seed, where translations are kept."""
    places = gathered.places(one.name, part)
    lines = []
    for place in places[1:]:
        found = []
        for cell, _ in gathered.cells(one.name, part):
            if cell.labels == place:
                p_value = _p_value(gathered, one.name, part, places[0], cell.runs[-1].address, cell.seed)
                found += [] if p_value is None else [f"seed {cell.seed}: p = {p_value:.3f}"]
        if found:
            lines.append(f"{' '.join(place.values())} against {' '.join(places[0].values())}: {', '.join(found)}")
    return lines


def _p_value(
    gathered: Gathered, name: str, part: str, base: Mapping[str, str], address: str, seed: int
) -> float | None:
    folder = gathered.folder
    others = [c for c, _ in gathered.cells(name, part) if c.labels == base and c.seed == seed]
    if not others:
        return None
    paths = [folder.directory(a) / "translations.jsonl" for a in (address, others[0].runs[-1].address)]
    references = folder.directory(address) / "references.jsonl"
    if not all(path.is_file() for path in (*paths, references)):
        return None
    ours, theirs, target = (read_hypotheses(path) for path in (*paths, references))
    return compare(ours, theirs, target, metric="bleu").p_value


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


# ------------------------------------------------------------------ pages

_LEAD = {
    "quick": "Smoke test: one seed and minutes of training on a generated corpus. It shows that every experiment runs from end to end, "
    "and says nothing about the claims.",
    "small": "Real data at the size of two cores. What that means for each claim stands with it.",
    "paper": "The paper's own datasets and sizes.",
}


def _html(plan: Plan, sections: Sequence[Section], written: Written) -> str:
    rows = "".join(
        f"<tr><td>{v.claim}</td><td class=l><a href='#{v.experiment}'>{v.experiment}</a></td>"
        f"<td class=l>{html.escape(_claim(sections, v).says)}</td>"
        f"<td class=l>{html.escape(_claim(sections, v).paper)}</td><td class=l>{_badge(v)}</td></tr>"
        for v in sorted(written.verdicts, key=lambda v: int(v.claim.lstrip("C")))
    )
    head = "<tr><th>claim</th><th>experiment</th><th>what it says</th><th>the paper's figures</th><th>verdict</th></tr>"
    body = (
        f"<h1>ReLU and softmax: the paper's claims, rerun</h1><p class=lead>{_LEAD[plan.scale]}</p>"
        f"<p>{html.escape(' '.join(written.notes))} The rules for the verdicts were fixed before the runs (docs/protocol.md).</p>"
        f"<table class=text>{head}{rows}</table>{''.join(map(_html_section, sections))}"
    )
    return page(f"reluformer study, {plan.scale}", body)


def _claim(sections: Sequence[Section], verdict: Verdict) -> Any:
    return next(s.experiment.claims[verdict.claim] for s in sections if s.experiment.name == verdict.experiment)


def _badge(verdict: Verdict) -> str:
    kind = {"reproduced": "reproduced", "not reproduced": "not", "inconclusive": "inconclusive"}[verdict.verdict]
    return f"<span class='verdict {'inconclusive' if verdict.smoke else kind}'>{verdict.word}</span>"


def _html_section(section: Section) -> str:
    one = section.experiment
    parts = [f"<section id={one.name}><h2>{html.escape(one.title)}</h2><p>{html.escape(one.question)}</p>"]
    for verdict in section.verdicts:
        reasons = "".join(f"<p class=why>{html.escape(reason)}</p>" for reason in verdict.reasons)
        claim = one.claims[verdict.claim]
        parts.append(f"<h3>{verdict.claim} {_badge(verdict)}</h3><p>{html.escape(claim.says)} <small>Paper: {html.escape(claim.paper)}</small></p>{reasons}")
    parts += [
        f"<figure><h3>{html.escape(d.figure.title)}</h3>{d.svg}<figcaption>{html.escape(d.figure.caption)}</figcaption></figure>"
        for d in section.drawn
    ]
    for title, head, rows in section.tables:
        cells = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
        headings = "".join(f"<th>{html.escape(h)}</th>" for h in head)
        parts.append(f"<h3>{html.escape(title)}</h3><div class=wide><table><tr>{headings}</tr>{cells}</table></div>")
    if section.bootstrap:
        parts.append("<h3>Paired bootstrap of test BLEU</h3>" + "".join(f"<p class=why>{html.escape(b)}</p>" for b in section.bootstrap))
    parts.append(f"<p><b>Scale.</b> {html.escape(one.scale_note)}</p></section>")
    return "".join(parts)


def _markdown(plan: Plan, sections: Sequence[Section], written: Written) -> str:
    lines = ["# ReLU and softmax: the paper's claims, rerun", "", _LEAD[plan.scale], "", " ".join(written.notes), ""]
    lines += _rows(["claim", "experiment", "the paper's figures", "verdict"], [[v.claim, v.experiment, _claim(sections, v).paper, v.word] for v in written.verdicts])
    for section in sections:
        one = section.experiment
        lines += ["", f"## {one.title} (`{one.name}`)", "", one.question.strip(), ""]
        for verdict in section.verdicts:
            lines += [f"**{verdict.claim}: {verdict.word}.** {one.claims[verdict.claim].says}", ""]
            lines += [f"* {reason}" for reason in verdict.reasons] + [""]
        for drawn in section.drawn:
            lines += [f"![{drawn.figure.title}](figures/{drawn.figure.name}.png)", "", f"*{drawn.figure.title}. {drawn.figure.caption}*", ""]
        for title, head, rows in section.tables:
            lines += [title, "", *_rows(head, rows), ""]
        lines += [f"* {line}" for line in section.bootstrap]
        lines += ["", one.scale_note.strip()]
    return "\n".join(lines) + "\n"


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    table = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]


def _json(sections: Sequence[Section]) -> dict[str, Any]:
    return {
        section.experiment.name: [{"title": title, "head": head, "rows": rows} for title, head, rows in section.tables]
        for section in sections
    }
