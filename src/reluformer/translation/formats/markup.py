"""Markdown and HTML: the words are translated, the structure stays.

Markdown keeps front matter, fenced and indented code, HTML blocks, link definitions, and the markup of
headings, lists, quotes and tables. A model reads plain sentences; emphasis, links, inline code, images (with
their alternative text), formulas, placeholders, addresses, HTML tags and footnote marks are marks of their sentence
(see `marks`). Formulas are `$…$`, `$$…$$`, and pieces without spaces such as `E=mc^2`. Not kept: the line breaks
inside a translated sentence (it is written on one line), and emphasis of one kind that is nested more than two deep.

HTML keeps tags, comments, scripts and attributes. Running text ends where a block ends (a paragraph, a cell,
a line break). Inline elements are marks of their sentence, and code is copied.

Both read escapes and entities as the characters that they stand for; a translation is escaped again.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from reluformer.translation.formats.marks import Mark
from reluformer.translation.formats.plain import TextLine, split_lines
from reluformer.translation.formats.skeleton import (
    LINE_BREAK,
    Skeleton,
    TextFormat,
    TextPart,
    TextSkeleton,
    TextUnit,
)
from reluformer.translation.formats.spans import FIXED, Span, blank_out, formula_spans, nested, pair_tags, split_units
from reluformer.translation.splitters import Splitter

if TYPE_CHECKING:
    from markdown_it.token import Token

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
    rf"<(?P<close>/?)(?P<name>[A-Za-z][\w:-]*+){_ATTRIBUTES}>|(?P<reference>&#?\w{{1,5000}}+;?)|{FIXED}"
)


def html_spans(text: str) -> list[Span]:
    """Finds the marks in running text (elements, code, formulas, placeholders, addresses), and references."""
    markup, fixed = _inline_spans(text)
    return [*markup, *fixed, *formula_spans(text, _markup_of(markup))]


def _inline_spans(text: str) -> tuple[list[Span], list[Span]]:
    """Finds elements, code and references, and apart from them placeholders and addresses."""
    spans: list[Span] = []
    fixed: list[Span] = []
    tags: list[tuple[int, int, str, str]] = []
    for match in _INLINE_MARKUP.finditer(text):
        if match["name"]:
            tags.append((*match.span(), match["name"].lower(), _kind(match)))
        elif not match["reference"]:
            fixed.append(Span(*match.span(), text=match[0]))
        elif (read := unescape(match[0])) != match[0]:
            spans.append(Span(*match.span(), text=read, is_mark=False))
    names = {start: name for start, _, name, _ in tags}
    for span in pair_tags(tags, len(text)):
        if span.content and span.start < span.content[0] and span.content[1] < span.end and names[span.start] in _CODE:
            inner = _INLINE_MARKUP.sub(lambda match: "" if match["name"] else match[0], text[slice(*span.content)])
            spans.append(Span(span.start, span.end, text=unescape(inner)))
        else:
            spans.append(span)
    return spans, fixed


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


_FRONT_MATTER = re.compile(r"\ufeff?(?:(---|\+\+\+)[ \t]*\r?\n(?:[^\n]*+\n)*?(?:\1|\.\.\.)[ \t]*(?:\r?\n|\Z))?")
_ITEM_PREFIX = re.compile(r"\[[ xX]\]\s+|\[\^[^\[\]\s]+\]:\s*")
_BLOCK_START = re.compile(r"(\d{1,9})([.)])(?=\s|\Z)|(?=[-+*](?:\s|\Z)|#{1,6}(?:\s|\Z)|>|```|~~~|\|)")
_DISPLAY = r"(?<!\$)\$\$(?!\$)(?:[^$\\]++|\\.)++\$\$(?!\$)"
# As in Pandoc, so that prices are none. With spaces and words in it, a formula has a sign of mathematics.
_FORMULA = (
    r"(?<![\w$])\$(?=[^\s$])(?:(?=[^\s$`]++\$)|(?=[^$`]*?[=^_\\{}<>+*|])|(?![^$`]*?[^\W\d_]{2}))"
    r"(?:[^$\\`]++|\\.)++(?<!\s)\$(?!\d)"
)
_MATH_BLOCK = re.compile(rf"\s*{_DISPLAY}\s*", re.DOTALL)
_OPAQUE = re.compile(
    r"(?<!`)(?P<ticks>`+)(?!`)(?P<code>.{1,2000}?)(?<!`)(?P=ticks)(?!`)"
    r"|(?P<point>!\[(?:[^\[\]\\]|\\.)*+\](?:\((?:[^()\\]|\\.|\([^()]*\))*+\)|\[[^\[\]]*\])"
    r"|<!--.{0,2000}?-->|\[\^[^\[\]\s]+\])"
    r"|<(?P<address>[A-Za-z][A-Za-z0-9+.-]*:[^\s<>]*|[^\s<>@]+@[^\s<>]+)>"
    r"|\\(?P<escaped>[!-/:-@\[-`{-~])"
    rf"|(?P<math>{_DISPLAY}|{_FORMULA})",
    re.DOTALL,
)
_LINK = re.compile(
    r"\[(?P<label>(?:!?\[[^\[\]]*\](?:\([^()\s]*\))?|\\.|[^\[\]\\])*+)\]"
    r"(?:\((?:[^()\\]|\\.|\([^()]*\))*+\)|\[[^\[\]]*\])",
    re.DOTALL,
)
_DELIMITERS = re.compile(r"(?P<mark>[*_])(?P=mark)*+|(?<!~)~~(?!~)")
_RISKY = re.compile(r"[`]|\\(?=[!-/:-@\[-`{-~]|\Z)|[*_]|~~|<(?=[A-Za-z/!?])|&(?=#?\w++;)|\](?=[(\[:])|\[(?=\^)|!(?=\[)")


def markdown_spans(text: str) -> list[Span]:
    """Finds the marks in the text of a paragraph, and what is written with an escape or an entity."""
    spans = [_opaque(match) for match in _OPAQUE.finditer(text)]
    hidden = blank_out(text, [(span.start, span.end) for span in spans])
    links: list[Span] = []
    for match in _LINK.finditer(hidden):
        links.append(Span(*match.span(), content=match.span("label"), whole=True))
    covered = [
        part for link in links if link.content for part in ((link.start, link.content[0]), (link.content[1], link.end))
    ]
    hidden = blank_out(hidden, covered)
    spans += links
    markup, fixed = _inline_spans(hidden)
    visible = blank_out(hidden, _markup_of(markup)).replace("*", "\0").replace("~~", "\0\0")
    fixed = [_as_written(span, text) for span in fixed]
    found = [*markup, *nested([*fixed, *formula_spans(visible)])]
    hidden = blank_out(hidden, _markup_of(found))
    spans += found
    outside = blank_out(hidden, [link.content for link in links if link.content])
    spans += _emphasis(outside, text, 0, len(text))
    for link in links:
        if link.content:
            spans += _emphasis(hidden, text, *link.content)
    return spans


def _as_written(span: Span, text: str) -> Span:
    """Returns a span with its text; an escape inside of a placeholder or an address was hidden."""
    return replace(span, text=text[span.start : span.end]) if "\0" in span.text else span


def _markup_of(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Returns where the markup of spans stands, without what is text again, in order."""
    found = []
    for span in spans:
        inner = (
            [(span.start, span.end)]
            if span.content is None
            else [(span.start, span.content[0]), (span.content[1], span.end)]
        )
        found += [place for place in inner if place[0] < place[1]]
    return sorted(found)


