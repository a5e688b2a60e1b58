"""Conversion: from the files of a public set to its documents, split by split.

Every set marks its documents in its own way, one language a file. Readers of these markups
come second, and `extract`, which unpacks archives without surprises, last.
"""

from __future__ import annotations

import gzip
import html
import json
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from reluformer.errors import DataError, StorageError
from reluformer.files import decode_line, numbered_lines, whole_file
from reluformer.translation.document import Document, DocumentAssembler, Skipped, SkipReason
from reluformer.translation.formats.plain import AlignedText
from reluformer.translation.recipe import Split

LEAK_WORDS = 10
LONGEST_DOCUMENT = 1000
VALID_EVERY = 23


@dataclass(frozen=True)
class Workspace:
    """A workspace has the downloaded files, and a directory to unpack them in."""

    raw: Path
    scratch: Path

    def unpack(self, archive: str, *names: str) -> tuple[Path, ...]:
        """Unpacks the files called `names` out of an archive."""
        found = extract(self.raw / archive, names, self.scratch)
        return tuple(found[name] for name in names)


Converter = Callable[[Split, Workspace, Skipped], Iterator[Document]]


def multi30k(split: Split, work: Workspace, skipped: Skipped) -> Iterator[Document]:
    """Reads captions, each of which stands alone."""
    stem = {"train": "train", "valid": "val", "test": "test_2016_flickr"}[split]
    yield from _lines(work.raw / f"{stem}.en.gz", work.raw / f"{stem}.de.gz", skipped)


def iwslt14(split: Split, work: Workspace, skipped: Skipped) -> Iterator[Document]:
    """Reads talks. For valid, fairseq takes every 23rd line, which tears talks apart; here it is every 23rd talk."""
    if split == "test":
        for part in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"):
            stem = f"IWSLT14.{part}.de-en"
            source, target = map(read_segments, work.unpack("de-en.tgz", f"{stem}.de.xml", f"{stem}.en.xml"))
            yield from side_by_side(source, target, part, skipped)
        return
    tagged = work.unpack("de-en.tgz", "train.tags.de-en.de", "train.tags.de-en.en")
    source, target = map(read_talks, tagged)
    for number, talk in enumerate(side_by_side(source, target, "talk", skipped), start=1):
        if (number % VALID_EVERY == 0) == (split == "valid"):
            yield talk


def europarl7(split: Split, work: Workspace, skipped: Skipped) -> Iterator[Document]:
    """Reads valid and test of Maruf et al., and train from Europarl v9 without what stands in those."""
    if split != "train":
        yield from _maruf(split, work, skipped)
        return
    held_out = {
        key
        for other in ("valid", "test")
        for document in _maruf(other, work, Skipped())
        for sentence in (*document.src, *(document.tgt or ()))
        if (key := _leak_key(sentence))
    }
    path = work.raw / "europarl-v9.de-en.tsv.gz"
    for number, rows in enumerate(read_columns(path, skipped, longest=LONGEST_DOCUMENT), start=1):
        name = f"europarl-v9:{number}"
        if any(_leak_key(sentence) in held_out for row in rows for sentence in row):
            skipped.add(SkipReason.LEAKED, name)
        else:
            yield from join(name, ((english, german) for german, english in rows), skipped)


def wmt14(split: Split, work: Workspace, skipped: Skipped) -> Iterator[Document]:
    """Reads news in documents for valid and test, and three corpora of single sentences for train."""
    if split == "train":
        for archive, stem in (
            ("training-parallel-europarl-v7.tgz", "europarl-v7.de-en"),
            ("training-parallel-commoncrawl.tgz", "commoncrawl.de-en"),
            ("training-parallel-nc-v9.tgz", "news-commentary-v9.de-en"),
        ):
            english, german = work.unpack(archive, f"{stem}.en", f"{stem}.de")
            yield from _lines(english, german, skipped)
        return
    archive, prefix, names = {
        "valid": ("test.tgz", "newstest2013", ("newstest2013-src.en.sgm", "newstest2013-src.de.sgm")),
        "test": ("test-full.tgz", "newstest2014", ("newstest2014-deen-src.en.sgm", "newstest2014-deen-ref.de.sgm")),
    }[split]
    source, target = map(read_segments, work.unpack(archive, *names))
    yield from side_by_side(source, target, prefix, skipped)


