"""Documents in the markups of the public sets, one language a file; then both languages side by side."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from reluformer.errors import DataError
from reluformer.translation.document import Document
from reluformer.translation.lines import decode, numbered_lines
from reluformer.translation.skipped import EMPTY, NO_SENTENCES, Skipped

MISALIGNED = "document with other sentences on the other side: dropped"
ONE_SIDED = "document on one side only: dropped"
COLUMNS = "row without exactly two columns: dropped"
CUT = "document without an end for too long: cut"

_MOST_BYTES = 2**20
_MARK = re.compile(r"<doc\b([^>]*)>|<seg\b([^>]*)>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
_DOCID = re.compile(r"""\bdocid\s*=\s*["']?([^"'>]*)""", re.IGNORECASE)
_SEGMENT = re.compile(r"""\bid\s*=\s*["']?([^"'\s>]+)""", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d+|#x[0-9a-fA-F]+);")
_HEADER = re.compile(r"</?(?:doc|url|keywords|speaker|talkid|title|description|reviewer|translator)\b")
_TALK_ID = re.compile(r"<talkid>\s*(\S+?)\s*</talkid>")


@dataclass
class MarkedDocument:
    """A document of one language: its sentences by the ids that they have in the file."""

    name: str
    sentences: dict[str, str] = field(default_factory=dict)

    def append(self, sentence: str) -> None:
        """Add a sentence that has no id but its place."""
        self.sentences[str(len(self.sentences))] = sentence


def read_segments(path: Path) -> list[MarkedDocument]:
    """SGML of the WMT tests and XML of the IWSLT tests: <doc docid=...> around <seg id=...>."""
    text = "\n".join(_lines(path))
    documents: list[MarkedDocument] = []
    for mark in _MARK.finditer(text):
        attributes, segment, sentence = mark.groups()
        if attributes is not None:
            name = _DOCID.search(attributes)
            documents.append(MarkedDocument(name[1].strip() if name else str(len(documents))))
            continue
        number = _SEGMENT.search(segment)
        if not documents:
            raise DataError(f"{path}: a <seg> stands before the first <doc>; the file is damaged")
        current = documents[-1].sentences
        current[number[1] if number else str(len(current))] = " ".join(unescape(sentence).split())
    if not documents:
        raise DataError(f"{path}: holds no <doc>; the file is damaged")
    return documents


def unescape(text: str) -> str:
    """XML's entities as characters; an ampersand that belongs to none stays."""
    return _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)


def read_talks(path: Path) -> list[MarkedDocument]:
    """The training files of IWSLT: lines of tags (url, talkid, title, ...) before the plain lines of a talk."""
    talks: list[MarkedDocument] = []
    in_header = False
    for line in _lines(path):
        if _HEADER.match(line):
            if not in_header:
                talks.append(MarkedDocument(str(len(talks))))
            in_header = True
            if talk_id := _TALK_ID.search(line):
                talks[-1].name = talk_id[1]
        elif not talks:
            raise DataError(f"{path}: a sentence stands before the first talk; the file is damaged")
        else:
            in_header = False
            talks[-1].append(line)
    # a closing tag at the end of a talk opens no other
    return [talk for talk in talks if talk.sentences]


def read_marked_lines(path: Path, mark: str = "<d>") -> list[MarkedDocument]:
    """A sentence a line; a line with `mark` alone begins a document."""
    documents: list[MarkedDocument] = []
    for line in _lines(path):
        if line == mark:
            documents.append(MarkedDocument(str(len(documents))))
        elif not documents:
            raise DataError(f"{path}: does not begin with {mark}; the file is damaged")
        else:
            documents[-1].append(line)
    return documents


def read_columns(path: Path, skipped: Skipped, *, longest: int) -> Iterator[list[tuple[str, str]]]:
    """Two tab-separated columns; a blank row ends a document, and `longest` rows without one do so too."""
    rows: list[tuple[str, str]] = []
    for number, line in enumerate(_lines(path), start=1):
        columns = [column.strip() for column in line.split("\t")]
        if not any(columns):
            if rows:
                yield rows
            rows = []
        elif len(columns) != 2:
            skipped.add(COLUMNS, f"{path.name}:{number}")
        else:
            if len(rows) == longest:
                skipped.add(CUT, f"{path.name}:{number}")
                yield rows
                rows = []
            rows.append((columns[0], columns[1]))
    if rows:
        yield rows


def side_by_side(
    sources: Iterable[MarkedDocument], targets: Iterable[MarkedDocument], prefix: str, skipped: Skipped
) -> Iterator[Document]:
    """Documents of both languages by their names; one whose sentences differ is left out and counted."""
    targets_by_key = dict(_keys(targets))
    for key, source in _keys(sources):
        place = f"{prefix}:{source.name}"
        target = targets_by_key.pop(key, None)
        if target is None:
            skipped.add(ONE_SIDED, place)
        elif source.sentences.keys() != target.sentences.keys():
            skipped.add(MISALIGNED, place)
        else:
            pairs = ((sentence, target.sentences[number]) for number, sentence in source.sentences.items())
            yield from join(place, pairs, skipped)
    for name, _ in targets_by_key:
        skipped.add(ONE_SIDED, f"{prefix}:{name}")


def join(name: str, pairs: Iterable[tuple[str, str]], skipped: Skipped) -> Iterator[Document]:
    """The document of `pairs` without those that are empty on a side; nothing where none remains."""
    kept = []
    for number, (source, target) in enumerate(pairs, start=1):
        if source and target:
            kept.append((source, target))
        else:
            skipped.add(EMPTY, f"{name} sentence {number}")
    if kept:
        src, tgt = zip(*kept, strict=True)
        yield Document(name, src, tgt)
    else:
        skipped.add(NO_SENTENCES, name)


def _keys(documents: Iterable[MarkedDocument]) -> Iterator[tuple[tuple[str, int], MarkedDocument]]:
    """Name and occurrence: names are not always unique."""
    seen: Counter[str] = Counter()
    for document in documents:
        yield (document.name, seen[document.name]), document
        seen[document.name] += 1


def _lines(path: Path) -> Iterator[str]:
    for number, line in numbered_lines(path, _MOST_BYTES):
        if line is None:
            raise DataError(f"{path}:{number}: longer than {_MOST_BYTES:,} bytes; the file is damaged")
        yield decode(line, path, number).strip(" \r\n")
