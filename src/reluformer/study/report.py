"""The report: for each claim the paper's figures beside ours, and the verdict with its reasons.

report.html stands alone; report.md shows the same pictures from figures/, where each has its
SVG, its PNG and the JSON it was drawn from. results.json holds every verdict and mean.

Translations are also compared by paired bootstrap, seed by seed. That says something about the test
set, and no verdict rests on it. The p-values are kept beside the results, so that they outlive the
translations.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from reluformer import files
from reluformer.errors import DataError
from reluformer.report_page import FONTS, inline_svg, page
from reluformer.study import figures, measures
from reluformer.study.experiment import Claim, Experiment, Figure, Scale
from reluformer.study.measures import EVALUATION
from reluformer.study.plan import Plan
from reluformer.study.results import Results, StudyDirectory, seconds_of
from reluformer.study.verdicts import Verdict, interval, judge
from reluformer.translation.scoring import read_hypotheses
from reluformer.translation.significance import compare

TITLE = "ReLU and softmax: the paper's claims, rerun"
LEADS: dict[Scale, str] = {
    "quick": "Smoke test: one seed and minutes of training on a generated corpus. It shows that every experiment runs "
    "from end to end, and says nothing about the claims.",
    "small": "Real data at the size of two cores. What that means for each claim stands with it.",
    "paper": "The paper's own datasets and sizes.",
}
PROTOCOL = (
    "The rules for the verdicts were fixed before the runs (docs/protocol.md). "
    "The number after ± is half of the 95 % interval of a mean over seeds. A positive difference is an improvement."
)
BOOTSTRAP_NOTE = (
    "p is sacreBLEU's: how often the size of a resampled difference exceeds its own mean by more than "
    "the difference seen; about 0.4, not 1, where two systems score the same"
)


@dataclass
class Written:
    """The verdicts and notes of a report that was written."""

    verdicts: list[Verdict]
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain data."""
        return {"verdicts": [verdict.to_dict() for verdict in self.verdicts], "notes": self.notes}


def write(plan: Plan, study: StudyDirectory) -> Written:
    """Write the report of a plan from the results that exist.

    Args:
        plan: The experiments and runs to report on.
        study: The directory with their results; report.html, report.md, results.json and figures/ go there.

    Returns:
        The verdicts, those that contradict the paper first, and notes on the runs.
    """
    results = Results(plan, study)
    sections = in_order([_section(one, plan, results, study) for one in plan.experiments])
    written = Written([verdict for section in sections for verdict in section.verdicts], _notes(plan, study))
    tables = {section.experiment.name: [table._asdict() for table in section.tables] for section in sections}
    files.write_json(study.path / "results.json", {"scale": plan.scale, **written.to_dict(), "tables": tables})
    files.write_text(study.path / "report.html", html_page(plan.scale, sections, written.notes))
    files.write_text(study.path / "report.md", markdown_page(plan.scale, sections, written.notes))
    return written


def _notes(plan: Plan, study: StudyDirectory) -> list[str]:
    done = [result for address in plan.runs if (result := study.result(address)) is not None]
    minutes = sum(map(seconds_of, done)) / 60
    took = f"{minutes:,.0f} minutes" if minutes < 120 else f"{minutes / 60:,.1f} hours"
    notes = [f"{len(done)} of {len(plan.runs)} runs are done; together they took {took}."]
    for version, count in study.foreign().items():
        were = "result was" if count == 1 else "results were"
        notes.append(f"{count} {were} written by version {version} of the study and left out.")
    return [*notes, *_corpora_that_differ(done)]


