"""HTML: the words are translated; tags, comments, scripts and attributes stay as they are.

Running text ends where a block ends (a paragraph, a cell, a line break). Inline markup
inside of a sentence passes through a model as `skeleton` describes: `<b>word</b>` as a label
that is translated, code and other tags whole. Entities are read as the characters that
they stand for; a translation is escaped again.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

from reluformer.translation.formats.skeleton import (
    ADDRESS,
    MARK,
    MarkedUnit,
    Skeleton,
    Span,
    TextFormat,
    TextPart,
    TextSkeleton,
    TextUnit,
    split_units,
)

_KEPT = "script|style|pre|textarea|template|svg|math|noscript|iframe|object"
_INLINE = re.compile(
    "a|abbr|acronym|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|img|ins|kbd|label|mark|q|s|samp|small|"
    "span|strike|strong|sub|sup|time|tt|u|var|wbr",
    re.IGNORECASE,
)
_ATTRIBUTES = r"(?:[^<>\"']|\"[^\"]*\"|'[^']*')*+"
_TAG = rf"</?([A-Za-z][\w:-]*+){_ATTRIBUTES}>"
_MARKUP = re.compile(
    rf"<!--.*?(?:-->|\Z)|<({_KEPT})\b{_ATTRIBUTES}>.*?(?:</\1\s*>|\Z)|<[!?][^<>]*>|{_TAG}", re.DOTALL | re.IGNORECASE
)
_WHOLE = re.compile(r"<(code|kbd|samp|var)\b[^<>]*+>[^<>]*+</\1\s*+>", re.IGNORECASE)
_PAIR = re.compile(r"<([A-Za-z][\w:-]*+)\b[^<>]*+>(?P<label>[^\w<>]*+\w[^<>]*+)</\1\s*+>", re.IGNORECASE)
_LONG_REFERENCE = re.compile(r"&#[0-9]{10,}+;?")
_OTHER = re.compile(rf"{_TAG}|{MARK.pattern}|{ADDRESS}")


def html_spans(text: str) -> list[Span]:
    """Finds what must survive in a stretch of running text: inline tags, code, addresses."""
    spans: list[Span] = []
    taken = bytearray(len(text))
    for pattern in (_WHOLE, _PAIR, _OTHER):
        for match in pattern.finditer(text):
            start, end = match.span()
            if any(taken[start:end]):
                continue
            label = match.span("label") if pattern is _PAIR and not _OTHER.search(match["label"]) else None
            spans.append(Span(start, end, label))
            taken[start:end] = b"\x01" * (end - start)
    return sorted(spans, key=lambda span: span.start)


@dataclass(frozen=True)
class HtmlUnit(MarkedUnit):
    """A unit of HTML escapes its translation, which must not turn into markup."""

    def adapt(self, translation: str) -> str:
        return super().adapt(html.escape(translation, quote=False))


class Html(TextFormat):
    """HTML takes a page, or a piece of one, for one document."""

    name = "html"
    suffixes = (".html", ".htm")

    def skeleton(self, text: str) -> Skeleton:
        parts: list[TextPart] = []
        for stretch, is_running in _stretches(text):
            parts += self._units(stretch) if is_running else [stretch]
        return TextSkeleton(parts)

    def _units(self, stretch: str) -> Iterator[TextPart]:
        for part in split_units(stretch, self.splitter, html_spans):
            if isinstance(part, TextUnit):
                spans = part.spans if isinstance(part, MarkedUnit) else ()
                yield HtmlUnit(part.raw, _unescape(part.source), spans)
            else:
                yield part


def _unescape(text: str) -> str:
    """Replaces entities by their characters; a number of too many digits becomes U+FFFD, as in browsers."""
    return html.unescape(_LONG_REFERENCE.sub("\ufffd", text))


def _stretches(text: str) -> Iterator[tuple[str, bool]]:
    """Yields the pieces of a text: running text with its inline tags (True), and everything else."""
    cursor = 0
    for match in _MARKUP.finditer(text):
        name = match[2]
        if name and _INLINE.fullmatch(name):
            continue
        yield text[cursor : match.start()], True
        yield match[0], False
        cursor = match.end()
    yield text[cursor:], True
