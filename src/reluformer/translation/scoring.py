"""Scores of translations: BLEU, document BLEU and chrF, each with its signature.

    scores = score(hypotheses, references)      # documents: lists of lists of sentences
    print(scores)                               # every figure with its sacreBLEU signature

All figures come from sacreBLEU, cased, with tokenizer 13a, on detokenized text:

    bleu      corpus BLEU, every sentence a line
    d_bleu    corpus BLEU, every document a line: its sentences joined by a space
    chrf      corpus chrF2, every sentence a line

A flat file of sentences is a list of one-sentence documents. `significance` compares two systems.
`evaluate` translates the documents of a split with a run and scores the result.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table
from rich.text import Text
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from reluformer.errors import ArgumentError, DataError, UnknownNameError, nearest
from reluformer.files import HALF_PAIR, write_text
from reluformer.translation.formats import is_jsonl, read_text
from reluformer.translation.formats.plain import split_lines
from reluformer.translation.formats.tabular import parse_json_line

if TYPE_CHECKING:
    from reluformer.translation.document import Document
    from reluformer.translation.embedded import DiscourseScores
    from reluformer.translation.recipe import Split
    from reluformer.translation.translator import Translator
    from reluformer.translation.windows import ReportProgress

Documents = Sequence[Sequence[str]]
MetricName = Literal["bleu", "d_bleu", "chrf"]
Line = Literal["sentence", "document"]


@dataclass(frozen=True)
class MetricKind:
    """One metric: its name in print, what it takes as a line, and sacreBLEU's object for it."""

    label: str
    line: Line
    build: Callable[[bool], BLEU | CHRF]
    """Makes sacreBLEU's object; with True it does not warn about tokenized text."""

    def lines(self, documents: Documents) -> list[str]:
        """Returns the lines that the metric counts as segments."""
        if self.line == "document":
            return [" ".join(document) for document in documents]
        return [sentence for document in documents for sentence in document]


METRICS: dict[MetricName, MetricKind] = {
    "bleu": MetricKind("BLEU", "sentence", lambda quiet: BLEU(tokenize="13a", force=quiet)),
    "d_bleu": MetricKind("d-BLEU", "document", lambda quiet: BLEU(tokenize="13a", force=quiet)),
    "chrf": MetricKind("chrF2", "sentence", lambda quiet: CHRF()),
}


def metric_kind(name: str) -> MetricKind:
    """Returns the metric of this name."""
    for known, kind in METRICS.items():
        if known == name:
            return kind
    raise UnknownNameError(f"unknown metric '{name}'; {nearest(name, METRICS)}")


def check_documents(hypotheses: Documents, references: Documents, hypotheses_name: str = "hypotheses") -> None:
    """Raises an error for what cannot be scored: nothing at all, or documents that do not match."""
    for name, documents in ((hypotheses_name, hypotheses), ("references", references)):
        for number, document in enumerate(documents, 1):
            if isinstance(document, str):
                raise ArgumentError(
                    f"{name}: document {number} is a string, expected a list of sentences; "
                    "for separate sentences pass [[sentence] for sentence in sentences]"
                )
    if len(hypotheses) != len(references):
        raise DataError(
            f"{hypotheses_name} have {len(hypotheses)} documents, references have {len(references)}; "
            "both must hold the same documents in the same order"
        )
    for number, (hypothesis, reference) in enumerate(zip(hypotheses, references, strict=True), 1):
        if len(hypothesis) != len(reference):
            raise DataError(
                f"document {number} of {len(references)}: {hypotheses_name} have {len(hypothesis)} sentences, "
                f"references have {len(reference)}; translate it sentence by sentence, or fix the line breaks"
            )
    if not any(len(reference) for reference in references):
        raise DataError("there is no sentence to score: hypotheses and references are empty")


LENGTH_BORDERS = (128, 256, 512, 1024)
REFERENCE_WORDS = "reference words"


