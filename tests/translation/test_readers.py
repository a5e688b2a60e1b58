"""Readers: whole documents, errors with file and line, and nothing dropped silently."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reluformer.errors import DataError
from reluformer.translation import skipped as reasons
from reluformer.translation.document import Document
from reluformer.translation.readers import read_documents
from reluformer.translation.recipe import CorpusSource, EmbeddedOptions, Limits
from reluformer.translation.skipped import PLACES_KEPT, Skipped

SHARED_DATA = Path(__file__).parents[3] / "shared" / "data"


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode("utf-8") if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def pair(
    directory: Path, src: str | bytes, tgt: str | bytes, *, documents: str = "blank_line", gz: str = ""
) -> CorpusSource:
    return CorpusSource(
        src=write(directory / f"a.en{gz}", src), tgt=write(directory / f"a.de{gz}", tgt), documents=documents
    )


def jsonl(directory: Path, *entries: object) -> CorpusSource:
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    return CorpusSource(path=write(directory / "a.jsonl", "\n".join(lines) + "\n"))


@pytest.mark.parametrize("gz", ["", ".gz"])
def test_blank_lines_end_documents_of_aligned_files(tmp_path: Path, gz: str) -> None:
    source = pair(tmp_path, "\none\ntwo\n\n\nthree\n", "\neins\nzwei\n\n\ndrei", gz=gz)
    assert list(read_documents(source)) == [
        Document(f"a.en{gz}:2", ("one", "two"), ("eins", "zwei")),
        Document(f"a.en{gz}:6", ("three",), ("drei",)),
    ]


def test_every_line_may_be_a_document(tmp_path: Path) -> None:
    source = pair(tmp_path, "one\ntwo\n", "eins\nzwei\n", documents="line")
    assert [(d.id, d.src, d.tgt) for d in read_documents(source)] == [
        ("a.en:1", ("one",), ("eins",)),
        ("a.en:2", ("two",), ("zwei",)),
    ]


def test_reading_is_lazy(tmp_path: Path) -> None:
    source = pair(tmp_path, b"one\n\n\xff\n", b"eins\n\nzwei\n")
    documents = read_documents(source)
    assert isinstance(documents, Iterator)
    assert next(documents).src == ("one",)
    with pytest.raises(DataError, match="not UTF-8"):
        next(documents)


def test_unicode_line_separators_do_not_shift_the_alignment(tmp_path: Path) -> None:
    tally = Skipped()
    source = pair(tmp_path, "a\u2028b\r\nc\x85d\x0be\x0cf\r\n", "eins\nzwei\n")
    (document,) = read_documents(source, skipped=tally)
    assert document == Document("a.en:1", ("a b", "c d e f"), ("eins", "zwei"))
    assert tally.counts == {reasons.CONTROL: 2}


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    (document,) = read_documents(pair(tmp_path, b"\xef\xbb\xbfone\n", "eins\n"))
    assert document.src == ("one",)


@pytest.mark.parametrize(
    ("src", "tgt", "place", "message"),
    [
        ("a\nb\nc\n", "a\nb\n", "a.de:3", "ends here with 2 lines, but .*a.en has 3"),
        ("a\n", "a\nb\nc\nd\n", "a.en:2", "ends here with 1 lines, but .*a.de has 4"),
        ("a\n\nb\n", "a\nb\nc\n", "a.en:2", "blank here but not in .*a.de"),
        ("a\nb\n", "a\n \n", "a.de:2", "blank here but not in .*a.en"),
        (b"a\nb\xc3\n", "a\nb\n", "a.en:2", "byte 0xc3 at position 2"),
        ("a\nb\n", b"a\nb\xfe\n", "a.de:2", "byte 0xfe at position 2"),
    ],
)
def test_misaligned_files_stop_with_file_and_line(
    tmp_path: Path, src: str | bytes, tgt: str | bytes, place: str, message: str
) -> None:
    with pytest.raises(DataError, match=rf"{place}: .*{message}"):
        list(read_documents(pair(tmp_path, src, tgt)))


def test_one_empty_side_drops_the_pair_where_lines_stand_alone(tmp_path: Path) -> None:
    tally = Skipped()
    source = pair(tmp_path, "a\n\nc\n\n", "x\ny\n \n\n", documents="line")
    assert [document.src for document in read_documents(source, skipped=tally)] == [("a",)]
    assert tally.counts == {reasons.EMPTY: 3}
    assert tally.places[reasons.EMPTY] == [f"{tmp_path / 'a.en'}:{line}" for line in (2, 3, 4)]


def test_over_long_lines_are_counted_and_never_shift_the_alignment(tmp_path: Path) -> None:
    tally = Skipped()
    huge = "x" * 3_000_000
    source = pair(tmp_path, f"a\n{huge}\nc\n{'é' * 11}\ne\n", "1\n2\n3\n4\n5\n", documents="line")
    kept = [d.tgt for d in read_documents(source, limits=Limits(sentence_characters=10), skipped=tally)]
    assert kept == [("1",), ("3",), ("5",)]
    assert tally.counts == {reasons.TOO_LONG: 2}


def test_a_line_at_the_limit_is_kept(tmp_path: Path) -> None:
    source = pair(tmp_path, "é" * 10 + "\r\n", "𝄞" * 10, documents="line")
    assert len(list(read_documents(source, limits=Limits(sentence_characters=10)))) == 1


def test_a_document_whose_sentences_are_all_dropped_is_counted(tmp_path: Path) -> None:
    tally = Skipped()
    source = pair(tmp_path, "\x00\n\nb\n", "x\n\ny\n")
    assert [document.src for document in read_documents(source, skipped=tally)] == [("b",)]
    assert tally.counts == {reasons.CONTROL: 1, reasons.EMPTY: 1, reasons.NO_SENTENCES: 1}


def test_missing_document_breaks_are_an_error_with_the_remedy(tmp_path: Path) -> None:
    source = pair(tmp_path, "a\n" * 5, "b\n" * 5)
    with pytest.raises(DataError, match=r"a.en:4: more than 3 sentences .* set documents: line"):
        list(read_documents(source, limits=Limits(document_sentences=3)))


@pytest.mark.parametrize("gz", ["", ".gz"])
def test_tsv_with_document_breaks(tmp_path: Path, gz: str) -> None:
    source = CorpusSource(path=write(tmp_path / f"a.tsv{gz}", "one\teins\ntwo\tzwei\n\nthree\tdrei\n \t\nfour\tvier\n"))
    assert [(d.src, d.tgt) for d in read_documents(source)] == [
        (("one", "two"), ("eins", "zwei")),
        (("three",), ("drei",)),
        (("four",), ("vier",)),
    ]


@pytest.mark.parametrize(("line", "columns"), [("no tab", 1), ("a\tb\tc", 3)])
def test_tsv_needs_two_columns(tmp_path: Path, line: str, columns: int) -> None:
    source = CorpusSource(path=write(tmp_path / "a.tsv", f"one\teins\n{line}\n"))
    with pytest.raises(DataError, match=rf"a.tsv:2: expected source<TAB>target, got {columns} columns"):
        list(read_documents(source))


def test_tsv_counts_an_empty_side_and_a_huge_line(tmp_path: Path) -> None:
    tally = Skipped()
    source = CorpusSource(path=write(tmp_path / "a.tsv", f"\teins\ntwo\t\n{'x' * 100}\ty\nfour\tvier\n"))
    (document,) = read_documents(source, skipped=tally, limits=Limits(sentence_characters=10))
    assert document.src == ("four",)
    assert tally.counts == {reasons.EMPTY: 2, reasons.TOO_LONG: 1}


def test_json_lines(tmp_path: Path) -> None:
    source = jsonl(
        tmp_path, {"id": "d/1", "src": ["a", "b"], "tgt": ["x", "y"], "extra": 1}, "", {"src": ["c"], "tgt": ["z"]}
    )
    assert list(read_documents(source)) == [
        Document("d/1", ("a", "b"), ("x", "y")),
        Document("a.jsonl:3", ("c",), ("z",)),
    ]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('{"src": ["a"', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "expected .* got list"),
        ({"src": ["a"]}, "'tgt' must be a list of sentences"),
        ({"src": "a", "tgt": ["b"]}, "'src' must be a list of sentences"),
        ({"src": ["a", 1], "tgt": ["b", "c"]}, "'src' must be a list of sentences"),
        ({"src": ["a", "b"], "tgt": ["x"]}, "2 source but 1 target sentences"),
        ({"src": ["a"] * 9, "tgt": ["x"] * 9}, "document_sentences=8"),
        ({"src": ["a" * 500_000], "tgt": ["x"]}, "document_bytes=200000"),
    ],
)
def test_json_errors_stop_with_file_and_line(tmp_path: Path, entry: object, message: str) -> None:
    source = jsonl(tmp_path, {"src": ["a"], "tgt": ["x"]}, entry)
    with pytest.raises(DataError, match=rf"a.jsonl:2: .*{message}"):
        list(read_documents(source, limits=Limits(document_sentences=8, document_bytes=200_000)))


def test_json_content_problems_are_counted(tmp_path: Path) -> None:
    tally = Skipped()
    source = jsonl(
        tmp_path,
        {"src": [], "tgt": []},
        {"src": ["a", " ", "b\nc", "d" * 11, '"\ud800"'], "tgt": ["x", "y", "z", "t", "u"]},
    )
    (document,) = read_documents(source, skipped=tally, limits=Limits(sentence_characters=10))
    assert document.src == ("a", "b c", '" "')
    assert tally.counts == {reasons.NO_SENTENCES: 1, reasons.EMPTY: 1, reasons.CONTROL: 2, reasons.TOO_LONG: 1}
    assert tally.places[reasons.EMPTY] == [f"{tmp_path / 'a.jsonl'}:2 sentence 2"]


def test_only_the_first_places_are_kept_and_the_tally_survives_json() -> None:
    tally = Skipped()
    for line in range(100):
        tally.add(reasons.EMPTY, f"a:{line}")
    assert tally.counts[reasons.EMPTY] == 100
    assert len(tally.places[reasons.EMPTY]) == PLACES_KEPT
    assert Skipped.from_json(json.loads(json.dumps(tally.to_json()))) == tally


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"b.jsonl: no such file"):
        list(read_documents(CorpusSource(path=tmp_path / "b.jsonl")))
    (tmp_path / "c.jsonl").mkdir()
    with pytest.raises(DataError, match=r"c.jsonl: cannot be opened"):
        list(read_documents(CorpusSource(path=tmp_path / "c.jsonl")))
    whole = gzip.compress(b'{"src": ["a"], "tgt": ["x"]}\n' * 1000)
    (tmp_path / "d.jsonl.gz").write_bytes(whole[:-12])
    with pytest.raises(DataError, match=r"d.jsonl.gz: cannot be read after line \d+"):
        list(read_documents(CorpusSource(path=tmp_path / "d.jsonl.gz")))
    (tmp_path / "e.jsonl.gz").write_bytes(b"not packed")
    with pytest.raises(DataError, match=r"e.jsonl.gz: cannot be read"):
        list(read_documents(CorpusSource(path=tmp_path / "e.jsonl.gz")))


def test_the_embedded_corpus_is_a_source() -> None:
    pytest.importorskip("reluformer.translation.embedded")
    source = CorpusSource(embedded=EmbeddedOptions(documents=3, seed=7, sentences=(2, 4)))
    train, again = list(read_documents(source)), list(read_documents(source))
    valid = list(read_documents(source, split="valid"))
    assert len(train) == 3
    assert train == again
    assert train != valid
    assert all(document.tgt is not None and len(document.src) == len(document.tgt) for document in train)


def test_the_shared_corpora_are_read_whole() -> None:
    if not SHARED_DATA.is_dir():
        pytest.skip("the shared corpora are not beside the repository")
    documents = list(read_documents(CorpusSource(path=SHARED_DATA / "europarl7-doc" / "test.jsonl.gz")))
    assert (len(documents), sum(len(document.src) for document in documents)) == (360, 5134)
    captions = SHARED_DATA / "multi30k"
    lines = CorpusSource(src=captions / "test.en.gz", tgt=captions / "test.de.gz", documents="line")
    assert len(list(read_documents(lines))) == 1000
