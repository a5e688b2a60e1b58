"""HTML: the words are translated; tags, comments, scripts and attributes stay as they are.

Running text ends where a block ends (a paragraph, a cell, a line break). A model reads the plain
sentences; inline elements are marks of their sentence (see `marks`), and code is copied. Entities are read
as the characters that they stand for; a translation is escaped again.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

from reluformer.translation.formats.skeleton import Skeleton, TextFormat, TextPart, TextSkeleton, TextUnit
from reluformer.translation.formats.spans import ADDRESS, Span, pair_tags, split_units

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
_VOID = frozenset(("img", "wbr", "br", "input"))
_CODE = frozenset(("code", "kbd", "samp", "var"))
_LONG_REFERENCE = re.compile(r"&#[0-9]{10,}+;?")
_INLINE_MARKUP = re.compile(
    rf"<(?P<close>/?)(?P<name>[A-Za-z][\w:-]*+){_ATTRIBUTES}>|(?P<reference>&#?\w{{1,5000}}+;?)|{ADDRESS}"
)


def html_spans(text: str) -> list[Span]:
    """Finds the marks in a stretch of running text (inline elements, code, addresses), and the references."""
    spans: list[Span] = []
    tags: list[tuple[int, int, str, str]] = []
    for match in _INLINE_MARKUP.finditer(text):
        if match["name"]:
            tags.append((*match.span(), match["name"].lower(), _kind(match)))
        elif not match["reference"]:
            spans.append(Span(*match.span(), text=match[0]))
        elif (read := unescape(match[0])) != match[0]:
            spans.append(Span(*match.span(), text=read, is_mark=False))
    names = {start: name for start, _, name, _ in tags}
    for span in pair_tags(tags, len(text)):
        if span.content and span.start < span.content[0] and span.content[1] < span.end and names[span.start] in _CODE:
            inner = _INLINE_MARKUP.sub(lambda match: "" if match["name"] else match[0], text[slice(*span.content)])
            spans.append(Span(span.start, span.end, text=unescape(inner)))
        else:
            spans.append(span)
    return spans


def _kind(match: re.Match[str]) -> str:
    if match["name"].lower() in _VOID or match[0].endswith("/>"):
        return "empty"
    return "close" if match["close"] else "open"


@dataclass(frozen=True)
class HtmlUnit(TextUnit):
    """A unit of HTML escapes its translation, which must not turn into markup."""

    def escape(self, text: str) -> str:
        return html.escape(text, quote=False)


class Html(TextFormat):
    """HTML takes a page, or a piece of one, for one document."""

    name = "html"
    suffixes = (".html", ".htm")

    def skeleton(self, text: str) -> Skeleton:
        parts: list[TextPart] = []
        for stretch, is_running in _stretches(text):
            parts += split_units(stretch, self.splitter, html_spans, HtmlUnit) if is_running else [stretch]
        return TextSkeleton(parts)


def unescape(text: str) -> str:
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