def _opaque(match: re.Match[str]) -> Span:
    if match["escaped"]:
        return Span(*match.span(), text=match["escaped"], is_mark=False)
    if match["math"]:
        return Span(*match.span(), text=match["math"].strip("$").strip())
    code = match["code"]
    if code and code.strip() and code[0] == code[-1] == " ":
        code = code[1:-1]
    return Span(*match.span(), text=match["address"] or code or "")


@dataclass
class _DelimiterRun:
    """A run of delimiters, as CommonMark defines it; `start:end` shrinks as delimiters find their partners."""

    mark: str
    start: int
    end: int
    opens: bool
    closes: bool
    size: int


def _emphasis(hidden: str, text: str, low: int, high: int) -> Iterator[Span]:
    """Yields the emphasis in `low:high`, by CommonMark's own procedure; `hidden` has no other markup."""
    stack: list[_DelimiterRun] = []
    bottom: dict[tuple[str, bool, int], int] = {}
    for match in _DELIMITERS.finditer(hidden, low, high):
        run = _run(match, text)
        while run.closes and run.start < run.end:
            key = run.mark, run.opens, run.size % 3
            index = len(stack) - 1
            while index >= bottom.get(key, 0) and not _pairs(stack[index], run):
                index -= 1
            if index < bottom.get(key, 0):
                bottom[key] = len(stack)
                break
            opener = stack[index]
            del stack[index + 1 :]
            bottom = {name: min(value, len(stack)) for name, value in bottom.items()}
            size = 2 if min(opener.end - opener.start, run.end - run.start) >= 2 else 1
            yield Span(opener.end - size, run.start + size, (opener.end, run.start))
            opener.end -= size
            run.start += size
            if opener.start == opener.end:
                stack.pop()
                bottom = {name: min(value, len(stack)) for name, value in bottom.items()}
        if run.opens and run.start < run.end:
            stack.append(run)


