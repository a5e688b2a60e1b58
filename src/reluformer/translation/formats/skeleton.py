"""Skeletons and formats: the sentences are taken out of a text, and translations are put back.

A format is a codec. `skeleton` takes the sentences out of a document for translation. A
`CorpusFormat` holds both languages, and `read_corpus` reads the same files for training.

A model reads `[1]` in place of a whole span, and `[1]label[/1]` for a link, whose label
is to be translated. Text that looks like such a mark is itself protected. Afterwards the
marks that survived are turned back; a span whose mark was lost is put behind the
sentence as it was in the source, so that no code and no link target ever disappears.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from reluformer.errors import DataError
from reluformer.translation import splitters
from reluformer.translation.document import Document, DocumentAssembler
from reluformer.translation.sentence import has_letters
from reluformer.translation.splitters import Splitter

_LINE_BREAK = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]")
MARK = re.compile(r"\[ ?(?P<close>/?) ?(?P<number>\d{1,9}) ?\]")
TAG = r"</?[A-Za-z][^<>]*>"
ADDRESS = (
    r"(?:(?:https?|ftp)://|www\.)[^\s<>]*[^\s<>.,;:!?'\")\]}*_]"
    r"|(?<![\w.+-])[\w.+-]{1,64}+@[\w-]+(?:\.[\w-]+)+"
)


def on_one_line(text: str) -> str:
    """Replaces every line break, and the white space around it, by one space."""
    pieces = _LINE_BREAK.split(text)
    if len(pieces) == 1:
        return text.strip()
    return " ".join(filter(None, (piece.strip() for piece in pieces)))


@dataclass
class FillReport:
    """A report counts what happened to the sentences of a text when their translations were put back."""

    sentences: int = 0
    copied: int = 0
    """The sentences without letters, which were copied."""

    def add(self, source: str) -> None:
        """Counts one sentence."""
        self.sentences += 1
        self.copied += not has_letters(source)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        """Returns one line for a user, or nothing where there is nothing to tell."""
        return f"copied {self.copied} of {self.sentences} sentences, which have no letters" if self.copied else ""


@dataclass(frozen=True)
class TextUnit:
    """A text unit is the place of one sentence: `raw` as it stands in the text, `source` as a model reads it."""

    raw: str
    source: str

    def fill(self, translation: str, report: FillReport | None = None) -> str:
        """Returns what to write there; the raw text itself where the translation left the source as it was."""
        if report is not None:
            report.add(self.source)
        return self.raw if translation == self.source else self.adapt(on_one_line(translation))

    def adapt(self, translation: str) -> str:
        """Returns the translation, which is on one line, as the format wants it written."""
        return translation


TextPart = str | TextUnit
"""A part of a text is literal text or a text unit."""


def filled(parts: Iterable[TextPart], translations: Iterator[str], report: FillReport | None = None) -> Iterator[str]:
    """Yields the parts of a text with one of `translations` in place of each text unit."""
    for part in parts:
        yield part.fill(next(translations), report) if isinstance(part, TextUnit) else part


class Skeleton(ABC):
    """A skeleton is a text without its sentences: where they stood, and all that stood between them."""

    documents: tuple[Document, ...]
    """The sentences to translate, grouped by the documents that they belong to."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """Returns the sentences of all documents in order; `fill` wants a translation of each."""
        return tuple(sentence for document in self.documents for sentence in document.src)

    def fill(self, translations: Sequence[str], report: FillReport | None = None) -> str:
        """Returns the text with translations in place of its sentences.

        Args:
            translations: One for each sentence, in order; it may be empty.
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
    def _fill(self, translations: Iterator[str], report: FillReport) -> str: ...


def fill_all(skeletons: Iterable[Skeleton], documents: Iterable[Sequence[str]]) -> list[str]:
    """Fills many skeletons with the translations of all their documents.

    Args:
        skeletons: The texts without their sentences.
        documents: The translated sentences of each document of each skeleton, in order.

    Returns:
        The translated texts.
    """
    remaining = iter(documents)
    return [
        skeleton.fill([sentence for _ in skeleton.documents for sentence in next(remaining)]) for skeleton in skeletons
    ]


class TextSkeleton(Skeleton):
    """A skeleton of literal text and text units in turn; literal text comes back byte for byte."""

    def __init__(self, parts: Sequence[TextPart], documents: Sequence[Document] | None = None) -> None:
        self.parts = tuple(parts)
        if documents is None:
            sources = tuple(part.source for part in parts if isinstance(part, TextUnit))
            documents = [Document("1", sources)] if sources else []
        self.documents = tuple(documents)

    def stream(self, translations: Iterable[str], report: FillReport | None = None) -> Iterator[str]:
        """Yields the filled text piece by piece, each as soon as its translation is there."""
        return filled(self.parts, iter(translations), report)

    def _fill(self, translations: Iterator[str], report: FillReport) -> str:
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
            ('Title', 'Use [1] now.')
            >>> skeleton.fill(["Titel", "Nimm jetzt [1]."])
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


