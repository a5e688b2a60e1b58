"""The store: what was written is read back, whole or refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from reluformer.errors import StorageError
from reluformer.files import write_text
from reluformer.translation.segments import Segment
from reluformer.translation.store import SegmentStore, write_segments


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
    monkeypatch.setattr("reluformer.translation.store._BATCH_ROWS", 7)
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
    monkeypatch.setattr("reluformer.translation.store._BATCH_TOKENS", 20)
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
    monkeypatch.setattr("reluformer.files.token_hex", lambda count: "0")
    (tmp_path / "a.arrow.0.partial").symlink_to("/dev/full")
    with pytest.raises(StorageError, match=r"a.arrow: cannot be written: .*; free some space"):
        write_segments(segments(5000), tmp_path / "a.arrow", 1000)
    (tmp_path / "b.json.0.partial").symlink_to("/dev/full")
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
    with pytest.raises(StorageError, match="list offsets out of order"):
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
