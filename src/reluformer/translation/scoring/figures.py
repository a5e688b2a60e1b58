"""The figures of one system: over everything, and by the length of the documents."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from reluformer.errors import ArgumentError, DataError
from reluformer.translation.scoring.metrics import METRICS, Documents, Line, MetricName, check_documents, metric_kind

LENGTH_BORDERS = (128, 256, 512, 1024)
REFERENCE_WORDS = "reference words"


@dataclass(frozen=True)
class Score:
    """One figure from 0 to 100 with the recipe that made it."""

    metric: MetricName
    value: float
    line: Line
    """What sacreBLEU saw as one line; the signature does not tell."""
    signature: str

    @property
    def label(self) -> str:
        """The metric's name in print."""
        return METRICS[self.metric].label

    def __str__(self) -> str:
        return f"{self.label} = {self.value:.2f} (a line is a {self.line}) {self.signature}"


@dataclass(frozen=True)
class Bucket:
    """The documents of `least` to `most` words (both included; no `most`: any longer).

    The figures are None where no document is that long.
    """

    least: int
    most: int | None
    documents: int
    sentences: int
    bleu: float | None
    d_bleu: float | None
    chrf: float | None

    @property
    def label(self) -> str:
        """`129-256`, or `1025+` for the last one."""
        return f"{self.least}+" if self.most is None else f"{self.least}-{self.most}"


@dataclass(frozen=True)
class Scores:
    """All figures of one system on one test set."""

    bleu: Score
    d_bleu: Score
    chrf: Score
    documents: int
    sentences: int
    buckets: tuple[Bucket, ...]
    length_unit: str
    """What the bucket borders count."""

    @property
    def figures(self) -> tuple[Score, Score, Score]:
        """BLEU, d-BLEU, chrF."""
        return self.bleu, self.d_bleu, self.chrf

    def __str__(self) -> str:
        return "\n".join(str(figure) for figure in self.figures)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            **{figure.metric: asdict(figure) for figure in self.figures},
            "documents": self.documents,
            "sentences": self.sentences,
            "length_unit": self.length_unit,
            "buckets": [{"label": bucket.label, **asdict(bucket)} for bucket in self.buckets],
        }

    def table(self) -> Table:
        """A table for the terminal; its caption holds the signatures."""
        table = Table(
            title=Text(f"documents by {self.length_unit}"),
            caption=Text(str(self)),
            caption_justify="left",
            min_width=max(len(figure.signature) for figure in self.figures),
        )
        table.add_column("length")
        for heading in ("documents", "sentences", *(figure.label for figure in self.figures)):
            table.add_column(heading, justify="right")
        for bucket in self.buckets:
            figures = [_two_places(value) for value in (bucket.bleu, bucket.d_bleu, bucket.chrf)]
            table.add_row(bucket.label, str(bucket.documents), str(bucket.sentences), *figures)
        table.add_section()
        totals = [_two_places(figure.value) for figure in self.figures]
        table.add_row("all", str(self.documents), str(self.sentences), *totals)
        return table


def _two_places(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def score(
    hypotheses: Documents,
    references: Documents,
    *,
    length_borders: Sequence[int] = LENGTH_BORDERS,
    lengths: Sequence[int] | None = None,
    length_unit: str | None = None,
) -> Scores:
    """BLEU, d-BLEU and chrF of `hypotheses`, overall and by document length.

    A document falls into the first bucket whose border is not below its length. Lengths
    are counted in words of the reference (split at white space), or given as `lengths`,
    one a document, with a `length_unit` to print. Buckets double the work: without
    borders, `length_borders=()`, there are none.
    """
    check_documents(hypotheses, references)
    if lengths is None:
        if length_unit not in (None, REFERENCE_WORDS):
            raise ArgumentError(f"length_unit={length_unit!r} needs lengths= counted in it, one for each document")
        lengths, length_unit = [_words(reference) for reference in references], REFERENCE_WORDS
    elif len(lengths) != len(references):
        raise DataError(f"{len(lengths)} lengths for {len(references)} documents; give one for each document")
    overall = {name: _score(name, hypotheses, references) for name in METRICS}
    return Scores(
        **overall,
        documents=len(references),
        sentences=sum(len(reference) for reference in references),
        buckets=_buckets(hypotheses, references, lengths, length_borders),
        length_unit=length_unit or "given length",
    )


def _words(document: Sequence[str]) -> int:
    return sum(len(sentence.split()) for sentence in document)


def _score(name: MetricName, hypotheses: Documents, references: Documents, *, quiet: bool = False) -> Score:
    kind = metric_kind(name)
    metric = kind.build(quiet)
    value = metric.corpus_score(kind.lines(hypotheses), [kind.lines(references)]).score
    return Score(name, float(value), kind.line, str(metric.get_signature()))


def _buckets(
    hypotheses: Documents, references: Documents, lengths: Sequence[int], borders: Sequence[int]
) -> tuple[Bucket, ...]:
    if list(borders) != sorted(set(borders)) or any(border < 1 for border in borders):
        raise ArgumentError(f"length_borders: expected rising positive numbers, got {list(borders)}")
    if not borders:
        return ()
    members: list[list[int]] = [[] for _ in range(len(borders) + 1)]
    for index, length in enumerate(lengths):
        members[bisect_left(borders, length)].append(index)
    leasts, mosts = [0, *(border + 1 for border in borders)], [*borders, None]
    buckets = []
    for least, most, indices in zip(leasts, mosts, members, strict=True):
        hypothesis, reference = [hypotheses[i] for i in indices], [references[i] for i in indices]
        sentences = sum(len(document) for document in reference)
        figures: dict[MetricName, float | None] = dict.fromkeys(METRICS)
        if sentences:
            figures = {name: _score(name, hypothesis, reference, quiet=True).value for name in METRICS}
        buckets.append(Bucket(least, most, len(indices), sentences, **figures))
    return tuple(buckets)