def _run(match: re.Match[str], text: str) -> _DelimiterRun:
    start, end = match.span()
    before, after = text[start - 1 : start] or " ", text[end : end + 1] or " "
    punctuated = not before.isalnum() and not before.isspace(), not after.isalnum() and not after.isspace()
    left = not after.isspace() and (not punctuated[1] or before.isspace() or punctuated[0])
    right = not before.isspace() and (not punctuated[0] or after.isspace() or punctuated[1])
    mark = match[0][0]
    if mark == "_":
        left, right = left and (not right or punctuated[0]), right and (not left or punctuated[1])
    return _DelimiterRun(mark, start, end, left, right, end - start)


def _pairs(opener: _DelimiterRun, closer: _DelimiterRun) -> bool:
    """Returns whether two runs can be partners; those that could do both obey the rule of three."""
    if opener.mark != closer.mark:
        return False
    either = opener.closes or closer.opens
    return not either or (opener.size + closer.size) % 3 != 0 or opener.size % 3 == closer.size % 3 == 0


@dataclass(frozen=True)
class MarkdownUnit(TextUnit):
    """A unit of Markdown escapes what would turn into markup: `1. Mai` at the start of a line is no list."""

    starts_line: bool = False
    in_table: bool = False

    def escape(self, text: str) -> str:
        if self.in_table:
            text = text.replace("|", "\0")
        text = _RISKY.sub(lambda match: _escaped(match, text), text)
        if any("]" in mark.closing for mark in self.marks):
            text = re.sub(r"(?<!\\)[\[\]]", r"\\\g<0>", text)
        if text.endswith("!"):  # a link behind it would be an image
            text = text[:-1] + "\\!" if self.marks else text
        return text.replace("\0", "\\|") if self.in_table else text

    def adapt(self, written: str) -> str:
        starts = self.starts_line and not self.in_table and not _BLOCK_START.match(self.raw)
        start = _BLOCK_START.match(written) if starts and not self._begins_with_mark(written) else None
        if start is None:
            return written
        return f"{start[1] or ''}\\{start[2] or ''}{written[start.end() :]}"

    def _begins_with_mark(self, written: str) -> bool:
        return any(written.startswith(mark.opening) for mark in self.marks if mark.opening)


def _escaped(match: re.Match[str], text: str) -> str:
    """Escapes a character that could be markup; a star or line between spaces is none."""
    found = match[0]
    if found == "&":
        return "&amp;"
    before, after = text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
    if found in "*_" and before.isspace() and after.isspace():
        return found
    if found == "_" and before.isalnum() and after.isalnum():
        return found
    return "\\" + found


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
        from markdown_it import MarkdownIt  # takes its time, and corpora do not need it

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
            elif not _MATH_BLOCK.fullmatch(token.content):
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
                starts_line = not block.in_heading and (position == 0 or joined[position - 1] == "\n")
                marks = tuple(_distinct(map(_on_one_line, part.marks)))
                parts.append(MarkdownUnit(raw, part.source, marks, starts_line, block.in_table))
            else:
                parts.append(raw)
            position = end
        return parts


def _on_one_line(mark: Mark) -> Mark:
    """Returns a mark without line breaks, which mean spaces in Markdown; a quote would need its marks behind each."""
    opening, closing = (LINE_BREAK.sub(" ", part) for part in (mark.opening, mark.closing))
    return replace(mark, opening=opening, closing=closing)


def _distinct(marks: Iterable[Mark]) -> Iterator[Mark]:
    """Yields marks with `_` for emphasis inside of `*`, and the other way round: around one word, `**` is strong."""
    outer: list[str] = []
    for mark in marks:
        del outer[mark.depth :]
        other = {"*": "_", "_": "*", "**": "__", "__": "**"}.get(mark.opening)
        if other is not None and mark.opening == mark.closing and mark.opening in outer and other not in outer:
            mark = replace(mark, opening=other, closing=other)
        outer.append(mark.opening)
        yield mark


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
