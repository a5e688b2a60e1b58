"""Corpora: read with file and line in every error, prepared once, and found again while nothing changed."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console

from reluformer.errors import ArgumentError, DataError, StorageError
from reluformer.translation.corpus import PreparedCorpus, prepare, read_documents
from reluformer.translation.document import PLACES_KEPT, Document, Skipped, SkipReason
from reluformer.translation.recipe import CorpusSource, DataConfig, EmbeddedOptions, Limits
from reluformer.translation.tokenizer import Tokenizer

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
    assert tally.counts == {SkipReason.CONTROL: 2}


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
    assert tally.counts == {SkipReason.EMPTY: 3}
    assert tally.places[SkipReason.EMPTY] == [f"{tmp_path / 'a.en'}:{line}" for line in (2, 3, 4)]


def test_over_long_lines_are_counted_and_never_shift_the_alignment(tmp_path: Path) -> None:
    tally = Skipped()
    huge = "x" * 3_000_000
    source = pair(tmp_path, f"a\n{huge}\nc\n{'é' * 11}\ne\n", "1\n2\n3\n4\n5\n", documents="line")
    kept = [d.tgt for d in read_documents(source, limits=Limits(sentence_characters=10), skipped=tally)]
    assert kept == [("1",), ("3",), ("5",)]
    assert tally.counts == {SkipReason.TOO_LONG: 2}


def test_a_line_at_the_limit_is_kept(tmp_path: Path) -> None:
    source = pair(tmp_path, "é" * 10 + "\r\n", "𝄞" * 10, documents="line")
    assert len(list(read_documents(source, limits=Limits(sentence_characters=10)))) == 1


def test_a_document_whose_sentences_are_all_dropped_is_counted(tmp_path: Path) -> None:
    tally = Skipped()
    source = pair(tmp_path, "\x00\n\nb\n", "x\n\ny\n")
    assert [document.src for document in read_documents(source, skipped=tally)] == [("b",)]
    assert tally.counts == {SkipReason.CONTROL: 1, SkipReason.EMPTY: 1, SkipReason.NO_SENTENCES: 1}


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


def test_csv_with_a_heading_and_quoted_cells(tmp_path: Path) -> None:
    text = 'en,de\none,eins\n"two, ""2""","zwei\n2"\n,\nthree,drei\n'
    source = CorpusSource(path=write(tmp_path / "a.csv", text))
    assert list(read_documents(source)) == [
        Document("a.csv:2", ("one", 'two, "2"'), ("eins", "zwei 2")),
        Document("a.csv:6", ("three",), ("drei",)),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\none, two,drei\n", r"a\.csv:2: expected source,target, got 3 columns"),
        ('a,b\n"one,eins\n', r"a\.csv:2: a cell in quotes that begins here does not end"),
        ('a,b\n"' + "one\n" * 1000, r"a\.csv:2: a cell in quotes"),
    ],
)
def test_csv_that_cannot_be_read_has_a_place(tmp_path: Path, text: str, message: str) -> None:
    source = CorpusSource(path=write(tmp_path / "a.csv", text))
    with pytest.raises(DataError, match=message):
        list(read_documents(source, limits=Limits(sentence_characters=50)))


def test_tsv_counts_an_empty_side_and_a_huge_line(tmp_path: Path) -> None:
    tally = Skipped()
    source = CorpusSource(path=write(tmp_path / "a.tsv", f"\teins\ntwo\t\n{'x' * 100}\ty\nfour\tvier\n"))
    (document,) = read_documents(source, skipped=tally, limits=Limits(sentence_characters=10))
    assert document.src == ("four",)
    assert tally.counts == {SkipReason.EMPTY: 2, SkipReason.TOO_LONG: 1}


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
        ('{"src": ["a"', "not JSON"),
        ("[" * 100_000, "nested more than 100 deep"),
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
    assert tally.counts == {
        SkipReason.NO_SENTENCES: 1,
        SkipReason.EMPTY: 1,
        SkipReason.CONTROL: 2,
        SkipReason.TOO_LONG: 1,
    }
    assert tally.places[SkipReason.EMPTY] == [f"{tmp_path / 'a.jsonl'}:2 sentence 2"]


