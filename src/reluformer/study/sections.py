"""One experiment in the report, and the two pages that are made from all of them."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reluformer.report_page import page
from reluformer.study.bootstrap import NOTE
from reluformer.study.experiment import Claim, Experiment, Figure, Scale
from reluformer.study.verdicts import Verdict

TITLE = "ReLU and softmax: the paper's claims, rerun"
LEADS: dict[Scale, str] = {
    "quick": "Smoke test: one seed and minutes of training on a generated corpus. It shows that every experiment runs "
    "from end to end, and says nothing about the claims.",
    "small": "Real data at the size of two cores. What that means for each claim stands with it.",
    "paper": "The paper's own datasets and sizes.",
}
PROTOCOL = (
    "The rules for the verdicts were fixed before the runs (docs/protocol.md). "
    "Behind ± stands half of the 95 % interval of a mean over seeds; a positive difference is for the better."
)


class Table(NamedTuple):
    """Numbers as they are printed."""

    title: str
    head: list[str]
    rows: list[list[str]]


class Drawn(NamedTuple):
    """A figure and its picture."""

    figure: Figure
    svg: str


@dataclass(frozen=True)
class Section:
    """Everything that the report says of one experiment."""

    experiment: Experiment
    verdicts: Sequence[Verdict]
    tables: Sequence[Table]
    drawn: Sequence[Drawn]
    bootstrap: Sequence[str]
    """Paired tests of translations, a line each."""

    def claim(self, verdict: Verdict) -> Claim:
        return self.experiment.claims[verdict.claim]

    @property
    def contradictions(self) -> list[str]:
        """Claims of the paper that came out otherwise."""
        return [v.claim for v in self.verdicts if v.verdict == "not reproduced" and v.claim[0] == "C" and not v.smoke]


def in_order(sections: Sequence[Section]) -> list[Section]:
    """What contradicts the paper comes first."""
    return sorted(sections, key=lambda section: not section.contradictions)


def _opening(sections: Sequence[Section], notes: Sequence[str]) -> str:
    """How much was run, what contradicts the paper, and how to read the rest."""
    found = [f"{' and '.join(s.contradictions)} ({s.experiment.name})" for s in sections if s.contradictions]
    contradicted = [f"Not as in the paper: {', '.join(found)}."] if found else []
    return " ".join([*notes, *contradicted, PROTOCOL])


def _all_verdicts(sections: Sequence[Section]) -> list[tuple[Section, Verdict]]:
    """In the order of the paper, and what goes beyond it after that."""
    found = [(section, verdict) for section in sections for verdict in section.verdicts]
    return sorted(found, key=lambda pair: (pair[1].claim[0], int(pair[1].claim[1:])))


# ------------------------------------------------------------------ HTML


def html_page(scale: Scale, sections: Sequence[Section], notes: Sequence[str]) -> str:
    """The page that stands alone."""
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
    """Escaped, with `names` set as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _badge(verdict: Verdict) -> str:
    """Filled, double or dashed, so that it is told apart without colour."""
    kind = {"reproduced": "reproduced", "not reproduced": "not", "inconclusive": "inconclusive"}[verdict.verdict]
    return f"<span class='verdict {'inconclusive' if verdict.smoke else kind}'>{verdict.word}</span>"


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
        parts.append(f"<h3>Paired bootstrap of test BLEU</h3><p>{_text(NOTE)}.</p>{_lines(section.bootstrap)}")
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
    """The same for a repository; pictures are in figures/."""
    lines = [f"# {TITLE}", "", LEADS[scale], "", _opening(sections, notes), ""]
    rows = [
        [v.claim, f"`{v.experiment}`", s.claim(v).paper, "; ".join(v.figures) or "–", v.word]
        for s, v in _all_verdicts(sections)
    ]
    lines += _markdown_table(["claim", "experiment", "the paper's figures", "ours", "verdict"], rows)
    for section in sections:
        lines += _markdown_section(section)
    return "\n".join(lines) + "\n"


def _markdown_section(section: Section) -> list[str]:
    one = section.experiment
    lines = ["", f"## {one.title} (`{one.name}`)", "", one.question.strip(), ""]
    for verdict in section.verdicts:
        lines += [f"**{verdict.claim}: {verdict.word}.** {section.claim(verdict).says}", ""]
        lines += [*(f"* {reason}" for reason in verdict.reasons), ""]
    for figure, _ in section.drawn:
        lines += [f"![{figure.title}](figures/{figure.name}.png)", "", f"*{figure.title}. {figure.caption}*", ""]
    for table in section.tables:
        lines += [table.title, "", *_markdown_table(table.head, table.rows), ""]
    if section.bootstrap:
        lines += [
            f"Paired bootstrap of test BLEU ({NOTE}):",
            "",
            *(f"* {line}" for line in section.bootstrap),
            "",
        ]
    return [*lines, one.scale_note.strip()]


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    table = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
