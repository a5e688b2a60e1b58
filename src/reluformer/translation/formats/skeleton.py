"""Skeletons and formats: the sentences are taken out of a text, and translations are put back.

A format is a codec. `skeleton` takes the sentences out of a document for translation. A
`CorpusFormat` holds both languages, and `read_corpus` reads the same files for training.

A model reads plain sentences. Inline markup, placeholders, addresses and formulas become marks of their sentence, and
`marks` places them in the translation, each exactly once. `Skeleton.fill` is the one place where this happens.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from reluformer.errors import DataError
from reluformer.translation import splitters
from reluformer.translation.document import Document, DocumentAssembler, TranslatedSentence, has_letters
from reluformer.translation.formats.marks import MOST_MARKS, Mark, place_marks
from reluformer.translation.splitters import Splitter

_SIGNS = frozenset("%{@:/=^\\")
"""One of these is in every placeholder, address and formula, and in hardly any word."""
LINE_BREAK = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]")


def on_one_line(text: str) -> str:
    """Replaces every line break, and the white space around it, by one space."""
    pieces = LINE_BREAK.split(text)
    if len(pieces) == 1:
        return text.strip()
    return " ".join(filter(None, (piece.strip() for piece in pieces)))


@dataclass
class FillReport:
    """A report counts what happened to the sentences of a text when their translations were put back."""

    sentences: int = 0
    copied: int = 0
    """The sentences without words, which were copied."""
    retranslated: int = 0
    """The sentences that first read another sentence and were translated anew by themselves."""
    marks: int = 0
    """The marks: inline markup, code, placeholders."""
    marks_by_position: int = 0
    """The marks that no word had read, so that their place is a guess."""

    @property
    def doubtful(self) -> bool:
        """Whether somebody should look at these sentences."""
        return bool(self.retranslated or self.marks_by_position)

    def add(self, *, copied: bool, doubtful: bool) -> None:
        """Counts one sentence."""
        self.sentences += 1
        self.copied += copied
        self.retranslated += doubtful

    def include(self, other: FillReport) -> None:
        """Adds the counts of another report."""
        for name, count in asdict(other).items():
            setattr(self, name, getattr(self, name) + count)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        """Returns a line for a user for each thing to tell; nothing where there is none."""
        lines = []
        if self.copied:
            lines.append(f"copied {self.copied} of {self.sentences} sentences, which hold no words")
        if self.retranslated:
            lines.append(
                f"translated {self.retranslated} of {self.sentences} sentences anew by themselves, because they had "
                "read another sentence; check them"
            )
        if self.marks_by_position:
            lines.append(
                f"placed {self.marks_by_position} of {self.marks} marks by their position, because no word had read "
                "them; check them"
            )
        return "\n".join(lines)


AnyTranslation = str | TranslatedSentence
"""The translation of a sentence, with or without its alignment."""


@dataclass(frozen=True)
class TextUnit:
    """A text unit is the place of one sentence: `raw` as it stands in the text, `source` as a model reads it."""

    raw: str
    source: str
    marks: tuple[Mark, ...] = ()
    """The marks of the sentence, properly nested, in the order of their openings."""

    def fill(self, translation: AnyTranslation, report: FillReport | None = None) -> str:
        """Returns what to write there; the raw text itself where the translation left the source as it was.

        Args:
            translation: The translation; its alignment says where marks go.
            report: Counts what happened.
        """
        given = translation if isinstance(translation, TranslatedSentence) else TranslatedSentence(translation)
        report = FillReport() if report is None else report
        is_fixed = self._is_fixed()
        report.add(copied=is_fixed or not has_letters(self.source), doubtful=given.doubtful and not is_fixed)
        report.marks += len(self.marks)
        if is_fixed or given.text == self.source:
            return self.raw
        if len(self.marks) > MOST_MARKS:
            report.marks_by_position += len(self.marks)
            return self.raw
        if not self.marks:
            return self.adapt(self.escape(on_one_line(given.text)))
        text = LINE_BREAK.sub(" ", given.text)  # one character for one, so that the alignment still fits
        fixed = self._fixed_words()

        def escape(piece: str) -> str:
            for word in fixed:  # a copy too many, as the mark has its place
                piece = piece.replace(f" {word}", "").replace(word, "")
            return self.escape(piece)

        written, by_position = place_marks(self.source, text, self.marks, given.alignment, escape)
        report.marks_by_position += by_position
        return self.adapt(written.strip())

    def _is_fixed(self) -> bool:
        """Returns whether all words are code, placeholders or addresses, so that nothing is to be translated."""
        own, cursor = [], 0
        for mark in self.marks:
            if mark.verbatim:
                own.append(self.source[cursor : mark.start])
                cursor = mark.end
        return cursor > 0 and not any(map(str.isalnum, "".join([*own, self.source[cursor:]])))

    def _fixed_words(self) -> list[str]:
        """Returns the placeholders and addresses that occur in the sentence as marks alone, longest first."""
        words = [self.source[mark.start : mark.end] for mark in self.marks if mark.verbatim]
        counts = Counter(word for word in words if not _SIGNS.isdisjoint(word))
        return sorted((word for word, count in counts.items() if self.source.count(word) == count), key=len)[::-1]

    def escape(self, text: str) -> str:
        """Returns plain text of a translation as the format wants it written."""
        return text

    def adapt(self, written: str) -> str:
        """Returns the finished translation, which is on one line, as the format wants it where it stands."""
        return written


TextPart = str | TextUnit
"""A part of a text is literal text or a text unit."""


def filled(
    parts: Iterable[TextPart], translations: Iterator[AnyTranslation], report: FillReport | None = None
) -> Iterator[str]:
    """Yields the parts of a text with one of `translations` in place of each text unit."""
    for part in parts:
        yield part.fill(next(translations), report) if isinstance(part, TextUnit) else part


class Skeleton(ABC):
    """A skeleton is a text without its sentences: where they stood, and all that stood between them."""

    documents: tuple[Document, ...]
    """The sentences to translate, grouped by the documents that they belong to."""
    has_marks = False
    """Whether a sentence has marks, so that its translation needs an alignment."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """Returns the sentences of all documents in order; `fill` wants a translation of each."""
        return tuple(sentence for document in self.documents for sentence in document.src)

    def fill(self, translations: Sequence[AnyTranslation], report: FillReport | None = None) -> str:
        """Returns the text with translations in place of its sentences.

        Args:
            translations: One for each sentence, in order; it may be empty. Their alignments say where marks go.
            report: Counts what happened to the sentences.

        Raises:
            DataError: The number of translations is not that of the sentences.
        """
        expected = sum(len(document.src) for document in self.documents)
        if len(translations) != expected:
            raise DataError(
                f"the text has {expected} sentences but {len(translations)} translations were given; "
                "give exactly one for each, in order (it may be an empty string)"
            )
        return self._fill(iter(translations), FillReport() if report is None else report)

    @abstractmethod
    def _fill(self, translations: Iterator[AnyTranslation], report: FillReport) -> str: ...


def fill_all(
    skeletons: Iterable[Skeleton], documents: Iterable[Sequence[AnyTranslation]], report: FillReport | None = None
) -> list[str]:
    """Fills many skeletons with the translations of all their documents.

    Args:
        skeletons: The texts without their sentences.
        documents: The translated sentences of each document of each skeleton, in order.
        report: Counts what happened to the sentences.

    Returns:
        The translated texts.
    """
    remaining = iter(documents)
    return [
        skeleton.fill([sentence for _ in skeleton.documents for sentence in next(remaining)], report)
        for skeleton in skeletons
    ]


def alignment_needs(skeletons: Iterable[Skeleton]) -> list[bool]:
    """Returns for each document of each skeleton, in order, whether its translations need alignments."""
    return [skeleton.has_marks for skeleton in skeletons for _ in skeleton.documents]


class TextSkeleton(Skeleton):
    """A skeleton of literal text and text units in turn; literal text comes back byte for byte."""

    def __init__(self, parts: Sequence[TextPart], documents: Sequence[Document] | None = None) -> None:
        self.parts = tuple(parts)
        if documents is None:
            sources = tuple(part.source for part in parts if isinstance(part, TextUnit))
            documents = [Document("1", sources)] if sources else []
        self.documents = tuple(documents)
        self.has_marks = any(isinstance(part, TextUnit) and bool(part.marks) for part in parts)

    def stream(self, translations: Iterable[AnyTranslation], report: FillReport | None = None) -> Iterator[str]:
        """Yields the filled text piece by piece, each as soon as its translation is there."""
        return filled(self.parts, iter(translations), report)

    def _fill(self, translations: Iterator[AnyTranslation], report: FillReport) -> str:
        return "".join(self.stream(translations, report))


class TextFormat(ABC):
    """A format knows how a kind of text holds sentences.

    Args:
        splitter: The sentence splitter of running text, by name or as an object.
        source: The language of the text, as a code such as `en`.
        target: The language of the translation.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, splitter: str | Splitter = "simple", *, source: str = "en", target: str = "de") -> None:
        self.splitter = splitters.get(splitter, source)
        self.source = source
        self.target = target

    def parse(self, text: str) -> tuple[tuple[str, ...], Skeleton]:
        """Returns the sentences to translate, and the skeleton to fill with their translations.

        Example:
            >>> from reluformer.translation import formats
            >>> sentences, skeleton = formats.get("markdown").parse("# Title\\n\\nUse `ls` now.\\n")
            >>> sentences
            ('Title', 'Use ls now.')
            >>> skeleton.fill(["Titel", "Nimm jetzt ls."])
            '# Titel\\n\\nNimm jetzt `ls`.\\n'
        """
        skeleton = self.skeleton(text)
        return skeleton.sentences, skeleton

    @abstractmethod
    def skeleton(self, text: str) -> Skeleton:
        """Returns the skeleton alone, which knows the sentences too.

        Raises:
            DataError: The text is not of this format; the message has the line where it is known.
        """


class CorpusFormat(TextFormat):
    """A corpus format holds sentences with their translations, so it can be trained on, too."""

    @abstractmethod
    def read_corpus(self, files: Sequence[Path], assembler: DocumentAssembler) -> Iterator[Document]:
        """Reads aligned documents, one at a time.

        Args:
            files: The file, or the source and the target file of an aligned pair; `.gz` is unpacked.
            assembler: Cleans the sentence pairs and counts what is skipped.

        Raises:
            DataError: The files are damaged or misaligned; the message has file and line.
        """
