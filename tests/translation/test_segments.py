"""Segments: documents cut at sentence borders, and the store, which gives back what was written."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reluformer.errors import ArgumentError, StorageError
from reluformer.files import write_text
from reluformer.translation.document import Document, Skipped, SkipReason
from reluformer.translation.recipe import Limits, SegmentConfig, TokenizerConfig
from reluformer.translation.segments import (
    EncodedDocument,
    Segment,
    SegmentStore,
    cut,
    encode_documents,
    write_segments,
)
from reluformer.translation.tokenizer import END, SEPARATOR, Tokenizer


def document(name: str, *lengths: int | tuple[int, int]) -> EncodedDocument:
    """A document of sentences of these lengths; all tokens of sentence i are 10 + i, plus 100 in the target."""
    sides = [length if isinstance(length, tuple) else (length, length) for length in lengths]
    return EncodedDocument(name, [([10 + i] * s, [110 + i] * t) for i, (s, t) in enumerate(sides)])


def ranges(segments: list[Segment]) -> list[tuple[str, int, int]]:
    return [(segment.document, segment.first_sentence, segment.sentences) for segment in segments]


def test_separators_between_sentences_and_the_end_at_the_end() -> None:
    (segment,) = cut([document("a", 2, (1, 3))], SegmentConfig(segment_tokens=8))
    assert segment.source.tolist() == [10, 10, SEPARATOR, 11, END]
    assert segment.target.tolist() == [110, 110, SEPARATOR, 111, 111, 111, END]


def test_the_limit_counts_separators_and_end_on_the_longer_side() -> None:
    config = SegmentConfig(segment_tokens=8)
    assert ranges(list(cut([document("a", 3, 3)], config))) == [("a", 0, 2)]
    assert ranges(list(cut([document("a", 3, (1, 4))], config))) == [("a", 0, 1), ("a", 1, 1)]
    assert ranges(list(cut([document("a", (4, 1), (4, 1))], config))) == [("a", 0, 1), ("a", 1, 1)]


def test_sentence_by_sentence() -> None:
    segments = list(cut([document("a", 1, 2), document("b", 3)], SegmentConfig(segment_tokens="sentence")))
    assert ranges(segments) == [("a", 0, 1), ("a", 1, 1), ("b", 0, 1)]
    assert segments[1].source.tolist() == [11, 11, END]


def test_a_share_of_the_documents_sentence_by_sentence() -> None:
    config = SegmentConfig(segment_tokens=20, lone_sentences=0.5, join_documents=True, join_across_groups=True)
    found = ranges(list(cut([document(name, 2, 2) for name in "abcd"], config)))
    assert found == [("a", 0, 2), ("b", 0, 1), ("b", 1, 1), ("c", 0, 2), ("d", 0, 1), ("d", 1, 1)]


def test_a_sentence_longer_than_a_segment_is_counted_and_never_truncated() -> None:
    tally = Skipped()
    segments = list(cut([document("a", 1, 8, 1)], SegmentConfig(segment_tokens=8), skipped=tally))
    assert ranges(segments) == [("a", 0, 1), ("a", 2, 1)]
    assert tally.counts == {SkipReason.OVER_SEGMENT: 1}
    assert tally.places[SkipReason.OVER_SEGMENT] == ["document a sentence 2"]


def test_single_sentences_have_a_limit_of_their_own() -> None:
    tally = Skipped()
    config, limits = SegmentConfig(segment_tokens="sentence"), Limits(sentence_tokens=5)
    segments = list(cut([document("a", 4, 5, (1, 9))], config, limits=limits, skipped=tally))
    assert ranges(segments) == [("a", 0, 1)]
    assert tally.counts == {SkipReason.OVER_SEGMENT: 2}


def test_documents_stay_apart_unless_joined() -> None:
    documents = [document("d/1", 2), document("d/2", 2)]
    assert ranges(list(cut(documents, SegmentConfig(segment_tokens=16)))) == [("d/1", 0, 1), ("d/2", 0, 1)]
    (joined,) = cut(documents, SegmentConfig(segment_tokens=16, join_documents=True))
    assert joined.source.tolist() == [10, 10, SEPARATOR, 10, 10, END]
    assert (joined.document, joined.first_sentence, joined.sentences) == ("d/1", 0, 2)


def test_only_turns_of_one_debate_are_joined_unless_told_otherwise() -> None:
    documents = [document(name, 2) for name in ("x/d/1", "x/d/2", "x/e/1", "f", "g")]
    own = SegmentConfig(segment_tokens=64, join_documents=True)
    assert ranges(list(cut(documents, own))) == [("x/d/1", 0, 2), ("x/e/1", 0, 1), ("f", 0, 1), ("g", 0, 1)]
    assert ranges(list(cut(documents, own.replace(join_across_groups=True)))) == [("x/d/1", 0, 5)]


def test_joining_never_cuts_a_document_that_fits() -> None:
    documents = [document("d/1", 3), document("d/2", 3, 3), document("d/3", 5, 5), document("d/4", 1)]
    segments = list(cut(documents, SegmentConfig(segment_tokens=8, join_documents=True)))
    assert ranges(segments) == [("d/1", 0, 1), ("d/2", 0, 2), ("d/3", 0, 1), ("d/3", 1, 2)]


@settings(deadline=None)
@given(
    lengths=st.lists(st.lists(st.tuples(st.integers(1, 14), st.integers(1, 14)), min_size=1, max_size=6), max_size=6),
    most=st.integers(8, 40),
    join=st.booleans(),
)
def test_nothing_is_lost_and_nothing_is_over_the_limit(
    lengths: list[list[tuple[int, int]]], most: int, join: bool
) -> None:
    documents = [document(f"d/{i}", *sentences) for i, sentences in enumerate(lengths)]
    tally = Skipped()
    segments = list(cut(documents, SegmentConfig(segment_tokens=most, join_documents=join), skipped=tally))
    pairs = [pair for encoded in documents for pair in encoded.pairs if max(map(len, pair)) < most]
    for side in (0, 1):
        rows = [(segment.source, segment.target)[side].tolist() for segment in segments]
        kept = [token for row in rows for token in row if token not in (SEPARATOR, END)]
        assert kept == list(chain.from_iterable(pair[side] for pair in pairs))
        assert all(len(row) <= most and row[-1] == END and row.count(END) == 1 for row in rows)
    assert sum(segment.sentences for segment in segments) == len(pairs)
    assert sum(tally.counts.values()) == sum(map(len, lengths)) - len(pairs)


def test_encoding_in_batches_keeps_documents_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reluformer.translation.segments.ENCODE_SENTENCES", 3)
    tokenizer = Tokenizer.train(["one two three"], TokenizerConfig(vocab_size=300))
    documents = [Document(str(n), ("one",) * n, ("two three",) * n) for n in (1, 2, 5, 1)]
    encoded = list(encode_documents(documents, tokenizer))
    assert [(entry.id, len(entry.pairs)) for entry in encoded] == [("1", 1), ("2", 2), ("5", 5), ("1", 1)]
    assert encoded[2].pairs[4] == (tokenizer.encode("one"), tokenizer.encode("two three"))


def test_a_document_without_translation_cannot_be_learned_from() -> None:
    tokenizer = Tokenizer.train(["one"], TokenizerConfig(vocab_size=300))
    with pytest.raises(ArgumentError, match="'a' has no translation"):
        list(encode_documents([Document("a", ("one",))], tokenizer))


def segments(count: int, vocab_size: int = 1000) -> list[Segment]:
    draw = np.random.default_rng(count)
    return [
        Segment(f"d/{i}", i, 2, *(draw.integers(0, vocab_size, size=1 + draw.integers(1, 9)) for _ in range(2)))
        for i in range(count)
    ]


def assert_equal(found: Segment, expected: Segment) -> None:
    assert (found.document, found.first_sentence, found.sentences) == (
        expected.document,
        expected.first_sentence,
        expected.sentences,
    )
    assert found.source.tolist() == expected.source.tolist()
    assert found.target.tolist() == expected.target.tolist()


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.int32)])
def test_segments_come_back_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocab_size: int, dtype: type
) -> None:
    monkeypatch.setattr("reluformer.translation.segments.BATCH_ROWS", 7)
    written = segments(50, vocab_size)
    assert write_segments(written, tmp_path / "a.arrow", vocab_size) == 50
    store = SegmentStore(tmp_path / "a.arrow")
    assert len(store) == 50
    for index in (49, 0, 7, 6, 13, 14, 30):
        assert_equal(store[index], written[index])
    assert_equal(store[-1], written[-1])
    assert store[3].source.dtype == dtype
    assert store.source_lengths.tolist() == [len(segment.source) for segment in written]
    assert store.target_lengths.tolist() == [len(segment.target) for segment in written]


def test_a_batch_also_ends_with_its_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reluformer.translation.segments.BATCH_TOKENS", 20)
    written = segments(9)
    write_segments(written, tmp_path / "a.arrow", 1000)
    with pa.memory_map(str(tmp_path / "a.arrow")) as file:
        assert pa.ipc.open_file(file).num_record_batches > 3
    assert_equal(SegmentStore(tmp_path / "a.arrow")[8], written[8])


def test_an_index_outside_is_refused(tmp_path: Path) -> None:
    write_segments(segments(3), tmp_path / "a.arrow", 1000)
    store = SegmentStore(tmp_path / "a.arrow")
    for index in (3, -4):
        with pytest.raises(IndexError, match="of 3"):
            store[index]


def test_an_empty_store_is_empty(tmp_path: Path) -> None:
    write_segments([], tmp_path / "a.arrow", 1000)
    store = SegmentStore(tmp_path / "a.arrow")
    assert len(store) == 0
    assert store.source_lengths.tolist() == []


def test_a_failed_write_leaves_nothing_and_keeps_what_was_there(tmp_path: Path) -> None:
    def failing() -> Iterator[Segment]:
        yield from segments(3)
        raise RuntimeError("stop")

    write_segments(segments(5), tmp_path / "a.arrow", 1000)
    with pytest.raises(RuntimeError, match="stop"):
        write_segments(failing(), tmp_path / "a.arrow", 1000)
    assert [path.name for path in tmp_path.iterdir()] == ["a.arrow"]
    assert len(SegmentStore(tmp_path / "a.arrow")) == 5


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_a_storage_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda count: bytes(count))
    (tmp_path / ".a.arrow.reluformer-00000000.partial").symlink_to("/dev/full")
    with pytest.raises(StorageError, match=r"a.arrow: cannot be written: .*; free some space"):
        write_segments(segments(5000), tmp_path / "a.arrow", 1000)
    (tmp_path / ".b.json.reluformer-00000000.partial").symlink_to("/dev/full")
    with pytest.raises(StorageError, match=r"b.json: cannot be written: No space left"):
        write_text(tmp_path / "b.json", "{}")
    assert list(tmp_path.iterdir()) == []


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    with pytest.raises(StorageError, match="no such file"):
        SegmentStore(path)
    write_segments(segments(20), path, 1000)
    whole = path.read_bytes()
    for damaged in (b"", b"garbage", whole[:-30], whole[: len(whole) // 2], whole[:-400] + b"\xff" * 390 + whole[-10:]):
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match=r"a.arrow: damaged or not a segment store"):
            SegmentStore(path)


def test_offsets_out_of_order_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    rows = [Segment("d", 0, 1, np.array([5] * n), np.array([6] * n)) for n in (3, 1000, 4)]
    write_segments(rows, path, 2000)
    whole = path.read_bytes()
    offsets = np.array([0, 3, 1003, 1007], dtype=np.int32).tobytes()
    assert whole.count(offsets) == 2
    path.write_bytes(whole.replace(offsets, np.array([0, 1003, 3, 1007], dtype=np.int32).tobytes()))
    with pytest.raises(StorageError, match="non-monotonic offset"):
        SegmentStore(path)


@pytest.mark.parametrize("damage", ["offset", "text"])
def test_damaged_names_of_documents_are_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.arrow"
    rows = [Segment(name, 0, 1, np.array([5, 6]), np.array([7])) for name in ("first", "second", "last")]
    write_segments(rows, path, 2000)
    whole = path.read_bytes()
    offsets = np.array([0, 5, 11, 15], dtype=np.int32).tobytes()
    assert (whole.count(offsets), whole.count(b"firstsecondlast")) == (1, 1)
    if damage == "offset":
        path.write_bytes(whole.replace(offsets, np.array([0, 2**30, 11, 15], dtype=np.int32).tobytes()))
    else:
        path.write_bytes(whole.replace(b"firstsecondlast", b"first\xffecondlast"))
    with pytest.raises(StorageError, match=r"a.arrow: damaged or not a segment store"):
        SegmentStore(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "segment format none"),
        ({"reluformer.segments": "99"}, "segment format 99, this version reads 1"),
        ({"reluformer.segments": "1", "reluformer.vocab_size": "9"}, "its columns are not those"),
    ],
)
def test_foreign_arrow_files_are_refused(tmp_path: Path, metadata: dict[str, str], message: str) -> None:
    schema = pa.schema({"x": pa.int32()}, metadata=metadata)
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, schema):
        pass
    with pytest.raises(StorageError, match=message):
        SegmentStore(tmp_path / "a.arrow")
