"""Plain text: running text, or one sentence a line.

Paragraphs, blank lines, line breaks and indentation come back as they were.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from reluformer.errors import DataError
from reluformer.translation.document import Document, DocumentAssembler, SentencePair
from reluformer.translation.formats.lines import (
    BYTE_ORDER_MARK,
    UTF8_MOST_BYTES,
    decode_line,
    numbered_lines,
    split_lines,
)
from reluformer.translation.formats.skeleton import CorpusFormat, Skeleton, TextFormat, TextPart, TextSkeleton, TextUnit
from reluformer.translation.formats.spans import split_units
from reluformer.translation.splitters import Splitter

# The lookbehind lets a match begin only where a run of spaces does, so that no run is read twice.
_PARAGRAPH_BREAK = re.compile(r"((?<![^\S\r\n])(?:[^\S\r\n]*+(?:\r\n|\r(?!\n)|\n)){2,})")


class PlainText(TextFormat):
    """Plain text is running text in one document.

    No sentence crosses a line break, unless the text is `wrapped`: then only a blank line
    ends a paragraph, and a translated sentence is written on one line.
    """

    name = "plain"
    suffixes = (".txt",)

    def __init__(
        self,
        splitter: str | Splitter = "simple",
        *,
        source: str = "en",
        target: str = "de",
        wrapped: bool = False,
    ) -> None:
        super().__init__(splitter, source=source, target=target)
        self.wrapped = wrapped

    def skeleton(self, text: str) -> Skeleton:
        mark, body = _without_mark(text)
        parts: list[TextPart] = [mark]
        for stretch in self._stretches(body):
            parts += split_units(stretch, self.splitter)
        return TextSkeleton(parts)

    def _stretches(self, text: str) -> list[str]:
        if self.wrapped:
            return _PARAGRAPH_BREAK.split(text)
        return [part for line in split_lines(text) for part in line]


class AlignedText(CorpusFormat):
    """Aligned text has one sentence a line; blank lines part documents and stay where they are.

    Line i of the result translates line i of the text. An empty translation leaves an
    empty line, which looks like a document break. A corpus is a pair of such files.
    """

    name = "aligned"

    def skeleton(self, text: str) -> Skeleton:
        mark, body = _without_mark(text)
        parts: list[TextPart] = [mark]
        groups = SentenceGroups()
        for line in split_lines(body):
            sentence = line.body.strip()
            if sentence:
                start = line.body.index(sentence)
                unit = TextUnit(sentence, sentence)
                parts += [line.body[:start], unit, line.body[start + len(sentence) :] + line.ending]
            else:
                parts.append(line.body + line.ending)
            groups.add(sentence)
        return TextSkeleton(parts, groups.documents())

    def read_corpus(self, files: Sequence[Path], assembler: DocumentAssembler) -> Iterator[Document]:
        src, tgt = files
        return assembler.documents(_aligned_pairs(src, tgt, assembler), src)


def _aligned_pairs(src: Path, tgt: Path, assembler: DocumentAssembler) -> Iterator[SentencePair | None]:
    most_bytes = assembler.limits.sentence_characters * UTF8_MOST_BYTES
    by_line = assembler.by_line
    sources, targets = numbered_lines(src, most_bytes), numbered_lines(tgt, most_bytes)
    for left, right in zip_longest(sources, targets):
        if left is None or right is None:
            ended, longer, lines = (src, tgt, right) if left is None else (tgt, src, left)
            assert lines is not None
            in_longer = lines[0] + sum(1 for _ in (targets if left is None else sources))
            raise DataError(
                f"{ended}:{lines[0]}: the file ends here with {lines[0] - 1} lines, but {longer} has {in_longer}; "
                "aligned files need the same number of lines"
            )
        number = left[0]
        source = None if left[1] is None else decode_line(left[1], src, number)
        target = None if right[1] is None else decode_line(right[1], tgt, number)
        source_blank, target_blank = is_blank(source), is_blank(target)
        if not by_line and source_blank != target_blank:
            blank, text = (src, tgt) if source_blank else (tgt, src)
            raise DataError(
                f"{blank}:{number}: blank here but not in {text}; a document break must stand in both files "
                "(with documents: line such a pair is dropped and counted)"
            )
        yield None if source_blank and target_blank and not by_line else SentencePair(number, source, target)


class SentenceGroups:
    """Gathers sentences into documents that blank lines part."""

    def __init__(self) -> None:
        self._groups: list[list[str]] = [[]]

    def add(self, sentence: str) -> None:
        """Adds the next sentence; a blank one ends the document."""
        if sentence:
            self._groups[-1].append(sentence)
        elif self._groups[-1]:
            self._groups.append([])

    def documents(self) -> list[Document]:
        """Returns the documents, numbered from 1."""
        groups = [group for group in self._groups if group]
        return [Document(str(number), tuple(group)) for number, group in enumerate(groups, 1)]


def is_blank(text: str | None) -> bool:
    """Returns whether a line is blank; a line that is too long to keep (None) is not."""
    return text is not None and not text.strip()


def _without_mark(text: str) -> tuple[str, str]:
    """Returns the byte order mark, or nothing, and the text behind it."""
    mark = BYTE_ORDER_MARK if text.startswith(BYTE_ORDER_MARK) else ""
    return mark, text.removeprefix(mark)
