"""Plain text: paragraphs, blank lines, line breaks and indentation come back as they were."""

from __future__ import annotations

import re

from reluformer.translation import splitters
from reluformer.translation.formats.base import Part, Skeleton, TextFormat, TextSkeleton
from reluformer.translation.formats.lines import split_lines
from reluformer.translation.formats.spans import segment
from reluformer.translation.splitters import Splitter

_PARAGRAPH_BREAK = re.compile(r"((?:[^\S\r\n]*(?:\r\n|\r(?!\n)|\n)){2,})")


class PlainText(TextFormat):
    """Running text in one document.

    No sentence crosses a line break, unless the text is `wrapped`: then only a blank line
    ends a paragraph, and a translated sentence is written on one line.
    """

    name = "plain"
    suffixes = (".txt",)

    def __init__(self, splitter: str | Splitter = "simple", *, wrapped: bool = False) -> None:
        self.splitter = splitters.get(splitter)
        self.wrapped = wrapped

    def skeleton(self, text: str) -> Skeleton:
        mark = "\ufeff" if text.startswith("\ufeff") else ""
        parts: list[Part] = [mark]
        for stretch in self._stretches(text.removeprefix(mark)):
            parts += segment(stretch, self.splitter)
        return TextSkeleton(parts)

    def _stretches(self, text: str) -> list[str]:
        if self.wrapped:
            return _PARAGRAPH_BREAK.split(text)
        return [part for line in split_lines(text) for part in line]