@dataclass(frozen=True)
class Span:
    """A span protects `start:end` of a text. A link also has a label inside, which is not protected."""

    start: int
    end: int
    label: tuple[int, int] | None = None


SpanFinder = Callable[[str], Sequence[Span]]


def no_spans(text: str) -> Sequence[Span]:
    """Returns no spans, for text in which nothing is protected."""
    return ()


@dataclass(frozen=True)
class MarkedUnit(TextUnit):
    """A text unit whose source holds marks: `spans[k]` stands for the marks numbered k + 1."""

    spans: tuple[tuple[str, str | None, str], ...] = ()
    """Opening, source label, closing; a span without a label is all opening."""

    def adapt(self, translation: str) -> str:
        return restore(translation, self.spans) if self.spans else translation


def split_units(text: str, splitter: Splitter, find_spans: SpanFinder = no_spans) -> list[TextPart]:
    """Splits running text into text units, one for each sentence, and the literal text between them.

    A piece without a letter or digit of its own (a rule, an emoji, a lone link target) is
    no sentence.

    Args:
        text: A stretch of running text.
        splitter: The sentence splitter.
        find_spans: Finds the protected spans, in order and without overlap.

    Returns:
        Parts whose raw text, joined, is `text`.
    """
    if not text or text.isspace():
        return [text]
    spans = find_spans(text)
    shadow = _shadow(text, spans)
    parts: list[TextPart] = []
    start = following = 0
    for piece, is_sentence in splitter.split(shadow):
        end = start + len(piece)
        first = following
        while following < len(spans) and spans[following].start < end:
            following += 1
        inside = spans[first:following]
        if is_sentence and _has_words(text, start, end, inside):
            parts.append(_unit(text, start, end, inside))
        else:
            parts.append(text[start:end])
        start = end
    return parts


def _shadow(text: str, spans: Sequence[Span]) -> str:
    """Returns a text as long as `text` with letters in place of the spans, so that no splitter cuts them."""
    pieces, cursor = [], 0
    for span in spans:
        filler = "Q" * (span.end - span.start)
        if span.label and text[span.label[1] - 1] in ".!?":
            filler = filler[:-1] + "."
        pieces += [text[cursor : span.start], filler]
        cursor = span.end
    return "".join([*pieces, text[cursor:]])


def _has_words(text: str, start: int, end: int, spans: Sequence[Span]) -> bool:
    cursor = start
    for span in spans:
        label = text[slice(*span.label)] if span.label else ""
        if any(map(str.isalnum, text[cursor : span.start] + label)):
            return True
        cursor = span.end
    return any(map(str.isalnum, text[cursor:end]))


def _unit(text: str, start: int, end: int, spans: Sequence[Span]) -> TextUnit:
    raw = text[start:end]
    pieces: list[str] = []
    protected: list[tuple[str, str | None, str]] = []
    cursor = start
    for number, span in enumerate(spans, 1):
        pieces.append(text[cursor : span.start])
        if span.label is None:
            pieces.append(f"[{number}]")
            protected.append((text[span.start : span.end], None, ""))
        else:
            low, high = span.label
            pieces.append(f"[{number}]{text[low:high]}[/{number}]")
            protected.append((text[span.start : low], text[low:high], text[high : span.end]))
        cursor = span.end
    source = on_one_line("".join([*pieces, text[cursor:end]]))
    return MarkedUnit(raw, source, tuple(protected)) if protected else TextUnit(raw, source)


def restore(translation: str, spans: Sequence[tuple[str, str | None, str]]) -> str:
    """Turns the marks in `translation` back into spans; those without marks follow behind."""
    marks: dict[tuple[str, int], re.Match[str]] = {}
    for match in MARK.finditer(translation):
        marks.setdefault((match["close"], int(match["number"])), match)
    replacement: dict[int, str] = {}
    lost = []
    for number, (opening, label, closing) in enumerate(spans, 1):
        first, last = marks.get(("", number)), marks.get(("/", number))
        if label is None and first:
            replacement[first.start()] = opening
        elif first and last and first.end() <= last.start():
            replacement[first.start()], replacement[last.start()] = opening, closing
        else:
            lost.append(on_one_line(opening + (label or "") + closing))
    text = MARK.sub(lambda match: replacement.get(match.start(), ""), translation)
    return " ".join([text.strip(), *lost]).strip()
