"""Readers: a corpus on disk as a lazy stream of documents.

Errors of structure (misaligned files, invalid UTF-8 or JSON) stop with file and line.
Problems of content (an empty sentence, control characters, an over-long line) are
counted by reason in a `Skipped` tally and reading goes on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from reluformer.errors import DataError
from reluformer.translation import skipped as reasons
from reluformer.translation.document import Document
from reluformer.translation.lines import decode, numbered_lines
from reluformer.translation.recipe import CorpusSource, Limits, Split
from reluformer.translation.skipped import Skipped

_UTF8_MOST_BYTES = 4
# C0 and C1 controls, Unicode's line separators, and surrogates without their other half
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def read_documents(
    source: CorpusSource,
    *,
    limits: Limits | None = None,
    skipped: Skipped | None = None,
    languages: tuple[str, str] = ("en", "de"),
    split: Split = "train",
) -> Iterator[Document]:
    """The documents of `source`, one at a time; what is left out is counted in `skipped`.

    `languages` choose the sides of a TMX file, `split` the documents of the embedded corpus.
    """
    intake = _Intake(limits or Limits(), Skipped() if skipped is None else skipped)
    by_line = source.documents == "line"
    match source:
        case CorpusSource(embedded=None, path=None, src=Path() as src, tgt=Path() as tgt):
            return intake.documents(_aligned_rows(src, tgt, intake.limits, by_line), src, by_line)
        case CorpusSource(embedded=None, path=Path() as path):
            if source.kind == "jsonl":
                return _json_documents(path, intake)
            if source.kind == "tsv":
                return intake.documents(_tsv_rows(path, intake.limits), path, by_line)
            return intake.documents(_exchange_rows(path, source.kind, languages, intake.skipped), path, by_line)
    return _embedded_documents(source, split)


@dataclass(frozen=True)
class Row:
    """A sentence pair at a line of a file; None is a side too long to keep."""

    line: int
    src: str | None
    tgt: str | None


@dataclass(frozen=True)
class _Intake:
    """What becomes of sentence pairs on their way into documents."""

    limits: Limits
    skipped: Skipped

    def pair(self, src: str | None, tgt: str | None, place: str) -> tuple[str, str] | None:
        """The cleaned pair, or None when it is dropped; either is counted."""
        if src is None or tgt is None:
            self.skipped.add(reasons.TOO_LONG, place)
            return None
        src, tgt = self._clean(src, place), self._clean(tgt, place)
        if not src or not tgt:
            self.skipped.add(reasons.EMPTY, place)
            return None
        if max(len(src), len(tgt)) > self.limits.sentence_characters:
            self.skipped.add(reasons.TOO_LONG, place)
            return None
        return src, tgt

    def _clean(self, sentence: str, place: str) -> str:
        cleaned, replaced = _CONTROL.subn(" ", sentence)
        if replaced:
            self.skipped.add(reasons.CONTROL, place)
        return cleaned.strip()

    def documents(self, rows: Iterable[Row | None], path: Path, by_line: bool) -> Iterator[Document]:
        """Rows as documents that end at None, or after every row when `by_line`."""
        open_document = _OpenDocument(path)
        for row in rows:
            if row is None:
                yield from open_document.close(self.skipped)
                continue
            place = f"{path}:{row.line}"
            pair = self.pair(row.src, row.tgt, place)
            if by_line:
                if pair:
                    yield Document(f"{path.name}:{row.line}", (pair[0],), (pair[1],))
                continue
            open_document.add(row.line, pair)
            if len(open_document.pairs) > self.limits.document_sentences:
                raise DataError(
                    f"{place}: more than {self.limits.document_sentences} sentences without a document break; "
                    "set documents: line if every line stands alone, or raise limits.document_sentences"
                )
        yield from open_document.close(self.skipped)


@dataclass
class _OpenDocument:
    """The document that is being read; its id is its file and first line."""

    path: Path
    first_line: int | None = None
    pairs: list[tuple[str, str]] = field(default_factory=list)

    def add(self, line: int, pair: tuple[str, str] | None) -> None:
        if self.first_line is None:
            self.first_line = line
        if pair:
            self.pairs.append(pair)

    def close(self, skipped: Skipped) -> Iterator[Document]:
        """The document, unless it has no sentences, and begin the next."""
        if self.pairs:
            src, tgt = zip(*self.pairs, strict=True)
            yield Document(f"{self.path.name}:{self.first_line}", src, tgt)
        elif self.first_line is not None:
            skipped.add(reasons.NO_SENTENCES, f"{self.path}:{self.first_line}")
        self.first_line, self.pairs = None, []


def _aligned_rows(src: Path, tgt: Path, limits: Limits, by_line: bool) -> Iterator[Row | None]:
    most_bytes = limits.sentence_characters * _UTF8_MOST_BYTES
    sources, targets = numbered_lines(src, most_bytes), numbered_lines(tgt, most_bytes)
    for left, right in zip_longest(sources, targets):
        if left is None or right is None:
            ended, longer, lines = (src, tgt, right) if left is None else (tgt, src, left)
            assert lines is not None
            in_longer = lines[0] + sum(1 for _ in (targets if left is None else sources))
            raise DataError(
                f"{ended}:{lines[0]}: the file ends here with {lines[0] - 1} lines, but {longer} has {in_longer}; "
                "aligned files need the same number of lines"
            )
        number = left[0]
        source = None if left[1] is None else decode(left[1], src, number)
        target = None if right[1] is None else decode(right[1], tgt, number)
        source_blank, target_blank = _is_blank(source), _is_blank(target)
        if not by_line and source_blank != target_blank:
            blank, text = (src, tgt) if source_blank else (tgt, src)
            raise DataError(
                f"{blank}:{number}: blank here but not in {text}; a document break must stand in both files "
                "(with documents: line such a pair is dropped and counted)"
            )
        yield None if source_blank and target_blank and not by_line else Row(number, source, target)


def _tsv_rows(path: Path, limits: Limits) -> Iterator[Row | None]:
    for number, line in numbered_lines(path, 2 * limits.sentence_characters * _UTF8_MOST_BYTES + 1):
        if line is None:
            yield Row(number, None, None)
            continue
        text = decode(line, path, number)
        columns = text.split("\t")
        if _is_blank(text):
            yield None
        elif len(columns) == 2:
            yield Row(number, *columns)
        else:
            raise DataError(f"{path}:{number}: expected source<TAB>target, got {len(columns)} columns")


def _is_blank(text: str | None) -> bool:
    return text is not None and not text.strip()


def _json_documents(path: Path, intake: _Intake) -> Iterator[Document]:
    for number, line in numbered_lines(path, intake.limits.document_bytes):
        place = f"{path}:{number}"
        if line is None:
            raise DataError(f"{place}: longer than limits.document_bytes={intake.limits.document_bytes}")
        text = decode(line, path, number)
        if _is_blank(text):
            continue
        entry = _json_entry(text, place)
        if len(entry["src"]) > intake.limits.document_sentences:
            raise DataError(
                f"{place}: more than limits.document_sentences={intake.limits.document_sentences} sentences"
            )
        places = (f"{place} sentence {index}" for index in range(1, len(entry["src"]) + 1))
        kept = [pair for pair in map(intake.pair, entry["src"], entry["tgt"], places) if pair]
        if kept:
            src, tgt = zip(*kept, strict=True)
            yield Document(str(entry.get("id", f"{path.name}:{number}")), src, tgt)
        else:
            intake.skipped.add(reasons.NO_SENTENCES, place)


def _json_entry(text: str, place: str) -> dict[str, Any]:
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not valid JSON: {error}") from None
    if not isinstance(entry, dict):
        raise DataError(f'{place}: expected {{"id": ..., "src": [...], "tgt": [...]}}, got {type(entry).__name__}')
    for side in ("src", "tgt"):
        sentences = entry.get(side)
        if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
            raise DataError(f"{place}: '{side}' must be a list of sentences")
    if len(entry["src"]) != len(entry["tgt"]):
        raise DataError(
            f"{place}: {len(entry['src'])} source but {len(entry['tgt'])} target sentences; "
            "tgt[i] must translate src[i]"
        )
    return entry


def _exchange_rows(path: Path, kind: str, languages: tuple[str, str], skipped: Skipped) -> Iterator[Row | None]:
    from reluformer.translation.exchange import read_units

    for number, unit in enumerate(read_units(path, kind, languages), start=1):
        if unit.draft:
            skipped.add(reasons.FUZZY, f"{path} unit {number}")
        else:
            yield Row(number, unit.source, unit.target)


def _embedded_documents(source: CorpusSource, split: Split) -> Iterator[Document]:
    from reluformer.translation.embedded import generate

    options = source.embedded
    assert options is not None
    for generated in generate(options.documents, seed=options.seed, split=split, sentences=options.sentences):
        yield generated.document
