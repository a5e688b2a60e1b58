"""Skeletons and formats: the sentences are taken out of a text, and translations are put back.

A format is a codec. `skeleton` takes the sentences out of a document for translation. A
`CorpusFormat` holds both languages, and `read_corpus` reads the same files for training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from reluformer.errors import DataError
from reluformer.translation import splitters
from reluformer.translation.document import Document, DocumentAssembler
from reluformer.translation.formats.lines import on_one_line
from reluformer.translation.splitters import Splitter


@dataclass(frozen=True)
class TextUnit:
    """A text unit is the place of one sentence: `raw` as it stands in the text, `source` as a model reads it."""

    raw: str
    source: str

    def fill(self, translation: str) -> str:
        """Returns what to write there; the raw text itself where the translation left the source as it was."""
        return self.raw if translation == self.source else self.adapt(on_one_line(translation))

    def adapt(self, translation: str) -> str:
        """Returns the translation, which is on one line, as the format wants it written."""
        return translation


TextPart = str | TextUnit
"""A part of a text is literal text or a text unit."""


def filled(parts: Iterable[TextPart], translations: Iterator[str]) -> Iterator[str]:
    """Yields the parts of a text with one of `translations` in place of each text unit."""
    for part in parts:
        yield part.fill(next(translations)) if isinstance(part, TextUnit) else part


class Skeleton(ABC):
    """A skeleton is a text without its sentences: where they stood, and all that stood between them."""

    documents: tuple[Document, ...]
    """The sentences to translate, grouped by the documents that they belong to."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """Returns the sentences of all documents in order; `fill` wants a translation of each."""
        return tuple(sentence for document in self.documents for sentence in document.src)

    def fill(self, translations: Sequence[str]) -> str:
        """Returns the text with translations in place of its sentences.

        Args:
            translations: One for each sentence, in order; it may be empty.

        Raises:
            DataError: The number of translations is not that of the sentences.
        """
        expected = sum(len(document.src) for document in self.documents)
        if len(translations) != expected:
            raise DataError(
                f"the text has {expected} sentences but {len(translations)} translations were given; "
                "give exactly one for each, in order (it may be an empty string)"
            )
        return self._fill(iter(translations))

    @abstractmethod
    def _fill(self, translations: Iterator[str]) -> str: ...


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

    def stream(self, translations: Iterable[str]) -> Iterator[str]:
        """Yields the filled text piece by piece, each as soon as its translation is there."""
        return filled(self.parts, iter(translations))

    def _fill(self, translations: Iterator[str]) -> str:
        return "".join(self.stream(translations))


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
