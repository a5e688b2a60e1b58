"""Markdown: the words are translated, the structure stays.

Kept exactly: front matter, fenced and indented code, HTML blocks, link definitions,
heading, list, quote and table markup, inline code, images (with their alternative text),
bare and bracketed addresses, HTML tags, footnote marks, link targets; a link whose label
is code or an image is kept whole. See `skeleton` for how they pass through a model.

Not kept: the line breaks inside a translated sentence (it is written on one line), and
nothing watches over emphasis: its marks stay in the sentence for the model to copy.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from reluformer.translation.formats.plain import TextLine, split_lines
from reluformer.translation.formats.skeleton import (
    ADDRESS,
    MARK,
    TAG,
    MarkedUnit,
    Skeleton,
    Span,
    TextFormat,
    TextPart,
    TextSkeleton,
    TextUnit,
    split_units,
)
from reluformer.translation.splitters import Splitter

_FRONT_MATTER = re.compile(r"\ufeff?(?:(---|\+\+\+)[ \t]*\r?\n(?:[^\n]*+\n)*?(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z))?")
_ITEM_PREFIX = re.compile(r"\[[ xX]\]\s+|\[\^[^\[\]\s]+\]:\s*")
_BLOCK_START = re.compile(r"(\d{1,9})([.)])(?=\s|\Z)|(?=[-+*](?:\s|\Z)|#{1,6}(?:\s|\Z)|>|```|~~~|\|)")
_OPAQUE = re.compile(
    r"(?<!`)(?P<ticks>`+)(?!`).{1,2000}?(?<!`)(?P=ticks)(?!`)"
    r"|!\[(?:[^\[\]\\]|\\.)*+\](?:\((?:[^()\\]|\\.|\([^()]*\))*+\)|\[[^\[\]]*\])"
    rf"|<(?:[A-Za-z][A-Za-z0-9+.-]*:[^\s<>]*|[^\s<>@]+@[^\s<>]+)>|{TAG}|<!--.{{0,2000}}?-->"
    rf"|\[\^[^\[\]\s]+\]|{MARK.pattern}|\\[\[\]`\\]",
    re.DOTALL,
)
_LINK = re.compile(
    r"\[(?P<label>(?:!?\[[^\[\]]*\](?:\([^()\s]*\))?|\\.|[^\[\]\\])*+)\]"
    r"(?:\((?:[^()\\]|\\.|\([^()]*\))*+\)|\[[^\[\]]*\])",
    re.DOTALL,
)
_BARE = re.compile(ADDRESS)


def markdown_spans(text: str) -> list[Span]:
    """Finds what must survive in the text of a paragraph; escaped brackets and ticks are no markup."""
    opaque = [match.span() for match in _OPAQUE.finditer(text)]
    shadow = _blank_out(text, opaque)
    spans = []
    for match in _LINK.finditer(shadow):
        low, high = match.span("label")
        has_opaque = "\0" in shadow[low:high] or _BARE.search(text, low, high)
        spans.append(Span(*match.span(), None if has_opaque or low == high else (low, high)))
    shadow = _blank_out(shadow, [(span.start, span.end) for span in spans])
    spans += [Span(*match.span()) for match in _BARE.finditer(shadow)]
    ends = sorted((span.start, span.end) for span in spans)
    for start, end in opaque:
        index = bisect_right(ends, (start, end)) - 1
        inside = index >= 0 and end <= ends[index][1]
        if not inside and text[start] != "\\":
            spans.append(Span(start, end))
    return sorted(spans, key=lambda span: span.start)


def _blank_out(text: str, ranges: Sequence[tuple[int, int]]) -> str:
    pieces, cursor = [], 0
    for start, end in ranges:
        pieces += [text[cursor:start], "\0" * (end - start)]
        cursor = end
    return "".join([*pieces, text[cursor:]])


@dataclass(frozen=True)
class MarkdownUnit(MarkedUnit):
    """A unit of Markdown escapes what would turn into markup: `1. Mai` at the start of a line is no list."""

    starts_line: bool = False
    in_table: bool = False

    def adapt(self, translation: str) -> str:
        text = super().adapt(translation)
        if self.in_table:
            return re.sub(r"(?<!\\)\|", r"\\|", text)
        start = _BLOCK_START.match(text) if self.starts_line and not _BLOCK_START.match(self.raw) else None
        if start is None:
            return text
        return f"{start[1] or ''}\\{start[2] or ''}{text[start.end() :]}"


class Stretch(NamedTuple):
    """A stretch says where a line of running text stands in the document."""

    start: int
    end: int


@dataclass(frozen=True)
class TextBlock:
    """A text block is running text between two hard breaks: its lines without what marks the block."""

    stretches: list[Stretch]
    in_table: bool = False
    in_heading: bool = False


class Markdown(TextFormat):
    """Markdown is CommonMark with tables, as one document; the module says what is kept."""

    name = "markdown"
    suffixes = (".md", ".markdown")

    def __init__(self, splitter: str | Splitter = "simple", *, source: str = "en", target: str = "de") -> None:
        super().__init__(splitter, source=source, target=target)
        self._parser = MarkdownIt("commonmark").enable("table")
        self._parser.core.ruler.enableOnly(["normalize", "block"])

    def skeleton(self, text: str) -> Skeleton:
        front = _FRONT_MATTER.match(text)
        offset = front.end() if front else 0
        parts: list[TextPart] = []
        cursor = 0
        for block in self._blocks(text[offset:]):
            stretches = [Stretch(start + offset, end + offset) for start, end in block.stretches]
            parts.append(text[cursor : stretches[0].start])
            parts += self._units(text, stretches, block)
            cursor = stretches[-1].end
        return TextSkeleton([*parts, text[cursor:]])

    def _blocks(self, body: str) -> Iterator[TextBlock]:
        """Yields every block of running text that the parser found, in order."""
        lines = split_lines(body)
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line.body) + len(line.ending))
        row, column, body_of_row = -1, 0, ""
        tokens = self._parser.parse(body)
        for opening, token in pairwise(tokens):
            if token.type != "inline" or not token.map or not token.content:
                continue
            first = token.map[0]
            if opening.type in ("th_open", "td_open"):
                if first != row:
                    row, column, body_of_row = first, 0, lines[first].body.replace("\0", "\ufffd")
                found = _find_cell(body_of_row, token.content, column)
                if found:
                    column = found.end
                    yield TextBlock([Stretch(starts[first] + found.start, starts[first] + found.end)], in_table=True)
            else:
                yield from _paragraph(lines, starts, first, opening, token)

    def _units(self, text: str, stretches: Sequence[Stretch], block: TextBlock) -> list[TextPart]:
        """Splits the lines of a block as one text, and maps the pieces back to the document."""
        joined = "\n".join(text[start:end] for start, end in stretches)
        line_starts = [0]
        for start, end in stretches:
            line_starts.append(line_starts[-1] + end - start + 1)

        def original(position: int) -> int:
            line = bisect_right(line_starts, position, hi=len(stretches)) - 1
            return stretches[line].start + position - line_starts[line]

        parts: list[TextPart] = []
        position = 0
        for part in split_units(joined, self.splitter, markdown_spans):
            end = position + len(part.raw if isinstance(part, TextUnit) else part)
            raw = text[original(position) : original(end)]
            if isinstance(part, TextUnit):
                spans = part.spans if isinstance(part, MarkedUnit) else ()
                starts_line = not block.in_heading and (position == 0 or joined[position - 1] == "\n")
                parts.append(MarkdownUnit(raw, part.source, spans, starts_line, block.in_table))
            else:
                parts.append(raw)
            position = end
        return parts


def _find_cell(row: str, content: str, column: int) -> Stretch | None:
    """Finds the text of a cell from a column on; the parser takes the escape of a bar away, and replaces NUL."""
    written = content.replace("|", "\\|")
    start = row.find(written, column)
    return Stretch(start, start + len(written)) if start >= 0 else None


def _paragraph(
    lines: list[TextLine], starts: list[int], first: int, opening: Token, token: Token
) -> Iterator[TextBlock]:
    """Cuts a paragraph or heading at hard breaks. The parser reads NUL as the replacement character."""
    heading = opening.type == "heading_open" and opening.markup.startswith("#")
    stretches: list[Stretch] = []
    contents = token.content.split("\n")
    for row, content in enumerate((content.strip() for content in contents), first):
        body = lines[row].body.replace("\0", "\ufffd")
        start = body.find(content, body.find("#")) if heading else len(body.rstrip()) - len(content)
        if start < 0 or not body.startswith(content, start):
            return
        end = start + len(content)
        if row == first and (prefix := _ITEM_PREFIX.match(body, start)):
            start = min(prefix.end(), end)
        is_last = row == first + len(contents) - 1
        body_end = len(body) if is_last else _without_hard_break(body)
        stretches.append(Stretch(starts[row] + start, starts[row] + min(end, body_end)))
        if is_last or body_end < len(body):
            yield TextBlock(stretches, in_heading=heading)
            stretches = []


def _without_hard_break(body: str) -> int:
    """Returns where a line ends without its hard break: a backslash, or two spaces and more."""
    if body.endswith("\\"):
        return len(body) - 1
    stripped = len(body.rstrip(" "))
    return stripped if len(body) - stripped >= 2 else len(body)
