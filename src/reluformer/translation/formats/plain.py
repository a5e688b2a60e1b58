"""Plain text: running text or one sentence a line, and the texts of all formats.

Paragraphs, blank lines, line breaks and indentation come back as they were. Placeholders, addresses
and formulas are marks of their sentence (see `marks`).

Corpora are read by `files.numbered_lines`, whose lines end at LF (or CR LF) and nowhere else:
Unicode's other separators (U+2028, U+0085, form feed) occur inside sentences, and breaking
there would shift one side of an aligned pair. Documents for translation are read whole, and
`split_lines` keeps every ending.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, Protocol

from reluformer.errors import DataError
from reluformer.files import BYTE_ORDER_MARK, decode_line, numbered_lines, whole_file
from reluformer.translation.document import Document, DocumentAssembler, SentencePair
from reluformer.translation.formats.skeleton import (
    CorpusFormat,
    Skeleton,
    TextFormat,
    TextPart,
    TextSkeleton,
    TextUnit,
)
from reluformer.translation.formats.spans import split_units, text_marks, text_spans
from reluformer.translation.splitters import Splitter

MOST_BYTES = 2**28
"""The most bytes of a text that is read whole."""
UTF8_MOST_BYTES = 4
"""The most bytes of a character."""
_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
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
            parts += split_units(stretch, self.splitter, text_spans)
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
                unit = TextUnit(sentence, sentence, text_marks(sentence))
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


class TextLine(NamedTuple):
    """`body + ending` is the line as it stands in the text; the last ending may be empty."""

    body: str
    ending: str


def split_lines(text: str) -> list[TextLine]:
    """Splits `text` at CR LF, LF and CR only, not at the other line ends of `str.splitlines`.

    Example:
        >>> from reluformer.translation.formats.plain import split_lines
        >>> [line.ending for line in split_lines("a\\r\\nb\\u2028c")]
        ['\\r\\n', '']
    """
    lines = [TextLine(*match.groups()) for match in _LINE.finditer(text)]
    return lines[:-1] if lines[-1] == ("", "") else lines


def decode_text(data: bytes, where: str) -> str:
    """Decodes UTF-8 and keep a byte order mark as the first character.

    Args:
        data: The bytes of a whole text.
        where: What error messages call the text.

    Raises:
        DataError: The bytes are not UTF-8; the message has byte and line.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{where}: not valid UTF-8 at byte {error.start} (line {line}): {error.reason}; "
            "convert it first, e.g. iconv -f latin1 -t utf-8"
        ) from None


def read_text(path: str | Path) -> str:
    """Reads a file exactly as it is, line endings included; `.gz` is unpacked.

    Raises:
        DataError: The file cannot be read, is damaged, is not UTF-8, or has more than `MOST_BYTES`.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            if path.suffix == ".gz":
                with gzip.open(file) as unpacked:
                    data = read_limited(unpacked, str(path))
            else:
                data = read_limited(file, str(path))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file: {error}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    return decode_text(data, str(path))


def read_limited(file: SupportsRead, name: str) -> bytes:
    """Reads a file to its end; a device or a packed file of zeros must not take all memory.

    Args:
        file: A file that is open for reading bytes.
        name: What the error message calls it.

    Raises:
        DataError: It has more than `MOST_BYTES`.
    """
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise DataError(f"{name}: has more than {MOST_BYTES:,} bytes, too many for one text; split it into several")
    return data


class SupportsRead(Protocol):
    """What bytes are read from."""

    def read(self, most: int, /) -> bytes: ...


def write_text(path: str | Path, text: str) -> None:
    """Writes `text` exactly as it is, whole or not at all; `.gz` is packed, the same text to the same bytes.

    Raises:
        StorageError: The file cannot be written.
    """
    path = Path(path)
    data = text.encode("utf-8")
    with whole_file(path) as file:
        file.write(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