CONVERTERS: dict[str, Converter] = {
    "multi30k": multi30k,
    "iwslt14": iwslt14,
    "europarl7": europarl7,
    "wmt14": wmt14,
}


def write_documents(documents: Iterable[Document], path: Path) -> tuple[int, int]:
    """Writes JSON lines, gzipped, whole or not at all and the same bytes every time; count documents and sentences."""
    number, sentences = 0, 0
    with whole_file(path) as file, gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
        for document in documents:
            entry = {"id": document.id, "src": document.src, "tgt": document.tgt}
            packed.write(json.dumps(entry, ensure_ascii=False).encode("utf-8") + b"\n")
            number += 1
            sentences += len(document.src)
        if not number:
            raise DataError(f"{path.name}: the downloaded files hold no documents; they are another release or damaged")
    return number, sentences


def _lines(source: Path, target: Path, skipped: Skipped) -> Iterator[Document]:
    return AlignedText().read_corpus((source, target), DocumentAssembler(skipped=skipped, by_line=True))


def _maruf(split: Split, work: Workspace, skipped: Skipped) -> Iterator[Document]:
    stem = {"valid": "dev", "test": "test"}[split]
    files = (work.raw / f"concatenated_en2de_{stem}_{language}.txt" for language in ("en", "de"))
    source, target = map(read_marked_lines, files)
    return side_by_side(source, target, f"maruf-{stem}", skipped)


def _leak_key(sentence: str) -> str:
    """Returns what two editions of a sentence have in common; empty for a short one, which proves nothing."""
    words = sentence.split()
    return "".join(words).lower() if len(words) >= LEAK_WORDS else ""


MOST_LINE_BYTES = 2**20
_MARK = re.compile(r"<doc\b([^<>]*+)>|<seg\b([^<>]*+)>([^<]*+(?:<(?!/?seg\b)[^<]*+)*+)</seg>", re.IGNORECASE)
_DOCID = re.compile(r"""\bdocid\s*=\s*["']?([^"'>]*)""", re.IGNORECASE)
_SEGMENT = re.compile(r"""\bid\s*=\s*["']?([^"'\s>]+)""", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#\d{1,9}|#x[0-9a-fA-F]{1,9});")
_HEADER = re.compile(r"</?(?:doc|url|keywords|speaker|talkid|title|description|reviewer|translator)\b")
_TALK_ID = re.compile(r"<talkid>\s*+([^\s<]++)\s*+</talkid>")


@dataclass
class MarkedDocument:
    """A marked document has the sentences of one language by the ids that they have in the file."""

    name: str
    sentences: dict[str, str] = field(default_factory=dict)

    def append(self, sentence: str) -> None:
        """Adds a sentence that has no id but its place."""
        self.sentences[str(len(self.sentences))] = sentence


def read_segments(path: Path) -> list[MarkedDocument]:
    """Reads the SGML of the WMT tests and the XML of the IWSLT tests: <doc docid=...> around <seg id=...>."""
    text = "\n".join(_text_lines(path))
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
    """Replaces the entities of XML by their characters; an ampersand that belongs to none stays."""
    return _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)


def read_talks(path: Path) -> list[MarkedDocument]:
    """Reads the training files of IWSLT: lines of tags (url, talkid, title, ...) before the plain lines of a talk."""
    talks: list[MarkedDocument] = []
    in_header = False
    for line in _text_lines(path):
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
    """Reads a sentence a line; a line with `mark` alone begins a document."""
    documents: list[MarkedDocument] = []
    for line in _text_lines(path):
        if line == mark:
            documents.append(MarkedDocument(str(len(documents))))
        elif not documents:
            raise DataError(f"{path}: does not begin with {mark}; the file is damaged")
        else:
            documents[-1].append(line)
    return documents


