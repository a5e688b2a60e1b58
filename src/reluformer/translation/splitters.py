"""Where sentences end: splitters by name, none of which loses a character.

simple   rules for English and German, without any other package
none     every line is a sentence
pysbd    the package pysbd, for its languages

split = splitters.get("simple").split("Dr. Smith came. He sat down.")
split.sentences       # ("Dr. Smith came.", "He sat down.")
split.separators      # ("", " ", "")
split.join()          # the text again, exactly
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from reluformer.errors import ArgumentError, UnknownNameError, nearest
from reluformer.translation.sentence_ends import is_sentence_end, possible_ends


@dataclass(frozen=True)
class Split:
    """Sentences without the white space around them, and that white space.

    `separators[i]` stands before sentence i, the last one after all of them.
    """

    sentences: tuple[str, ...]
    separators: tuple[str, ...]

    def join(self, sentences: Sequence[str] | None = None) -> str:
        """The text again, with other sentences in their places if some are given."""
        filled = self.sentences if sentences is None else sentences
        if len(filled) != len(self.sentences):
            raise ArgumentError(f"expected {len(self.sentences)} sentences, got {len(filled)}")
        pairs = zip(self.separators, filled, strict=False)
        return "".join(separator + sentence for separator, sentence in pairs) + self.separators[-1]

    def __iter__(self) -> Iterator[tuple[str, bool]]:
        """All pieces in order, each with whether it is a sentence; empty separators are left out."""
        for separator, sentence in zip(self.separators, self.sentences, strict=False):
            if separator:
                yield separator, False
            yield sentence, True
        if self.separators[-1]:
            yield self.separators[-1], False


class Splitter(Protocol):
    """Anything with a name and a lossless `split`."""

    name: str

    def split(self, text: str) -> Split:
        """The sentences of `text`; none of them is blank."""


def split_at(text: str, ends: Iterable[int]) -> Split:
    """Cut `text` behind the given rising offsets; blank pieces become part of a separator."""
    spans: list[tuple[int, int]] = []
    start = 0
    for end in (*ends, len(text)):
        piece = text[start:end]
        if not piece.isspace() and piece:
            spans.append((end - len(piece.lstrip()), start + len(piece.rstrip())))
        start = end
    edges = [0, *(offset for span in spans for offset in span), len(text)]
    separators = tuple(text[low:high] for low, high in zip(edges[::2], edges[1::2], strict=True))
    return Split(tuple(text[low:high] for low, high in spans), separators)


class Simple:
    """Our own rules for English and German; see `sentence_ends`."""

    name = "simple"

    def split(self, text: str) -> Split:
        return split_at(text, (end for end in possible_ends(text) if is_sentence_end(text, end)))


class EveryLine:
    """A line is a sentence, whatever it holds."""

    name = "none"

    def split(self, text: str) -> Split:
        return split_at(text, (match.end() for match in re.finditer(r"\r\n?|\n", text)))


class Pysbd:
    """The rules of the package pysbd for one language."""

    name = "pysbd"

    def __init__(self, language: str) -> None:
        pysbd = _optional("pysbd", "pip install pysbd")
        try:
            self._segmenter = pysbd.Segmenter(language=language, clean=False)
        except ValueError as error:
            raise ArgumentError(f"splitter 'pysbd': {error}") from None

    def split(self, text: str) -> Split:
        return split_at(text, self._ends(text))

    def _ends(self, text: str) -> Iterator[int]:
        """pysbd returns pieces of the text; one that it changed is skipped, so nothing is lost."""
        cursor = 0
        for piece in self._segmenter.segment(text):
            start = text.find(piece.strip(), cursor)
            if start >= 0 and piece.strip():
                cursor = start + len(piece.strip())
                yield cursor


def _optional(package: str, remedy: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ArgumentError(
            f"splitter '{package}' needs the package {package}, which is not installed: {remedy}"
        ) from None


_factories: dict[str, Callable[[str], Splitter]] = {
    "simple": lambda language: Simple(),
    "none": lambda language: EveryLine(),
    "pysbd": Pysbd,
}


def names() -> tuple[str, ...]:
    """Every splitter that can be named, those that need another package included."""
    return tuple(_factories)


def get(splitter: str | Splitter, language: str = "en") -> Splitter:
    """A splitter by its name, or as it is; `simple` and `none` do without the language."""
    if not isinstance(splitter, str):
        return splitter
    if splitter not in _factories:
        raise UnknownNameError(f"unknown splitter '{splitter}'; {nearest(splitter, _factories)}")
    return _factories[splitter](language)
