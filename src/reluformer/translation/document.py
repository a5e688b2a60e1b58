"""Documents and their sentences: how sentence pairs become documents, what was skipped, and what a translation says.

Errors of structure (misaligned files, invalid UTF-8 or JSON) stop with file and line.
Problems of content (an empty sentence, control characters, an over-long line) are counted
by reason in a `Skipped` tally, and reading continues. Nothing is dropped silently.

A sentence without words, such as a formula, is copied and never translated. A translated sentence may come
with its alignment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reluformer.errors import DataError
from reluformer.translation.recipe import Limits

PLACES_KEPT = 5
"""A tally keeps this many places of each reason."""
# C0 and C1 controls, Unicode's line separators, and surrogates without their other half
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True)
class Document:
    """A document holds sentences in order, with their translations where they are known.

    `tgt[i]` translates `src[i]`; `tgt` is None for text that is still to be translated.

    Example:
        >>> from reluformer.translation.document import Document
        >>> Document("letter", ("Good day.", "How are you?")).tgt is None
        True
    """

    id: str
    src: tuple[str, ...]
    tgt: tuple[str, ...] | None = None


@dataclass(frozen=True)
class SentencePair:
    """A sentence pair stands at a line of a file; None is a side that is too long to keep."""

    line: int
    src: str | None
    tgt: str | None


class SkipReason(StrEnum):
    """The reasons why a corpus loses or changes a sentence or a document."""

    EMPTY = "empty sentence: pair dropped"
    CONTROL = "control characters: replaced by a space"
    TOO_LONG = "sentence over the character limit: pair dropped"
    NO_SENTENCES = "document without sentences: dropped"
    FUZZY = "draft translation (fuzzy or to be reviewed): pair dropped"
    OVER_SEGMENT = "sentence longer than a segment: pair dropped"
    MISALIGNED = "document with other sentences on the other side: dropped"
    ONE_SIDED = "document on one side only: dropped"
    COLUMNS = "row without exactly two columns: dropped"
    CUT = "document without an end for too long: cut"
    LEAKED = "document that shares a sentence with valid or test: dropped"
    COPY = "source and target are equal: pair dropped"
    COPY_KEPT = "source and target are equal: kept"
    DUPLICATE = "pair that occurred before: pair dropped"
    DUPLICATE_KEPT = "pair that occurred before: kept"
    RATIO = "one side far longer than the other: pair dropped"
    RATIO_KEPT = "one side far longer than the other: kept"
    HELD_OUT = "pair that is also in valid or test: pair dropped"
    HELD_OUT_KEPT = "pair that is also in valid or test: kept"
    NOT_NFC = "sentence not in Unicode's form NFC, mixed forms: kept"


@dataclass
class Skipped:
    """A tally counts what was skipped by reason, and keeps the first few places of each."""

    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: SkipReason, place: str) -> None:
        """Counts one case; `place` says where it is."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        kept = self.places.setdefault(reason, [])
        if len(kept) < PLACES_KEPT:
            kept.append(place)

    def to_json(self) -> dict[str, Any]:
        """Returns the tally as plain data."""
        return {str(reason): {"count": count, "places": self.places[reason]} for reason, count in self.counts.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Skipped:
        """Reads what `to_json` wrote."""
        return cls(
            {reason: int(entry["count"]) for reason, entry in data.items()},
            {reason: [str(place) for place in entry["places"]] for reason, entry in data.items()},
        )


@dataclass(frozen=True)
class DocumentAssembler:
    """An assembler cleans sentence pairs and puts them together to documents.

    Args:
        limits: How long a sentence and a document may be.
        skipped: The tally of what is dropped or changed.
        by_line: Every pair is a document of its own.
    """

    limits: Limits = field(default_factory=Limits)
    skipped: Skipped = field(default_factory=Skipped)
    by_line: bool = False

    def documents(self, pairs: Iterable[SentencePair | None], path: Path) -> Iterator[Document]:
        """Yields the documents of a file.

        Args:
            pairs: The sentence pairs of the file; None ends a document.
            path: The file, for ids and messages.

        Raises:
            DataError: A document has more than `limits.document_sentences` sentences.
        """
        open_document = _OpenDocument(path)
        for row in pairs:
            if row is None:
                yield from open_document.close(self.skipped)
                continue
            place = f"{path}:{row.line}"
            pair = self._clean_pair(row.src, row.tgt, place)
            if self.by_line:
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

    def document(self, id: str, src: Sequence[str], tgt: Sequence[str], place: str) -> Iterator[Document]:
        """Yields one document whose sentences are known, unless none of them remains."""
        places = (f"{place} sentence {index}" for index in range(1, len(src) + 1))
        kept = [pair for pair in map(self._clean_pair, src, tgt, places) if pair]
        if kept:
            sources, targets = zip(*kept, strict=True)
            yield Document(id, sources, targets)
        else:
            self.skipped.add(SkipReason.NO_SENTENCES, place)

    def _clean_pair(self, src: str | None, tgt: str | None, place: str) -> tuple[str, str] | None:
        """Returns the cleaned pair, or None when it is dropped; both are counted."""
        if src is None or tgt is None:
            self.skipped.add(SkipReason.TOO_LONG, place)
            return None
        src, tgt = self._clean(src, place), self._clean(tgt, place)
        if not src or not tgt:
            self.skipped.add(SkipReason.EMPTY, place)
            return None
        if max(len(src), len(tgt)) > self.limits.sentence_characters:
            self.skipped.add(SkipReason.TOO_LONG, place)
            return None
        return src, tgt

    def _clean(self, sentence: str, place: str) -> str:
        cleaned, replaced = _CONTROL.subn(" ", sentence)
        if replaced:
            self.skipped.add(SkipReason.CONTROL, place)
        return cleaned.strip()


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
        """Yields the document, unless it has no sentences, and begins the next."""
        if self.pairs:
            src, tgt = zip(*self.pairs, strict=True)
            yield Document(f"{self.path.name}:{self.first_line}", src, tgt)
        elif self.first_line is not None:
            skipped.add(SkipReason.NO_SENTENCES, f"{self.path}:{self.first_line}")
        self.first_line, self.pairs = None, []


Range = tuple[int, int]
"""The first character of a piece of text, and the one behind its last."""


def has_letters(text: str) -> bool:
    """Returns whether a text holds a word of any script; what has none is copied and never translated.

    A single letter of a script with capitals is no word, and neither is a formula without spaces. So `x = y²` and
    `E=mc^2` are copied. A single letter of another script, such as Chinese, is a word.

    Example:
        >>> has_letters("1,234 + 5"), has_letters("x = 2y"), has_letters("E=mc^2")
        (False, False, False)
        >>> has_letters("5 km"), has_letters("是")
        (True, True)
    """
    return any(_has_word(piece) for piece in text.split() if not is_formula(piece))


def _has_word(piece: str) -> bool:
    beside = False
    for character in piece:
        is_letter = character.isalpha()
        if is_letter and (beside or not _has_capitals(character)):
            return True
        beside = is_letter
    return False


def _has_capitals(letter: str) -> bool:
    """Returns whether a letter belongs to a script with capitals."""
    return letter.islower() or letter.isupper()


def is_formula(piece: str) -> bool:
    """Returns whether text without spaces is a formula, an assignment or a path: it holds `=`, `^` or a backslash.

    Scripts without capitals may write whole sentences without a space, so a piece with such a letter is none.

    Example:
        >>> is_formula("E=mc^2"), is_formula("\\\\frac{a}{b}"), is_formula("so"), is_formula("他说a=b")
        (True, True, False, False)
    """
    signed = any(sign in piece for sign in "=^\\")
    return signed and all(_has_capitals(character) for character in piece if character.isalpha())


@dataclass(frozen=True, eq=False)
class Alignment:
    """The source tokens that each target token of a sentence read in cross-attention."""

    source: tuple[Range, ...]
    """Where each of the S source tokens stands in the source sentence."""
    target: tuple[Range, ...]
    """Where each of the T target tokens stands in the translation."""
    weights: npt.NDArray[np.float32]
    """The share of each source token in the reads of each target token, (T, S); a row is zero if nothing was read."""

    @classmethod
    def identity(cls, text: str) -> Alignment:
        """Returns the alignment of a text with itself or with a text of the same length, character by character."""
        places = tuple((index, index + 1) for index in range(len(text)))
        return cls(places, places, np.eye(len(text), dtype=np.float32))


@dataclass(frozen=True)
class TranslatedSentence:
    """The translation of one sentence.

    Example:
        >>> TranslatedSentence("Guten Tag.").doubtful
        False
    """

    text: str
    alignment: Alignment | None = field(default=None, compare=False)
    """What the translation read; None if nobody asked for it or the model cannot tell."""
    doubtful: bool = False
    """Whether cross-attention mostly read another sentence, so that this one was translated anew by itself."""