def test_only_the_first_places_are_kept_and_the_tally_survives_json() -> None:
    tally = Skipped()
    for line in range(100):
        tally.add(SkipReason.EMPTY, f"a:{line}")
    assert tally.counts[SkipReason.EMPTY] == 100
    assert len(tally.places[SkipReason.EMPTY]) == PLACES_KEPT
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


SENTENCES = [
    ("The house is old.", "Das Haus ist alt."),
    ("It stands near the river.", "Es steht am Fluss."),
    ("Nobody lives there.", "Niemand wohnt dort."),
    ("We saw it yesterday.", "Wir haben es gestern gesehen."),
]


def write_split(path: Path, documents: int) -> Path:
    entries = [
        {
            "id": f"talk/{n}",
            "src": [s for s, _ in SENTENCES[: 1 + n % 4]],
            "tgt": [t for _, t in SENTENCES[: 1 + n % 4]],
        }
        for n in range(documents)
    ]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), "utf-8")
    return path


@pytest.fixture
def config(tmp_path: Path) -> DataConfig:
    return DataConfig(
        train={"path": write_split(tmp_path / "train.jsonl", 40)},
        valid={"path": write_split(tmp_path / "valid.jsonl", 5)},
        tokenizer={"vocab_size": 350},
        segments={"segment_tokens": 64},
    )


def test_what_is_stored_is_the_text(config: DataConfig, tmp_path: Path) -> None:
    summary = prepare(config, tmp_path / "out")
    corpus = PreparedCorpus(tmp_path / "out")
    store, documents = corpus.store("valid"), list(corpus.documents("valid"))
    assert [store[i].document for i in range(len(store))] == [f"talk/{n}" for n in range(5)]
    for index, document in enumerate(documents):
        assert tuple(corpus.tokenizer.decode_sentences(store[index].source.tolist())) == document.src
        assert tuple(corpus.tokenizer.decode_sentences(store[index].target.tolist())) == document.tgt
    figures = summary.splits["valid"]
    assert (figures.documents, figures.sentences, figures.segments) == (5, 11, 5)
    assert figures.source_tokens == store.source_lengths.sum()
    assert figures.target_tokens == store.target_lengths.sum()
    assert corpus.summary == summary
    assert corpus.config == config.resolved()


def test_only_the_train_split_shows_sentences_alone(config: DataConfig, tmp_path: Path) -> None:
    segments = config.segments.replace(lone_sentences=1.0)
    splits = prepare(config.replace(segments=segments), tmp_path / "out").splits
    assert splits["train"].segments == splits["train"].sentences == 100
    assert splits["valid"].segments == splits["valid"].documents == 5


def test_an_unchanged_corpus_is_found_prepared(config: DataConfig, tmp_path: Path) -> None:
    first = prepare(config, tmp_path / "out")
    written = (tmp_path / "out" / "train.arrow").stat().st_mtime_ns
    again = prepare(config, tmp_path / "out")
    assert (first.reused, again.reused) == (False, True)
    assert again.splits == first.splits
    assert (tmp_path / "out" / "train.arrow").stat().st_mtime_ns == written


def test_a_changed_file_or_configuration_is_prepared_again(config: DataConfig, tmp_path: Path) -> None:
    prepare(config, tmp_path / "out")
    file = config.train.files[0]
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    assert not prepare(config, tmp_path / "out").reused
    shorter = config.replace(segments=config.segments.replace(segment_tokens="sentence"))
    assert not prepare(shorter, tmp_path / "out").reused
    write_split(file, 41)
    assert prepare(shorter, tmp_path / "out").splits["train"].documents == 41


