"""Spans: where markup and placeholders stand in running text, and the sentences between them.

A format finds spans. Placeholders (`%s`, `{name}`), addresses and formulas (`E=mc^2`) are spans in every format.
`split_units` takes their markup out, splits the plain text into sentences, and turns every span into a mark of its
sentence. A pair that reaches beyond its sentence is open at one end of it. Markup of such a pair at the very edge of a
sentence stays outside, where nothing moves it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from reluformer.translation.document import Range, is_formula
from reluformer.translation.formats.marks import Mark
from reluformer.translation.formats.skeleton import LINE_BREAK, TextPart, TextUnit
from reluformer.translation.splitters import Splitter

_SITE = r"(?:(?:https?|ftp)://|www\.)"
ADDRESS = (
    rf"{_SITE}(?:[^\s<>{{]*+\{{[^{{}}\s<>]*+\}})*+[^\s<>]*[^\s<>.,;:!?'\")\]}}*_]"
    rf"|{_SITE}(?:[^\s<>{{]*+\{{[^{{}}\s<>]*+\}})++"  # ends with a placeholder
    r"|(?<![\w.+-])[\w.+-]{1,64}+@[\w-]+(?:\.[\w-]+)+"
)
PLACEHOLDER = (
    r"%(?:\([^()<>\s]++\)|\d{1,9}+\$)?[-+#0]*+\d*+(?:\.\d++)?+(?:ll?|h)?[diouxXeEfFgGcrs%]"
    r"|\{\{[^{}<>\r\n]*+\}\}|\$?\{[^{}<>\s]*+\}"
)
FIXED = rf"(?!(?<=\d)%(?!\(|[diouxXeEfFgGcrs%](?!\w)))(?:{PLACEHOLDER})|{ADDRESS}"
"""Placeholders and addresses in running text, where `100%ig` and `5%-10%` are percentages."""
_FIXED = re.compile(FIXED)
_PIECE = re.compile(r"(?:[^\s\0{]++|\{\{[^{}<>\0\r\n]*+\}\}|\{)++")
_CLOSINGS = {"(": ")", "[": "]", "{": "}"}
_OPENINGS = {closing: opening for opening, closing in _CLOSINGS.items()}
_QUOTES = frozenset("\"'“”„‚‘’«»‹›*_~`")
_PUNCTUATION = frozenset(".,;:!?…")
_SPACES = re.compile(r"(?<!\s)\s++")
_STOP = re.compile(r"[.!?…。！？]")


@dataclass(frozen=True)
class Span:
    """A span of running text that a model does not read as it stands.

    A pair has content between its opening and closing, which is text again. Any other span is
    read as `text`: code and placeholders as their own words, an image as nothing.
    """

    start: int
    end: int
    content: Range | None = None
    text: str = ""
    is_mark: bool = True
    """Whether the span is a mark; an entity or an escaped character is only another way to write `text`."""
    whole: bool = False
    """Whether no sentence may end inside of a pair."""


SpanFinder = Callable[[str], Sequence[Span]]
UnitMaker = Callable[[str, str, tuple[Mark, ...]], TextUnit]


def no_spans(text: str) -> Sequence[Span]:
    """Returns no spans, for text in which nothing is marked."""
    return ()


def text_spans(text: str) -> list[Span]:
    """Finds placeholders, addresses and formulas in text without markup."""
    return [*(Span(*match.span(), text=match[0]) for match in _FIXED.finditer(text)), *formula_spans(text)]


def formula_spans(text: str, markup: Iterable[Range] = ()) -> Iterator[Span]:
    """Yields the formulas in a text, without punctuation around them.

    Args:
        text: The text; NUL stands for markup.
        markup: Where other markup stands, in order. It is in no formula.
    """
    for match in _PIECE.finditer(blank_out(text, markup)):
        if is_formula(match[0]):
            low, high = _without_punctuation(match[0])
            if any(map(str.isalnum, match[0][low:high])):
                yield Span(match.start() + low, match.start() + high, text=match[0][low:high])


def _without_punctuation(piece: str) -> Range:
    """Returns where a piece begins and ends without quotes, stops, and brackets that have no partner in it."""
    low, high = 0, len(piece)
    counts = Counter(piece)
    while low < high:
        sign = piece[low]
        if sign not in _QUOTES and not (sign in _CLOSINGS and counts[sign] > counts[_CLOSINGS[sign]]):
            break
        counts[sign] -= 1
        low += 1
    while low < high:
        sign = piece[high - 1]
        alone = sign in _OPENINGS and counts[sign] > counts[_OPENINGS[sign]]
        if sign not in _QUOTES and sign not in _PUNCTUATION and not alone:
            break
        counts[sign] -= 1
        high -= 1
    return low, high


def blank_out(text: str, ranges: Iterable[Range]) -> str:
    """Returns a text with NUL in place of some ranges, which are given in order; what begins inside another is not."""
    pieces, cursor = [], 0
    for start, end in ranges:
        if start >= cursor:
            pieces += [text[cursor:start], "\0" * (end - start)]
            cursor = end
    return "".join([*pieces, text[cursor:]])


def text_marks(sentence: str) -> tuple[Mark, ...]:
    """Returns what `text_spans` finds in a sentence as marks.

    Example:
        >>> [mark.opening for mark in text_marks("Hello {name}, see www.example.org.")]
        ['{name}', 'www.example.org']
    """
    return tuple(Mark(span.start, span.end, span.text, verbatim=True) for span in nested(text_spans(sentence)))


def nested(spans: Sequence[Span]) -> list[Span]:
    """Returns spans in order and properly nested. What would cross a pair, or lie in code, is left to the text."""
    found: list[Span] = []
    stack: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        while stack and stack[-1].end <= span.start:
            stack.pop()
        inside = stack[-1].content if stack else (span.start, span.end)
        if inside is not None and inside[0] <= span.start and span.end <= inside[1]:
            found.append(span)
            stack.append(span)
    return found


@dataclass(frozen=True)
class _Edit:
    """A piece of markup: where it stands in the text, where in the plain text, and what it belongs to."""

    start: int
    end: int
    low: int
    high: int
    number: int
    """The number of the span."""
    kind: str
    """`opening`, `closing`, `mark` or `character`."""
    spaced: bool = False

    @property
    def is_empty(self) -> bool:
        return self.low == self.high


class _PlainText:
    """Running text without its markup.

    `shadow` has letters in place of what no splitter may cut, `words` spaces in place of what is no language.
    """

    def __init__(self, text: str, spans: Sequence[Span]) -> None:
        self.text = text
        self.spans = spans
        self.edits: list[_Edit] = []
        self.plain, self.shadow, self.words = "", "", ""
        self._place: list[list[int]] = [[0, 0] for _ in spans]  # of each span in the plain text
        self._build()
        self._lows = [edit.low for edit in self.edits]

    def _build(self) -> None:
        pieces: tuple[list[str], list[str], list[str]] = ([], [], [])
        cursor = size = 0
        for start, end, number, kind in self._markup():
            span = self.spans[number]
            read = span.text if kind in ("mark", "character") else ""
            spaced = (
                kind == "mark" and not read and start > 0 and self.text[start - 1] == " " == self.text[end : end + 1]
            )
            size += start - cursor
            for into, filler in zip(pieces, ("", "Q", " "), strict=True):
                into += [self.text[cursor:start], filler * len(read) if filler and kind == "mark" else read]
            self._place[number][kind == "closing" or 0] = size
            if kind != "closing":
                self._place[number][1] = size + len(read)
            cursor = end + spaced
            self.edits.append(_Edit(start, cursor, size, size + len(read), number, kind, spaced))
            size += len(read)
        self.plain, self.shadow, self.words = ("".join([*into, self.text[cursor:]]) for into in pieces)
        self._join_whole_pairs()

    def _markup(self) -> list[tuple[int, int, int, str]]:
        """Returns start, end, number and kind of all markup in order; empty closings come last, the innermost first."""
        found: list[tuple[int, int, int, str]] = []
        for number, span in enumerate(self.spans):
            if span.content is None:
                found.append((span.start, span.end, number, "mark" if span.is_mark else "character"))
            else:
                found.append((span.start, span.content[0], number, "opening"))
                found.append((span.content[1], span.end, number, "closing"))
        return sorted(found, key=lambda one: (one[0], one[1], -one[2] if one[3] == "closing" else one[2]))

    def _join_whole_pairs(self) -> None:
        pieces, cursor = [], 0
        for span, (low, high) in zip(self.spans, self._place, strict=True):
            if span.whole and low >= cursor and high - low > 1:
                pieces += [self.shadow[cursor:low], _STOP.sub("Q", self.shadow[low : high - 1])]
                cursor = high - 1
        self.shadow = "".join([*pieces, self.shadow[cursor:]])

    def range_of(self, low: int, high: int, least: int) -> Range:
        """Returns where a sentence stands in the text: with the markup at its edges that belongs to it alone.

        Args:
            low: Where the sentence begins in the plain text.
            high: Where it ends.
            least: Where it may begin in the text at the earliest.
        """
        first = bisect_left(self._lows, low)
        while first < len(self.edits) and self.edits[first].low == low and self.edits[first].is_empty:
            first += 1
        start = self._before(first, low)
        while first and (edit := self.edits[first - 1]).end == start and edit.low == low and edit.start >= least:
            if not edit.is_empty or not self._belongs(edit, low, high) or edit.kind == "closing":
                break
            first, start = first - 1, edit.start
        last = bisect_left(self._lows, high)
        end = self._before(last, high)
        while last < len(self.edits) and (edit := self.edits[last]).start == end and edit.is_empty:
            if not self._belongs(edit, low, high) or edit.kind == "opening" or edit.spaced:
                break
            last, end = last + 1, edit.end
        return start, end

    def _before(self, number: int, place: int) -> int:
        """Returns where a place of the plain text stands, behind all edits before `number`."""
        if not number:
            return place
        edit = self.edits[number - 1]
        return edit.end + place - edit.high

    def _belongs(self, edit: _Edit, low: int, high: int) -> bool:
        """Returns whether the span of an edit lies in the sentence."""
        start, end = self._place[edit.number]
        return low <= start and end <= high

    def marks(self, start: int, end: int, low: int, high: int) -> Iterator[Mark]:
        """Yields the marks of the sentence at `start:end` of the text, `low:high` of the plain text.

        Their places are those of the plain text.
        """
        first = bisect_left(self.edits, start, key=lambda edit: edit.start)
        last = bisect_left(self.edits, end, key=lambda edit: edit.start)
        edits = self.edits[first:last]
        opened = {edit.number for edit in edits if edit.kind == "opening"}
        closed = {edit.number for edit in edits if edit.kind == "closing"}
        before = [edit for edit in edits if edit.kind == "closing" and edit.number not in opened]
        for depth, edit in enumerate(reversed(before)):
            yield Mark(low, edit.low, "", self.text[edit.start : edit.end], open_at="start", depth=depth)
        depth, skipped_to = len(before), start
        for edit in edits:
            span = self.spans[edit.number]
            if edit.kind == "closing" and edit.start >= skipped_to:
                depth -= 1
            if edit.kind in ("closing", "character") or edit.start < skipped_to:
                continue
            low_place, high_place = self._place[edit.number]
            is_wordless = high_place <= high and not any(map(str.isalnum, self.plain[low_place:high_place]))
            if edit.kind == "mark" or is_wordless:
                skipped_to = max(span.end, edit.end)
                written = self.text[span.start : span.end]
                yield Mark(
                    low_place, high_place, written, verbatim=low_place < high_place, spaced=edit.spaced, depth=depth
                )
            elif edit.number in closed:
                closing = self.text[span.content[1] : span.end] if span.content else ""
                yield Mark(low_place, high_place, self.text[edit.start : edit.end], closing, depth=depth)
                depth += 1
            else:
                yield Mark(edit.low, high, self.text[edit.start : edit.end], open_at="end", depth=depth)
                depth += 1


def split_units(
    text: str, splitter: Splitter, find_spans: SpanFinder = no_spans, make_unit: UnitMaker = TextUnit
) -> list[TextPart]:
    """Splits running text into text units, one for each sentence, and the literal text between them.

    A piece without a letter or digit of its own (a rule, an emoji, a lone piece of code) is
    no sentence.

    Args:
        text: A stretch of running text.
        splitter: The sentence splitter.
        find_spans: Finds the spans.
        make_unit: Makes a text unit of its raw text, its plain sentence and its marks.

    Returns:
        Parts whose raw text, joined, is `text`.
    """
    if not text or text.isspace():
        return [text]
    whole = _PlainText(text, nested(find_spans(text)))
    parts: list[TextPart] = []
    low = cursor = 0
    for piece, is_sentence in splitter.split(whole.shadow):
        high = low + len(piece)
        if is_sentence and any(map(str.isalnum, whole.words[low:high])):
            start, end = whole.range_of(low, high, cursor)
            source, places = _on_one_line(whole.plain[low:high])
            marks = tuple(_moved(mark, places, low) for mark in whole.marks(start, end, low, high))
            parts += [text[cursor:start], make_unit(text[start:end], source, marks)]
            cursor = end
        low = high
    parts.append(text[cursor:])
    return [part for part in parts if part != ""]


def _on_one_line(text: str) -> tuple[str, list[int] | None]:
    """Returns the text on one line, and the new place of each of its places; None if all stay."""
    breaks = [match.span() for match in _SPACES.finditer(text) if LINE_BREAK.search(match[0])]
    if not breaks and text == text.strip():
        return text, None
    pieces, places, cursor, size = [], list(range(len(text) + 1)), 0, 0
    for start, end in breaks:
        pieces.append(text[cursor:start])
        size += start - cursor
        shown = " " if start and end < len(text) else ""
        places[cursor : start + 1] = range(size - (start - cursor), size + 1)
        places[start + 1 : end + 1] = [size + len(shown)] * (end - start)
        pieces.append(shown)
        size += len(shown)
        cursor = end
    places[cursor:] = range(size, size + len(text) - cursor + 1)
    pieces.append(text[cursor:])
    joined = "".join(pieces)
    lead = len(joined) - len(joined.lstrip())
    stripped = joined.strip()
    return stripped, [min(max(place - lead, 0), len(stripped)) for place in places]


def _moved(mark: Mark, places: list[int] | None, low: int) -> Mark:
    """Returns a mark with its places in the sentence that begins at `low` of the plain text."""
    start, end = mark.start - low, mark.end - low
    return mark.moved(start, end) if places is None else mark.moved(places[start], places[end])


def pair_tags(tags: Sequence[tuple[int, int, str, str]], length: int) -> Iterator[Span]:
    """Pairs opening and closing tags.

    Args:
        tags: Start, end, name and kind of each tag in order; the kind is `open`, `close` or `empty`.
        length: The length of the text.

    Yields:
        A pair for each element. An element that only begins or only ends in the text is a pair that reaches to the
        end, or from the start; any other tag is a point.
    """
    stack: list[tuple[int, int, str]] = []
    opened: dict[str, int] = {}
    for start, end, name, kind in tags:
        if kind == "open":
            stack.append((start, end, name))
            opened[name] = opened.get(name, 0) + 1
        elif kind == "close" and opened.get(name):
            while True:
                low, high, last = stack.pop()
                opened[last] -= 1
                if last == name:
                    yield Span(low, end, (high, start))
                    break
                yield Span(low, high)
        elif kind == "close" and not stack:
            yield Span(0, end, (0, start))
        else:
            yield Span(start, end)
    for low, high, _ in stack:
        yield Span(low, length, (high, length))