def _corpora_that_differ(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a warning for each corpus of which runs saw different versions.

    The content of a corpus is not part of the address of a run.
    """
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


def _section(one: Experiment, plan: Plan, results: Results, study: StudyDirectory) -> Section:
    verdicts = [judge(one, j, results, plan.scale) for j in one.verdicts if plan.scale in j.scales]
    tables = [table for part in one.parts if (table := _table(one, part, results)) is not None]
    drawn = [found for figure in one.figures if (found := draw_figure(figure, one.name, results, study)) is not None]
    paired = [line for part in one.parts for line in _bootstrap_lines(one, part, results)]
    return Section(one, verdicts, tables, drawn, paired)


# ------------------------------------------------------------------ sections


class Table(NamedTuple):
    """A table of numbers as they are printed."""

    title: str
    head: list[str]
    rows: list[list[str]]


class Drawn(NamedTuple):
    """A figure and its picture."""

    figure: Figure
    svg: str


@dataclass(frozen=True)
class Section:
    """Everything that the report says about one experiment."""

    experiment: Experiment
    verdicts: Sequence[Verdict]
    tables: Sequence[Table]
    drawn: Sequence[Drawn]
    bootstrap: Sequence[str]
    """Lines on paired tests of translations."""

    def claim(self, verdict: Verdict) -> Claim:
        """Returns the claim that a verdict is about."""
        return self.experiment.claims[verdict.claim]

    @property
    def contradictions(self) -> list[str]:
        """The claims of the paper that were not reproduced."""
        return [v.claim for v in self.verdicts if v.verdict == "not reproduced" and v.claim[0] == "C" and not v.smoke]


def in_order(sections: Sequence[Section]) -> list[Section]:
    """Returns the sections that contradict the paper first, the others after them."""
    return sorted(sections, key=lambda section: not section.contradictions)


def _opening(sections: Sequence[Section], notes: Sequence[str]) -> str:
    """Returns how much was run, what contradicts the paper, and how to read the rest."""
    found = [f"{' and '.join(s.contradictions)} ({s.experiment.name})" for s in sections if s.contradictions]
    contradicted = [f"Not as in the paper: {', '.join(found)}."] if found else []
    return " ".join([*notes, *contradicted, PROTOCOL])


def _all_verdicts(sections: Sequence[Section]) -> list[tuple[Section, Verdict]]:
    """Returns all verdicts in the order of the paper; those on claims of our own come last."""
    found = [(section, verdict) for section in sections for verdict in section.verdicts]
    return sorted(found, key=lambda pair: (pair[1].claim[0], int(pair[1].claim[1:])))


# ------------------------------------------------------------------ numbers


def _table(one: Experiment, part: str, results: Results) -> Table | None:
    """Returns a row for each place of the grid, with the metrics that the experiment draws or judges."""
    places = results.places(one.name, part)
    if not places:
        return None
    if one.parts[part].kind == "speed":
        return _speed_table(one, part, results)
    metrics = [m for m in _metrics(one, part) if any(results.values(one.name, part, place, m) for place in places)]
    axes = list(places[0])
    head = [*axes, "seeds", *(measures.label(metric) for metric in metrics), "learning rate"]
    rows = []
    for place in places:
        seeds = results.at(one.name, part, place)
        rates = {f"{r['lr']:g}" for found in seeds.values() for r in found.values() if r.get("lr") is not None}
        cells = [_mean_cell(results.values(one.name, part, place, metric), metric) for metric in metrics]
        rows.append([*place.values(), str(len(seeds)), *cells, ", ".join(sorted(rates)) or "–"])
    return Table(one.parts[part].title, head, rows)


def _metrics(one: Experiment, part: str) -> list[str]:
    wanted = [c.metric for j in one.verdicts for c in (*j.conditions, *j.requires) if c.part == part]
    for figure in one.figures:
        if figure.part == part and figure.kind in ("points", "lines", "curve"):
            wanted += [figure.metric] if isinstance(figure.metric, str) else figure.metric
            wanted += [figure.x] if figure.kind == "curve" and figure.x else []
    return list(dict.fromkeys(wanted))


def _mean_cell(values: Mapping[int, float], metric: str) -> str:
    finite = [value for value in values.values() if math.isfinite(value)]
    diverged = len(values) - len(finite)
    note = f" ({diverged} diverged)" if diverged else ""
    if not finite:
        return "diverged" if diverged else "–"
    digits = measures.measure(metric).digits
    found = interval(finite)
    half = f" ± {found.high - found.mean:.{digits}f}" if len(finite) > 1 else ""
    return f"{found.mean:.{digits}f}{half}{note}"


def _speed_table(one: Experiment, part: str, results: Results) -> Table:
    """Returns ratios to softmax by tier and length: training, translation, and megabytes of a training step."""
    seeds = [found["speed"] for _, found in results.cells(one.name, part)]
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


def draw_figure(figure: Figure, experiment: str, results: Results, study: StudyDirectory) -> Drawn | None:
    """Write a figure as SVG and PNG beside the JSON it is drawn from; None if nothing of it was measured."""
    data = figures.figure_data(figure, experiment, results)
    if data is None:
        return None
    study.figures.mkdir(parents=True, exist_ok=True)
    path = study.figures / figure.name
    files.write_text(path.with_suffix(".json"), json.dumps(data, indent=1) + "\n")
    from matplotlib import pyplot as plt

    with plt.rc_context(FONTS):
        drawn = figures.draw(data)
        svg = inline_svg(drawn)
        files.write_text(path.with_suffix(".svg"), svg)
        drawn.savefig(path.with_suffix(".png"), dpi=130)
        plt.close(drawn)
    return Drawn(figure, svg)


# ------------------------------------------------------------------ paired bootstrap


def _bootstrap_lines(one: Experiment, part: str, results: Results) -> list[str]:
    """Compare every place of the grid with the first one; returns a line for each."""
    places = results.places(one.name, part)
    lines = []
    for place in places[1:]:
        base = _translated(results, one.name, part, places[0])
        found = [
            f"seed {seed}: {_p_text(_p_value(results.study, address, base[seed]))}"
            for seed, address in _translated(results, one.name, part, place).items()
            if seed in base
        ]
        if found:
            lines.append(f"{' '.join(place.values())} against {' '.join(places[0].values())}: {', '.join(found)}")
    return lines


def _translated(results: Results, name: str, part: str, place: Mapping[str, str]) -> dict[int, str]:
    """Returns the addresses of the runs at a place that translated, by seed."""
    return {
        cell.seed: cell.runs[-1].address
        for cell, found in results.cells(name, part)
        if cell.labels == place and "translations" in found.get(EVALUATION, {})
    }


def _p_text(p_value: float | None) -> str:
    return "translations not kept" if p_value is None else f"p = {p_value:.3f}"


def _p_value(study: StudyDirectory, address: str, other: str) -> float | None:
    """Returns the p-value of two runs on the same test set, as it was kept or from their translations."""
    known = study.p_values(address)
    if other not in known:
        paths = [study.directory(run) / "translations.jsonl" for run in (address, other)]
        references = study.directory(address) / "references.jsonl"
        if not all(path.is_file() for path in (*paths, references)):
            return None
        ours, theirs, target = (read_hypotheses(path) for path in (*paths, references))
        known[other] = round(compare(ours, theirs, target, metric="bleu").p_value, 4)
        study.write_p_values(address, known)
    return known[other]


# ------------------------------------------------------------------ HTML


def html_page(scale: Scale, sections: Sequence[Section], notes: Sequence[str]) -> str:
    """Returns the HTML page, which stands alone."""
    rows = "".join(
        f"<tr><td>{v.claim}</td><td><a href='#{v.experiment}'>{v.experiment}</a></td>"
        f"<td>{_text(s.claim(v).says)}</td><td>{_text(s.claim(v).paper)}</td>"
        f"<td>{_lines(v.figures) or '–'}</td><td>{_badge(v)}</td></tr>"
        for s, v in _all_verdicts(sections)
    )
    columns = ("claim", "experiment", "what it says", "the paper's figures", "ours", "verdict")
    head = f"<tr>{''.join(f'<th>{column}</th>' for column in columns)}</tr>"
    body = (
        f"<h1>{TITLE}</h1><p class=lead>{LEADS[scale]}</p><p>{html.escape(_opening(sections, notes))}</p>"
        f"<table class=text>{head}{rows}</table>{''.join(map(_html_section, sections))}"
    )
    return page(f"reluformer study, {scale}", body)


def _text(text: str) -> str:
    """Returns escaped text with `names` set as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _badge(verdict: Verdict) -> str:
    """Returns a verdict in a filled, double or dashed frame, which needs no colour."""
    kind = {"reproduced": "reproduced", "not reproduced": "not", "inconclusive": "inconclusive"}[verdict.verdict]
    remark = f" <small>{verdict.remark}</small>" if verdict.remark else ""
    return f"<span class='verdict {'inconclusive' if verdict.smoke else kind}'>{verdict.word}</span>{remark}"


def _html_section(section: Section) -> str:
    one = section.experiment
    parts = [f"<section id={one.name}><h2>{_text(one.title)}</h2><p>{_text(one.question)}</p>"]
    for verdict in section.verdicts:
        claim = section.claim(verdict)
        says = f"{_text(claim.says)} <small>Paper: {_text(claim.paper)}</small>"
        parts.append(f"<h3>{verdict.claim} {_badge(verdict)}</h3><p>{says}</p>{_lines(verdict.reasons)}")
    for figure, svg in section.drawn:
        caption = f"<figcaption>{_text(figure.caption)}</figcaption>"
        parts.append(f"<figure><h3>{_text(figure.title)}</h3>{svg}{caption}</figure>")
    parts += map(_html_table, section.tables)
    if section.bootstrap:
        parts.append(
            f"<h3>Paired bootstrap of test BLEU</h3><p>{_text(BOOTSTRAP_NOTE)}.</p>{_lines(section.bootstrap)}"
        )
    parts.append(f"<p><b>Scale.</b> {_text(one.scale_note)}</p></section>")
    return "".join(parts)


def _lines(texts: Sequence[str]) -> str:
    return "".join(f"<p class=line>{_text(text)}</p>" for text in texts)


def _html_table(table: Table) -> str:
    cells = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    head = "".join(f"<th>{_text(heading)}</th>" for heading in table.head)
    return f"<h3>{_text(table.title)}</h3><div class=wide><table><tr>{head}</tr>{cells}</table></div>"


# ------------------------------------------------------------------ Markdown


def markdown_page(scale: Scale, sections: Sequence[Section], notes: Sequence[str]) -> str:
    """Returns the same report for a repository; its pictures are in figures/.

    A smoke test shows none: report.html has them.
    """
    lines = [f"# {TITLE}", "", LEADS[scale], "", _opening(sections, notes), ""]
    rows = [
        [v.claim, f"`{v.experiment}`", s.claim(v).paper, "; ".join(v.figures) or "–", _remarked(v)]
        for s, v in _all_verdicts(sections)
    ]
    lines += _markdown_table(["claim", "experiment", "the paper's figures", "ours", "verdict"], rows)
    for section in sections:
        lines += _markdown_section(section, pictures=scale != "quick")
    return "\n".join(lines) + "\n"


def _remarked(verdict: Verdict) -> str:
    """Returns the verdict with its remark in brackets."""
    return f"{verdict.word} ({verdict.remark})" if verdict.remark else verdict.word


def _markdown_section(section: Section, pictures: bool) -> list[str]:
    one = section.experiment
    lines = ["", f"## {one.title} (`{one.name}`)", "", one.question.strip(), ""]
    for verdict in section.verdicts:
        lines += [f"**{verdict.claim}: {_remarked(verdict)}.** {section.claim(verdict).says}", ""]
        lines += [*(f"* {reason}" for reason in verdict.reasons), ""]
    for figure, _ in section.drawn if pictures else ():
        lines += [f"![{figure.title}](figures/{figure.name}.png)", "", f"*{figure.title}. {figure.caption}*", ""]
    for table in section.tables:
        lines += [table.title, "", *_markdown_table(table.head, table.rows), ""]
    if section.bootstrap:
        lines += [
            f"Paired bootstrap of test BLEU ({BOOTSTRAP_NOTE}):",
            "",
            *(f"* {line}" for line in section.bootstrap),
            "",
        ]
    return [*lines, one.scale_note.strip()]


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    table = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]


