"""Protected spans of a sentence: code, link targets and placeholders, which no model may touch.

A model reads `[1]` in place of a whole span, and `[1]label[/1]` for a link, whose label
is to be translated. Text that looks like such a mark is itself protected. Afterwards the
marks that survived are turned back; a span whose mark was lost is put behind the
sentence as it was in the source, so that no code and no link target ever disappears.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reluformer.translation.formats.lines import on_one_line
from reluformer.translation.formats.skeleton import TextPart, TextUnit
from reluformer.translation.splitters import Splitter

MARK = re.compile(r"\[ ?(?P<close>/?) ?(?P<number>\d{1,9}) ?\]")
TAG = r"</?[A-Za-z][^<>]*>"
ADDRESS = (
    r"(?:(?:https?|ftp)://|www\.)[^\s<>]*[^\s<>.,;:!?'\")\]}*_]"
    r"|(?<![\w.+-])[\w.+-]{1,64}+@[\w-]+(?:\.[\w-]+)+"
)


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
