"""Subtitles: SubRip (`.srt`) and WebVTT (`.vtt`). Timings, numbers, settings, notes and styles stay as they are.

The lines of a cue are one text, whose sentences are translated. A translated sentence is written on one
line. Tags such as `<i>` and `<v Anna>` and settings such as `{\\an8}` are marks of their sentence (see
`marks`). All cues of a file are one document.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass

from reluformer.errors import DataError
from reluformer.files import BYTE_ORDER_MARK
from reluformer.translation.document import Range
from reluformer.translation.formats.markup import unescape
from reluformer.translation.formats.plain import TextLine, split_lines
from reluformer.translation.formats.skeleton import Skeleton, TextFormat, TextPart, TextSkeleton, TextUnit
from reluformer.translation.formats.spans import FIXED, Span, formula_spans, pair_tags, split_units

_TIME = r"(?:\d{1,4}:)?\d{1,2}:\d{1,2}[.,]\d{1,3}"
_TIMING = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s.*)?")
_INLINE = re.compile(
    rf"<(?P<close>/?)(?P<name>[A-Za-z]\w*+)(?P<rest>[^<>\n]*+)>|(?P<point><[\d:.]++>|\{{\\[^{{}}\n]*+\}})"
    rf"|(?P<reference>&#?\w{{1,40}}+;)|{FIXED}"
)


def subtitle_spans(text: str) -> list[Span]:
    """Finds tags, times, settings, references, placeholders, addresses and formulas in the text of a cue."""
    spans: list[Span] = []
    tags: list[tuple[int, int, str, str]] = []
    markup: list[Range] = []
    for match in _INLINE.finditer(text):
        if match["name"] or match["point"] or match["reference"]:
            markup.append(match.span())
        if match["name"]:
            tags.append((*match.span(), match["name"].lower(), "close" if match["close"] else "open"))
        elif match["point"]:
            spans.append(Span(*match.span()))
        elif match["reference"]:
            spans.append(Span(*match.span(), text=unescape(match[0]), is_mark=False))
        else:
            spans.append(Span(*match.span(), text=match[0]))
    return [*spans, *pair_tags(tags, len(text)), *formula_spans(text, markup)]


@dataclass(frozen=True)
class CueUnit(TextUnit):
    """A unit of a cue cannot become a tag or the line of a timing."""

    def escape(self, text: str) -> str:
        return re.sub(r"<(?=/?[A-Za-z\d])", "< ", text).replace("-->", "->")


@dataclass(frozen=True)
class VttUnit(CueUnit):
    """A unit of WebVTT escapes its translation, which must not turn into markup."""

    def escape(self, text: str) -> str:
        return html.escape(text, quote=False)


class SubRip(TextFormat):
    """SubRip has cues of a number, a timing and lines of text; a blank line ends a cue."""

    name = "srt"
    suffixes = (".srt",)
    unit: type[CueUnit] = CueUnit

    def skeleton(self, text: str) -> Skeleton:
        parts: list[TextPart] = []
        lines = split_lines(text)
        self._check(lines)
        for piece, is_cue in _cues(lines):
            parts += split_units(piece, self.splitter, subtitle_spans, self.unit) if is_cue else [piece]
        return TextSkeleton(parts)

    def _check(self, lines: list[TextLine]) -> None:
        """Raises an error for a text that has words but no timing."""
        if any(line.body.strip() for line in lines) and not any(_TIMING.fullmatch(line.body) for line in lines):
            raise DataError(
                f"{self.name}: no line is a timing such as 00:00:01,000 --> 00:00:02,500; "
                "if this is plain text, use --format plain"
            )


class WebVtt(SubRip):
    """WebVTT has a heading, notes, styles and cues; a blank line ends each."""

    name = "vtt"
    suffixes = (".vtt",)
    unit = VttUnit

    def _check(self, lines: list[TextLine]) -> None:
        first = lines[0].body.removeprefix(BYTE_ORDER_MARK) if lines else ""
        if not re.match(r"WEBVTT(?:\s|\Z)", first) and any(line.body.strip() for line in lines):
            raise DataError(f"{self.name}: line 1 does not begin with WEBVTT, so this is no WebVTT file")


def _cues(lines: list[TextLine]) -> Iterator[tuple[str, bool]]:
    """Yields the pieces of a file: the text of each cue (True), and everything between."""
    pieces: list[str] = []
    in_cue = False
    for line in lines:
        starts, ends = not in_cue and bool(_TIMING.fullmatch(line.body)), in_cue and not line.body.strip()
        if ends:
            yield "".join(pieces), True
            pieces, in_cue = [], False
        pieces.append(line.body + line.ending)
        if starts:
            yield "".join(pieces), False
            pieces, in_cue = [], True
    yield "".join(pieces), in_cue