@pytest.mark.parametrize("name", ["train.arrow", "tokenizer.json", "manifest.json"])
def test_a_damaged_directory_is_refused_and_prepared_again(config: DataConfig, tmp_path: Path, name: str) -> None:
    prepare(config, tmp_path / "out")
    file = tmp_path / "out" / name
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(StorageError, match=name):
        PreparedCorpus(tmp_path / "out")
    assert not prepare(config, tmp_path / "out").reused
    assert len(PreparedCorpus(tmp_path / "out").store("train")) == 40


def test_a_store_that_is_damaged_at_its_size_is_prepared_again(config: DataConfig, tmp_path: Path) -> None:
    prepare(config, tmp_path / "out")
    file = tmp_path / "out" / "train.arrow"
    file.write_bytes(b"x" * file.stat().st_size)
    with pytest.raises(StorageError, match="prepare the data again"):
        PreparedCorpus(tmp_path / "out").store("train")
    assert not prepare(config, tmp_path / "out").reused
    assert len(PreparedCorpus(tmp_path / "out").store("train")) == 40


def test_a_preparation_that_fails_never_looks_finished(config: DataConfig, tmp_path: Path) -> None:
    prepare(config, tmp_path / "out")
    config.splits["valid"].files[0].write_text('{"src": ["a"]}\n', "utf-8")
    with pytest.raises(DataError, match=r"valid.jsonl:1"):
        prepare(config, tmp_path / "out")
    with pytest.raises(StorageError, match="no prepared corpus here"):
        PreparedCorpus(tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.partial"))


def test_manifests_that_do_not_fit_are_refused(config: DataConfig, tmp_path: Path) -> None:
    prepare(config, tmp_path / "out")
    path = tmp_path / "out" / "manifest.json"
    manifest = json.loads(path.read_text("utf-8"))
    for change, message in [
        ({"format": 2}, "manifest of format 2"),
        ({"splits": {}}, "manifest is damaged"),
        ({"config": {"train": {"pth": "x"}}}, "manifest is damaged"),
        ({"tokenizer": "0" * 64}, "another tokenizer"),
    ]:
        path.write_text(json.dumps({**manifest, **change}), "utf-8")
        with pytest.raises(StorageError, match=message):
            PreparedCorpus(tmp_path / "out")


def test_a_given_tokenizer_is_used_as_it_is(config: DataConfig, tmp_path: Path) -> None:
    given = Tokenizer.train(["something else altogether"], config.tokenizer)
    given.save(tmp_path / "tokenizer")
    with_path = config.replace(tokenizer=config.tokenizer.replace(path=tmp_path / "tokenizer"))
    assert prepare(with_path, tmp_path / "out").tokenizer_fingerprint == given.fingerprint
    assert PreparedCorpus(tmp_path / "out").tokenizer.fingerprint == given.fingerprint
    Tokenizer.train(["yet another one"], config.tokenizer).save(tmp_path / "tokenizer")
    assert not prepare(with_path, tmp_path / "out").reused


def test_what_was_left_out_is_in_the_summary(config: DataConfig, tmp_path: Path) -> None:
    with config.train.files[0].open("a", encoding="utf-8") as file:
        file.write(json.dumps({"src": ["a", "b", "c " * 100], "tgt": ["", "b\x07", "c " * 100]}) + "\n")
    summary = prepare(config, tmp_path / "out")
    assert summary.splits["train"].skipped.counts == {
        SkipReason.EMPTY: 1,
        SkipReason.CONTROL: 1,
        SkipReason.OVER_SEGMENT: 1,
    }
    assert prepare(config, tmp_path / "out").splits["train"].skipped == summary.splits["train"].skipped
    console = Console(width=200, record=True, file=(tmp_path / "log").open("w", encoding="utf-8"))
    with console.file:
        console.print(summary.table(), summary.skipped_table())
    text = console.export_text()
    assert "350" in text
    assert all(reason in text for reason in (SkipReason.EMPTY, SkipReason.CONTROL, SkipReason.OVER_SEGMENT))
    assert f"{config.train.files[0]}:41 sentence 1" in text
    assert json.loads(json.dumps(summary.to_json()))["splits"]["train"]["skipped"][SkipReason.EMPTY]["count"] == 1


def test_brackets_in_names_are_no_markup(config: DataConfig, tmp_path: Path) -> None:
    entry = {"id": "talk [/b] 3", "src": ["a", "b " * 100], "tgt": ["a", "b " * 100]}
    config.splits["valid"].files[0].write_text(json.dumps(entry) + "\n", "utf-8")
    summary = prepare(config, tmp_path / "out [/b]")
    console = Console(width=200)
    with console.capture() as capture:
        console.print(summary.table(), summary.skipped_table())
    assert "out [/b]: vocabulary" in " ".join(capture.get().split())  # a long title is wrapped
    assert "document talk [/b] 3 sentence 2" in capture.get()


def test_nothing_left_out_has_no_table(config: DataConfig, tmp_path: Path) -> None:
    assert prepare(config, tmp_path / "out").skipped_table() is None


def test_preparing_twice_gives_the_same_bytes(config: DataConfig, tmp_path: Path) -> None:
    prepare(config, tmp_path / "one")
    prepare(config, tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_token_that_was_changed_on_disk_is_noticed_and_the_corpus_prepared_again(
    config: DataConfig, tmp_path: Path
) -> None:
    prepare(config, tmp_path / "out")
    whole = PreparedCorpus(tmp_path / "out")
    tokens = whole.store("train")[3].source.tobytes()
    path = tmp_path / "out" / "train.arrow"
    content = path.read_bytes()
    assert tokens in content
    path.write_bytes(content.replace(tokens, tokens[2:4] + tokens[:2] + tokens[4:], 1))
    with pytest.raises(StorageError, match=r"train\.arrow: damaged, its checksum is not that of the manifest"):
        PreparedCorpus(tmp_path / "out").checksum("train")
    assert not prepare(config, tmp_path / "out").reused
    assert path.read_bytes() == content


def test_the_checksum_follows_the_segments_and_not_the_names(config: DataConfig, tmp_path: Path) -> None:
    prepare(config, tmp_path / "one")
    train = config.train.files[0]
    moved = config.replace(train={"path": train.rename(train.with_name("moved.jsonl"))})
    prepare(moved, tmp_path / "two")
    one, two = (PreparedCorpus(tmp_path / name) for name in ("one", "two"))
    assert one.checksum("train") == two.checksum("train") != one.checksum("valid")


def test_a_pipe_or_a_device_is_no_corpus(config: DataConfig, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tsv")
    with pytest.raises(DataError, match=r"pipe\.tsv: is a named pipe, not a regular file"):
        prepare(config.replace(train={"path": tmp_path / "pipe.tsv"}), tmp_path / "out")
    with pytest.raises(DataError, match="/dev/zero: is a device"):
        prepare(config.replace(train={"path": "/dev/zero", "format": "tsv"}), tmp_path / "out")


def test_progress_ends_with_all_pairs(config: DataConfig, tmp_path: Path) -> None:
    told: dict[str, tuple[int, int | None]] = {}
    prepare(config, tmp_path / "out", progress=lambda what, pairs, total: told.update({what: (pairs, total)}))
    assert told == {"tokenizer": (100, None), "train": (100, 100), "valid": (11, None)}


def test_errors_name_the_split_and_the_remedy(config: DataConfig, tmp_path: Path) -> None:
    missing = config.replace(test={"path": tmp_path / "missing.tsv"})
    with pytest.raises(DataError, match=r"missing.tsv: No such file"):
        prepare(missing, tmp_path / "out")
    (tmp_path / "empty.jsonl").write_text(json.dumps({"src": [""], "tgt": [""]}) + "\n", "utf-8")
    with pytest.raises(DataError, match=rf"test: no documents in .*empty.jsonl; {SkipReason.EMPTY}: 1"):
        prepare(config.replace(test={"path": tmp_path / "empty.jsonl"}), tmp_path / "out")
    (tmp_path / "long.tsv").write_text("long " * 99 + "\tlang\n", "utf-8")
    with pytest.raises(DataError, match=r"test: every sentence is longer than segment_tokens=64"):
        prepare(config.replace(test={"path": tmp_path / "long.tsv"}), tmp_path / "out")
    single = config.segments.replace(segment_tokens="sentence")
    with pytest.raises(DataError, match=r"train: every sentence is longer than limits\.sentence_tokens=2; raise it"):
        prepare(config.replace(segments=single, limits={"sentence_tokens": 2}), tmp_path / "out")
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(StorageError, match="cannot be made"):
        prepare(config, tmp_path / "file")


def test_a_split_that_was_not_prepared_is_named(config: DataConfig, tmp_path: Path) -> None:
    prepare(config, tmp_path / "out")
    with pytest.raises(ArgumentError, match="no split 'test'; prepared: train, valid"):
        PreparedCorpus(tmp_path / "out").store("test")


def test_relative_paths_mean_the_same_from_elsewhere(
    config: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(config.replace(valid={"path": "valid.jsonl"}), "out")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(list(PreparedCorpus(tmp_path / "out").documents("valid"))) == 5


def test_two_at_once_prepare_once(config: DataConfig, tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="this system has no file locks")
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(prepare, config, tmp_path / "out") for _ in range(2)]
    assert sorted(summary.result().reused for summary in both) == [False, True]


def test_the_embedded_corpus_is_prepared(tmp_path: Path) -> None:
    embedded = {"embedded": {"documents": 20, "sentences": [2, 4]}}
    config = DataConfig(train=embedded, test=embedded, tokenizer={"vocab_size": 400})
    summary = prepare(config, tmp_path / "out")
    assert summary.splits["train"].documents == 20
    assert prepare(config, tmp_path / "out").reused
    train, test = (list(PreparedCorpus(tmp_path / "out").documents(split)) for split in ("train", "test"))
    assert train != test


def test_several_sources_of_a_split(config: DataConfig, tmp_path: Path) -> None:
    write_split(tmp_path / "more.jsonl", 7)
    (tmp_path / "extra.tsv").write_text("zebra zoo\tZebra Zoo\n" * 30, "utf-8")
    sources = [config.train, {"path": tmp_path / "more.jsonl"}, {"path": tmp_path / "extra.tsv", "documents": "line"}]
    mixed = config.replace(train=sources, tokenizer=config.tokenizer.replace(sample_sentences=60))
    summary = prepare(mixed, tmp_path / "out").splits["train"]
    alone = prepare(config, tmp_path / "alone").splits["train"]
    corpus = PreparedCorpus(tmp_path / "out")
    assert summary.documents == alone.documents + 7 + 30
    assert summary.segments_by_source[2] == 30
    assert sum(summary.segments_by_source) == summary.segments == len(corpus.store("train"))
    last = corpus.store("train")[summary.segments - 1]
    assert corpus.tokenizer.decode_sentences(last.source.tolist()) == ["zebra zoo"]
    assert len(corpus.tokenizer.encode_batch(["zebra"])[0]) < 3, "the tokenizer saw the last source, too"
    assert len(list(corpus.documents("train"))) == summary.documents
    assert prepare(mixed, tmp_path / "out").reused


def test_no_segment_holds_documents_of_two_sources(config: DataConfig, tmp_path: Path) -> None:
    segments = config.segments.replace(join_documents=True, join_across_groups=True, segment_tokens=1000)
    sources = [{"embedded": {"documents": 2, "seed": seed}} for seed in (1, 2)]
    summary = prepare(DataConfig(train=sources, segments=segments, tokenizer=config.tokenizer), tmp_path / "out")
    assert summary.splits["train"].segments_by_source == [1, 1]


def test_an_empty_source_among_others_is_reported(config: DataConfig, tmp_path: Path) -> None:
    (tmp_path / "empty.tsv").write_text("", "utf-8")
    with pytest.raises(DataError, match=r"train: no documents in .*empty\.tsv"):
        prepare(config.replace(train=[config.train, {"path": tmp_path / "empty.tsv"}]), tmp_path / "out")