@dataclass(frozen=True)
class Score:
    """One figure from 0 to 100, with the signature of its computation."""

    metric: MetricName
    value: float
    line: Line
    """What sacreBLEU took as one line, which the signature does not say."""
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
        """The range as text: `129-256`, or `1025+` for the last bucket."""
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
        """BLEU, d-BLEU and chrF, in this order."""
        return self.bleu, self.d_bleu, self.chrf

    def __str__(self) -> str:
        return "\n".join(str(figure) for figure in self.figures)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {
            **{figure.metric: asdict(figure) for figure in self.figures},
            "documents": self.documents,
            "sentences": self.sentences,
            "length_unit": self.length_unit,
            "buckets": [{"label": bucket.label, **asdict(bucket)} for bucket in self.buckets],
        }

    def table(self) -> Table:
        """Returns a table for the terminal; its caption holds the signatures."""
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
    """Scores the translations of one system, overall and by document length.

    Args:
        hypotheses: The translated documents, each a list of sentences.
        references: The same documents in the same order, with as many sentences.
        length_borders: The greatest length of each bucket; longer documents have a bucket of their own.
            Buckets double the work: `()` makes none.
        lengths: The length of each document; by default the words of its reference, split at white space.
        length_unit: What `lengths` counts, for print.

    Returns:
        BLEU, d-BLEU and chrF with their signatures.

    Raises:
        DataError: The documents do not match, or there is nothing to score.
        ArgumentError: The borders do not rise, or a unit is given without lengths.

    Example:
        >>> scores = score([["Das ist ein Haus ."]], [["Das ist ein Haus ."]])
        >>> round(scores.chrf.value)
        100
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


def read_hypotheses(path: str | Path, *, like: Documents | None = None) -> list[list[str]]:
    """Reads translated documents from a file.

    JSON lines (`.jsonl`, `.ndjson`, also `.gz`) have one document a line, with its sentences
    under "hyp", or under "tgt" if there is no "hyp". Any other file is text with one sentence a
    line, in which a blank line ends a document. A text without blank lines is a list of
    one-sentence documents.

    Args:
        path: The file.
        like: The references. A translation may be empty, which looks like a blank line; a text with as
            many lines as the references have is therefore cut as they are.

    Raises:
        DataError: A line is not JSON, or lacks the sentences; the error names file and line.
    """
    return _read(Path(path), ("hyp", "tgt"), like)


def read_references(path: str | Path) -> list[list[str]]:
    """Reads documents like `read_hypotheses`; in JSONL always those under "tgt"."""
    return _read(Path(path), ("tgt",), None)


def _read(path: Path, keys: tuple[str, ...], like: Documents | None) -> list[list[str]]:
    lines = [line.body for line in split_lines(read_text(path).removeprefix("\ufeff"))]
    if is_jsonl(path):
        return [_document(line, keys, f"{path}, line {n}") for n, line in enumerate(lines, 1) if line.strip()]
    sentences = [line.strip() for line in lines]
    within = _without_blank_ends(sentences)
    if like is not None:
        for candidate in (sentences, within):
            if (documents := _cut_like(candidate, like)) is not None:
                return documents
    return _cut_at_blank_lines(within)


def _document(line: str, keys: tuple[str, ...], place: str) -> list[str]:
    """Returns the sentences under the first of `keys` that a line of JSON has."""
    record = parse_json_line(line, place)
    found = [key for key in keys if isinstance(record, dict) and key in record]
    if not found:
        names = " or ".join(f'"{key}"' for key in keys)
        raise DataError(f"{place}: expected an object with {names}: a list of sentences")
    sentences = record[found[0]]
    if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
        raise DataError(f'{place}: "{found[0]}" must be a list of strings, one a sentence')
    for number, sentence in enumerate(sentences, 1):
        if HALF_PAIR.search(sentence):
            raise DataError(f'{place}: sentence {number} of "{found[0]}" holds half a surrogate pair, which is no text')
    return sentences


def _without_blank_ends(lines: list[str]) -> list[str]:
    """Removes blank lines before the first sentence and after the last one, which separate no documents."""
    filled = [number for number, line in enumerate(lines) if line]
    return lines[filled[0] : filled[-1] + 1] if filled else []


def _cut_like(lines: list[str], like: Documents) -> list[list[str]] | None:
    """Cuts lines into documents as long as those of `like`, with or without blank lines between."""
    for gap in (0, 1):
        if len(lines) != sum(len(document) + gap for document in like) - gap:
            continue
        documents, breaks, start = [], [], 0
        for document in like:
            end = start + len(document)
            documents.append(lines[start:end])
            breaks += lines[end : end + gap]
            start = end + gap
        if not any(breaks):
            return documents
    return None


def _cut_at_blank_lines(lines: list[str]) -> list[list[str]]:
    if all(lines):
        return [[line] for line in lines]
    documents: list[list[str]] = [[]]
    for line in lines:
        if line:
            documents[-1].append(line)
        elif documents[-1]:
            documents.append([])
    return [document for document in documents if document]


# ---------------------------------------------------------------------- evaluation of a run


@dataclass(frozen=True)
class EvaluatedRun:
    """The translations of some documents by one run, and their scores."""

    run: Path
    hypotheses: list[list[str]]
    scores: Scores
    discourse: DiscourseScores | None
    """The shares of right pronouns and terms; None unless the corpus is the embedded one."""
    decoding: dict[str, Any]
    """The decoding settings."""
    seconds: float
    """The time that translation took."""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {
            "run": str(self.run),
            "decoding": self.decoding,
            "seconds": round(self.seconds, 2),
            "scores": self.scores.to_dict(),
            "discourse": None if self.discourse is None else self.discourse.to_dict(),
        }


def read_split(run: Path, split: Split, limit: int | None = None) -> tuple[list[Document], bool]:
    """Returns the documents of a split of the run's recipe, and whether they come from the embedded corpus.

    Args:
        run: The directory of the run.
        split: "valid" or "test".
        limit: The most documents to read. Default: all.

    Raises:
        ArgumentError: The recipe names no such split.
        DataError: The split holds no documents, or cannot be read.
    """
    from reluformer.training.run import RunDirectory
    from reluformer.translation.corpus import MANIFEST, PreparedCorpus, read_documents
    from reluformer.translation.recipe import Recipe

    data = RunDirectory(run).recipe(Recipe).data
    source = data.splits.get(split)
    if source is None:
        others = [name for name in ("test", "valid") if name in data.splits]
        hint = f"use --split {others[0]}" if others else "add it to the recipe, and to recipe.yaml of the run"
        raise ArgumentError(f"{run}: its recipe names no {split} split; {hint}")
    languages = (data.source_lang, data.target_lang)
    stream = read_documents(source, limits=data.limits, languages=languages, split=split)
    if not all(file.exists() for file in source.files) and (run / "data" / MANIFEST).is_file():
        stream = PreparedCorpus(run / "data").documents(split)  # the run was moved; its corpus keeps these texts
    documents = list(islice(stream, limit))
    if not documents:
        raise DataError(f"{run}: the {split} split of its recipe holds no documents")
    return documents, source.embedded is not None


def evaluate(
    run: Path,
    translator: Translator,
    documents: Sequence[Document],
    *,
    embedded: bool = False,
    report: ReportProgress | None = None,
) -> EvaluatedRun:
    """Translates documents and scores the translations.

    Args:
        run: The directory that the translator was loaded from.
        translator: The translator.
        documents: The documents with their reference translations, e.g. those of `read_split`.
        embedded: Whether they come from the embedded corpus, whose pronouns and terms are counted as well.
        report: Takes the number of sentences done and of all.

    Returns:
        The translations, their scores, the decoding settings and the seconds.

    Example:
        >>> import reluformer as rf
        >>> run = Path("runs/demo/reluformer")
        >>> documents, embedded = read_split(run, "test")
        >>> found = evaluate(run, rf.load(run), documents, embedded=embedded)
        >>> 0 <= found.scores.bleu.value <= 100
        True
    """
    from reluformer.translation.embedded import document_from_id, score_discourse

    started = time.perf_counter()
    hypotheses = translator.translate_documents([document.src for document in documents], report)
    seconds = time.perf_counter() - started
    scores = score(hypotheses, [document.tgt or () for document in documents])
    discourse = None
    if embedded:
        discourse = score_discourse([document_from_id(document.id) for document in documents], hypotheses)
    return EvaluatedRun(run, hypotheses, scores, discourse, translator.config.model_dump(mode="json"), seconds)


def write_evaluation(
    path: Path, content: Mapping[str, Any], documents: Sequence[Document], hypotheses: Documents
) -> None:
    """Writes the translations beside `path`, as .jsonl, and then the scores.

    Args:
        path: The JSON file to write.
        content: The scores.
        documents: The documents that were translated.
        hypotheses: Their translations.

    Raises:
        StorageError: A file cannot be written.
    """
    lines = [
        json.dumps({"id": document.id, "src": document.src, "tgt": document.tgt, "hyp": found}, ensure_ascii=False)
        for document, found in zip(documents, hypotheses, strict=True)
    ]
    write_text(path.with_suffix(".jsonl"), "".join(line + "\n" for line in lines))
    write_text(path, json.dumps(content, indent=2) + "\n")