def read_columns(path: Path, skipped: Skipped, *, longest: int) -> Iterator[list[tuple[str, str]]]:
    """Reads two tab-separated columns; a blank row ends a document, and so do `longest` rows without one."""
    rows: list[tuple[str, str]] = []
    for number, line in enumerate(_text_lines(path), start=1):
        columns = [column.strip() for column in line.split("\t")]
        if not any(columns):
            if rows:
                yield rows
            rows = []
        elif len(columns) != 2:
            skipped.add(SkipReason.COLUMNS, f"{path.name}:{number}")
        else:
            if len(rows) == longest:
                skipped.add(SkipReason.CUT, f"{path.name}:{number}")
                yield rows
                rows = []
            rows.append((columns[0], columns[1]))
    if rows:
        yield rows


def side_by_side(
    sources: Iterable[MarkedDocument], targets: Iterable[MarkedDocument], prefix: str, skipped: Skipped
) -> Iterator[Document]:
    """Aligns documents of both languages by their names; one whose sentences differ is skipped and counted."""
    targets_by_key = dict(_keys(targets))
    for key, source in _keys(sources):
        place = f"{prefix}:{source.name}"
        target = targets_by_key.pop(key, None)
        if target is None:
            skipped.add(SkipReason.ONE_SIDED, place)
        elif source.sentences.keys() != target.sentences.keys():
            skipped.add(SkipReason.MISALIGNED, place)
        else:
            pairs = ((sentence, target.sentences[number]) for number, sentence in source.sentences.items())
            yield from join(place, pairs, skipped)
    for name, _ in targets_by_key:
        skipped.add(SkipReason.ONE_SIDED, f"{prefix}:{name}")


def join(name: str, pairs: Iterable[tuple[str, str]], skipped: Skipped) -> Iterator[Document]:
    """Yields the document of `pairs` without those that are empty on a side; nothing where none remains."""
    kept = []
    for number, (source, target) in enumerate(pairs, start=1):
        if source and target:
            kept.append((source, target))
        else:
            skipped.add(SkipReason.EMPTY, f"{name} sentence {number}")
    if kept:
        src, tgt = zip(*kept, strict=True)
        yield Document(name, src, tgt)
    else:
        skipped.add(SkipReason.NO_SENTENCES, name)


def _keys(documents: Iterable[MarkedDocument]) -> Iterator[tuple[tuple[str, int], MarkedDocument]]:
    """Yields each document with its name and occurrence, because names are not always unique."""
    seen: Counter[str] = Counter()
    for document in documents:
        yield (document.name, seen[document.name]), document
        seen[document.name] += 1


def _text_lines(path: Path) -> Iterator[str]:
    for number, line in numbered_lines(path, MOST_LINE_BYTES):
        if line is None:
            raise DataError(f"{path}:{number}: longer than {MOST_LINE_BYTES:,} bytes; the file is damaged")
        yield decode_line(line, path, number).strip(" \r\n")


def extract(archive: Path, names: Iterable[str], directory: Path) -> dict[str, Path]:
    """Unpacks the files called `names` (without their folders) into `directory`.

    An archive with a member that would end up elsewhere, or a link that points elsewhere, is refused whole.
    """
    if not hasattr(tarfile, "data_filter"):
        raise DataError(f"{archive}: unpacking what strangers packed needs Python 3.11.4 or newer; unpack it elsewhere")
    wanted = set(names)
    found: dict[str, Path] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                checked = tarfile.data_filter(member, str(directory))
                name = PurePosixPath(checked.name).name
                if name in wanted and name not in found and checked.isreg():
                    tar.extract(member, directory, filter="data")
                    found[name] = directory / checked.name
    except tarfile.FilterError as error:
        raise DataError(f"{archive}: refused, it would write outside its directory: {error}") from None
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{archive}: cannot be unpacked: {error}; delete it and download it again") from None
    except OSError as error:
        raise StorageError(
            f"{archive}: cannot be unpacked to {directory}: {error.strerror or error}; free some space"
        ) from None
    if missing := wanted - found.keys():
        raise DataError(f"{archive}: holds no {', '.join(sorted(missing))}; it is another release than expected")
    return found
