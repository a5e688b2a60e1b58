"""Sentence splitters cut running text into sentences, by name; none of them loses a character.

simple   rules for English and German that need no other package
none     every line is a sentence
pysbd    the package pysbd, for its languages

The rules of `simple`: a sentence can end behind `.`, `!`, `?` or an ellipsis, with quotes and
brackets that close there, before white space. A blank line always ends a sentence. The
sentence continues where the next word begins in lower case. After a lone full stop it also
continues behind

    Mr. Dr. z.B. d.h. bzw.      what never ends a sentence
    No. Nr. Art. S. + number    what counts something
    U.S. etc. usw. J.           unless a word follows that likes to begin sentences
    am 3. Mai, im XX. Jh.       German ordinals: before a month or behind an article
    1. Foo, a. Foo              the number of a list item

Example:
    >>> from reluformer.translation import splitters
    >>> split = splitters.get("simple").split("Dr. Smith came. He sat down.")
    >>> split.sentences
    ('Dr. Smith came.', 'He sat down.')
    >>> split.separators
    ('', ' ', '')
    >>> split.join()
    'Dr. Smith came. He sat down.'
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from reluformer.errors import ArgumentError, UnknownNameError, nearest

_STOPS = ".!?…。！？"
_CLOSING = "\"'”’“‘»«›‹)]}"
_OPENING = "\"'“”„‚‘’«»‹›([{¿¡–—-"
_BLANK_LINE = r"[^\S\n]*\n[^\S\n]*\n"
_END = re.compile(rf"(?<![{_STOPS}])[{_STOPS}]++[{re.escape(_CLOSING)}]*+(?=\s)|(?<=\S)(?={_BLANK_LINE})")
_BREAK = re.compile(_BLANK_LINE)
_OPENED = re.compile(rf"[{re.escape(_OPENING)}]")
_NEXT_WORD = re.compile(rf"\s+[{re.escape(_OPENING)}]*\s*(\w*)")
_SINGLE_LETTERS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
_ROMAN = re.compile(r"[IVXLC]+")
_LOOKBACK = 60


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEVER_LAST = _words(
    "mr mrs ms mx dr prof st messrs mme mlle hr hrn fr frl sen rep gen col maj lt capt cpt sgt rev hon gov pres "
    "vs cf viz approx ca vgl bzw bspw evtl ggf inkl exkl sog gem bes dipl ing geb hrsg hg jew resp "
    "e.g i.e z.b d.h u.a v.a i.d.r z.t m.e o.g s.o s.u i.a u.u z.zt z.hd u.z i.v i.d i.s"
)
_BEFORE_NUMBER = _words("no nos nr art abs s p pp fig figs abb bd bde kap vol ch sec eq tab ziff tel anm az")
_MAY_BE_LAST = _words(
    "etc usw usf inc ltd co corp bros jr sr dept univ assn ave blvd str mio mrd tsd jh jan feb aug sept sep oct okt "
    "nov dec dez al ph.d o.ä u.ä e.v"
)
_SENTENCE_STARTERS = _words(
    "the a an this that these those he she it they we you i his her its their our my there here in on at as if when "
    "while after before since for from by with but and or so yet however moreover therefore then thus also what who "
    "why how where which no not one some many most all "
    "der die das ein eine einer eines dieser diese dieses er sie es wir ihr ich man sein seine unser unsere mein meine "
    "im am um auf bei nach vor seit für von mit aber und oder denn doch jedoch daher deshalb dann danach damit auch "
    "was wer warum wie wo wenn als weil ob dass da nun so hier dort kein keine nicht alle viele einige"
)
_MONTHS = _words(
    "januar jänner februar märz april mai juni juli august september oktober november dezember "
    "jan feb mär apr jun jul aug sep sept okt nov dez"
)
_BEFORE_ORDINAL = _words(
    "am vom zum zur im der die das den dem des beim ins ab bis seit und oder sein seine seinen seinem seiner ihr ihre "
    "ihren ihrem ihrer mein meine meinen meinem meiner unser unsere unserem unseren unserer dieser diesem diesen jeder "
    "jedem jeden jede jedes kein keine ein eine einen einem einer erst zu"
)


def _possible_ends(text: str) -> Iterator[int]:
    """Yields the offsets behind which a sentence may end, in order."""
    for match in _END.finditer(text):
        yield match.end()


def _is_sentence_end(text: str, end: int) -> bool:
    """Returns whether a sentence ends at the possible end `end`."""
    before = text[max(0, end - _LOOKBACK) : end].rstrip(_CLOSING)
    if not before.endswith(tuple(_STOPS)) or _BREAK.match(text, end):
        return True
    following = _NEXT_WORD.match(text, end)
    next_word = following[1] if following else ""
    if next_word[:1].islower():
        return False
    if not before.endswith(".") or before.endswith(("..", "!.", "?.", "….")):
        return True
    return not _goes_on(before[:-1], next_word)


def _goes_on(before: str, next_word: str) -> bool:
    """Returns whether the lone full stop behind `before` belongs to an abbreviation or ordinal."""
    previous, word = ["", "", *re.split(r"\s+", before)][-2:]
    word = _OPENED.split(word)[-1]
    key, next_key = word.lower(), next_word.lower()
    spaced = previous.lower() + key if re.fullmatch(r"(?:[^\W\d_]\.)+", previous) else ""
    if key in _NEVER_LAST or spaced in _NEVER_LAST:
        return True
    if key in _BEFORE_NUMBER:
        return next_word[:1].isdigit() or bool(_ROMAN.fullmatch(next_word))
    if _numbers_an_item(previous, word):
        return True
    if (word.isdigit() and len(word) <= 2) or _ROMAN.fullmatch(word):
        if next_key in _MONTHS or previous.lower() in _BEFORE_ORDINAL:
            return True
        return len(word) == 1 and word.isalpha() and next_key not in _SENTENCE_STARTERS
    if key in _MAY_BE_LAST or _SINGLE_LETTERS.fullmatch(word):
        return next_key not in _SENTENCE_STARTERS
    return False


def _numbers_an_item(previous: str, word: str) -> bool:
    """Returns whether a sentence begins with `word`, as in `1. Foo` or `a. Foo`."""
    if not ((word.isdigit() and len(word) <= 2) or (len(word) == 1 and word.isalpha())):
        return False
    abbreviated = previous[:-1].lower() in _NEVER_LAST | _BEFORE_NUMBER | _MAY_BE_LAST or len(previous) == 2
    return not previous or (previous.endswith(tuple(_STOPS)) and not abbreviated)


@dataclass(frozen=True)
class SplitText:
    """A split text holds the sentences without the white space around them, and that white space.

    `separators[i]` stands before sentence i, the last separator behind all sentences.
    """

    sentences: tuple[str, ...]
    separators: tuple[str, ...]

    def join(self, sentences: Sequence[str] | None = None) -> str:
        """Returns the text again, with other sentences in their places if some are given."""
        filled = self.sentences if sentences is None else sentences
        if len(filled) != len(self.sentences):
            raise ArgumentError(f"expected {len(self.sentences)} sentences, got {len(filled)}")
        pairs = zip(self.separators, filled, strict=False)
        return "".join(separator + sentence for separator, sentence in pairs) + self.separators[-1]

    def __iter__(self) -> Iterator[tuple[str, bool]]:
        """Yields all pieces in order, each with whether it is a sentence; empty separators are left out."""
        for separator, sentence in zip(self.separators, self.sentences, strict=False):
            if separator:
                yield separator, False
            yield sentence, True
        if self.separators[-1]:
            yield self.separators[-1], False


class Splitter(Protocol):
    """A sentence splitter has a name and a lossless `split`."""

    name: str

    def split(self, text: str) -> SplitText:
        """Splits `text` into sentences, none of which is blank."""


def split_at(text: str, ends: Iterable[int]) -> SplitText:
    """Cuts `text` behind the given ascending offsets; blank pieces become part of a separator."""
    spans: list[tuple[int, int]] = []
    start = 0
    for end in (*ends, len(text)):
        piece = text[start:end]
        if not piece.isspace() and piece:
            spans.append((end - len(piece.lstrip()), start + len(piece.rstrip())))
        start = end
    edges = [0, *(offset for span in spans for offset in span), len(text)]
    separators = tuple(text[low:high] for low, high in zip(edges[::2], edges[1::2], strict=True))
    return SplitText(tuple(text[low:high] for low, high in spans), separators)


class SimpleSplitter:
    """Applies the rules for English and German that the module describes."""

    name = "simple"

    def split(self, text: str) -> SplitText:
        return split_at(text, (end for end in _possible_ends(text) if _is_sentence_end(text, end)))


class LineSplitter:
    """Takes every line for a sentence, whatever it holds."""

    name = "none"

    def split(self, text: str) -> SplitText:
        return split_at(text, (match.end() for match in re.finditer(r"\r\n?|\n", text)))


class PysbdSplitter:
    """Applies the rules of the package pysbd for one language."""

    name = "pysbd"

    def __init__(self, language: str) -> None:
        pysbd = _optional("pysbd", "pip install pysbd")
        try:
            self._segmenter = pysbd.Segmenter(language=language, clean=False)
        except ValueError as error:
            raise ArgumentError(f"splitter 'pysbd': {error}") from None

    def split(self, text: str) -> SplitText:
        return split_at(text, self._ends(text))

    def _ends(self, text: str) -> Iterator[int]:
        """Yields the ends of the pieces that pysbd returns; a piece that it changed is skipped, so nothing is lost."""
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
    "simple": lambda language: SimpleSplitter(),
    "none": lambda language: LineSplitter(),
    "pysbd": PysbdSplitter,
}


def names() -> tuple[str, ...]:
    """Returns the names of all splitters, including those that need another package."""
    return tuple(_factories)


def get(splitter: str | Splitter, language: str = "en") -> Splitter:
    """Returns a splitter by its name.

    Args:
        splitter: A name out of `names()`, or a splitter, which is returned as it is.
        language: The language of the text; `simple` and `none` ignore it.

    Raises:
        UnknownNameError: No splitter has this name.
        ArgumentError: The splitter needs a package that is missing, or does not know the language.
    """
    if not isinstance(splitter, str):
        return splitter
    if splitter not in _factories:
        raise UnknownNameError(f"unknown splitter '{splitter}'; {nearest(splitter, _factories)}")
    return _factories[splitter](language)
