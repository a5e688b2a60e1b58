"""From the files of a public set to its documents, split by split."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from reluformer.errors import DataError
from reluformer.files import whole_file
from reluformer.translation.document import Document
from reluformer.translation.downloads import marked_text
from reluformer.translation.downloads.archives import extract
from reluformer.translation.readers import read_documents
from reluformer.translation.recipe import CorpusSource, Split
from reluformer.translation.skipped import Skipped

LEAKED = "document that shares a sentence with valid or test: dropped"
LEAK_WORDS = 10
LONGEST_DOCUMENT = 1000
VALID_EVERY = 23


@dataclass(frozen=True)
class Workspace:
    """The downloaded files, and a directory to unpack them in."""

    raw: Path
    scratch: Path

    def unpack(self, archive: str, *names: str) -> tuple[Path, ...]:
        """The files called `names` out of an archive."""
        found = extract(self.raw / archive, names, self.scratch)
        return tuple(found[name] for name in names)


Converter = Callable[[Split, Workspace, Skipped], Iterator[Document]]


def multi30k(split: Split, work: Workspace, skipped: Skipped) -> Iterator[Document]:
    """Every caption stands alone."""
    stem = {"train": "train", "valid": "val", "test": "test_2016_flickr"}[split]
    yield from _lines(work.raw / f"{stem}.en.gz", work.raw / f"{stem}.de.gz", skipped)


def iwslt14(split: Split, work: Workspace, skipped: Skipped) -> Iterator[Document]:
    """Talks. fairseq takes every 23rd line for valid; that would tear talks apart, so here it is every 23rd talk."""
    if split == "test":
        for part in ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"):
            stem = f"IWSLT14.{part}.de-en"
            source, target = map(
                marked_text.read_segments, work.unpack("de-en.tgz", f"{stem}.de.xml", f"{stem}.en.xml")
            )
            yield from marked_text.side_by_side(source, target, part, skipped)
        return
    tagged = work.unpack("de-en.tgz", "train.tags.de-en.de", "train.tags.de-en.en")
    source, target = map(marked_text.read_talks, tagged)
    for number, talk in enumerate(marked_text.side_by_side(source, target, "talk", skipped), start=1):
        if (number % VALID_EVERY == 0) == (split == "valid"):
            yield talk


def europarl7(split: Split, work: Workspace, skipped: Skipped) -> Iterator[Document]:
    """valid and test of Maruf et al.; train from Europarl v9 without what stands in those."""
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
    for number, rows in enumerate(marked_text.read_columns(path, skipped, longest=LONGEST_DOCUMENT), start=1):
        name = f"europarl-v9:{number}"
        if any(_leak_key(sentence) in held_out for row in rows for sentence in row):
            skipped.add(LEAKED, name)
        else:
            yield from marked_text.join(name, ((english, german) for german, english in rows), skipped)


def wmt14(split: Split, work: Workspace, skipped: Skipped) -> Iterator[Document]:
    """News in documents for valid and test; for train, three corpora of single sentences."""
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
    source, target = map(marked_text.read_segments, work.unpack(archive, *names))
    yield from marked_text.side_by_side(source, target, prefix, skipped)


CONVERTERS: dict[str, Converter] = {
    "multi30k": multi30k,
    "iwslt14": iwslt14,
    "europarl7": europarl7,
    "wmt14": wmt14,
}


def write_documents(documents: Iterable[Document], path: Path) -> tuple[int, int]:
    """Write JSON lines, gzipped, whole or not at all and the same bytes every time; count documents and sentences."""
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
    return read_documents(CorpusSource(src=source, tgt=target, documents="line"), skipped=skipped)


def _maruf(split: Split, work: Workspace, skipped: Skipped) -> Iterator[Document]:
    stem = {"valid": "dev", "test": "test"}[split]
    files = (work.raw / f"concatenated_en2de_{stem}_{language}.txt" for language in ("en", "de"))
    source, target = map(marked_text.read_marked_lines, files)
    return marked_text.side_by_side(source, target, f"maruf-{stem}", skipped)


def _leak_key(sentence: str) -> str:
    """What two editions of a sentence have in common; empty for a short one, which proves nothing."""
    words = sentence.split()
    return "".join(words).lower() if len(words) >= LEAK_WORDS else ""