# ------------------------------------------------------------------ the table of claims


def enter_verdicts(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Write verdicts into the last column of the table of claims at `path`; other rows do not change.

    A claim that several experiments judge has a verdict of each. Verdicts of experiments that are not given stay.

    Args:
        path: A Markdown file with a table whose rows begin with the name of a claim.
        verdicts: The verdicts to enter.

    Raises:
        DataError: A verdict comes from scale `quick`, or a claim has no row.
    """
    found: dict[str, dict[str, str]] = {}
    for verdict in verdicts:
        if verdict.smoke:
            raise DataError(f"{path}: verdicts of scale quick are a smoke test and stay out of it; use --scale small")
        found.setdefault(verdict.claim, {})[verdict.experiment] = _remarked(verdict)
    lines = path.read_text(encoding="utf-8").splitlines()
    missing = set(found)
    for number, line in enumerate(lines):
        cells = line.split(" | ")
        claim = cells[0].removeprefix("| ").split(" ")[0]
        if claim in found and len(cells) > 1:
            words = {**dict(re.findall(r"`(\w+)`: ([\w ]*\w(?: \([^)]*\))?)", cells[-1])), **found[claim]}
            verdicts_text = "; ".join(f"`{experiment}`: {word}" for experiment, word in words.items())
            lines[number] = " | ".join([*cells[:-1], f"{verdicts_text} |"])
            missing.discard(claim)
    if missing:
        raise DataError(f"{path}: no row of a table begins with {', '.join(sorted(missing))}")
    files.write_text(path, "\n".join(lines) + "\n")
