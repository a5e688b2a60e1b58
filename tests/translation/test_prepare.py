"""Preparation: from files to segments once, found again while nothing changed."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console

from reluformer.errors import ArgumentError, DataError, StorageError
from reluformer.translation import skipped as reasons
from reluformer.translation.prepare import prepare
from reluformer.translation.prepared import PreparedCorpus
from reluformer.translation.recipe import DataConfig
from reluformer.translation.tokenizer import Tokenizer

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
    assert summary.splits["train"].skipped.counts == {reasons.EMPTY: 1, reasons.CONTROL: 1, reasons.OVER_SEGMENT: 1}
    assert prepare(config, tmp_path / "out").splits["train"].skipped == summary.splits["train"].skipped
    console = Console(width=200, record=True, file=(tmp_path / "log").open("w", encoding="utf-8"))
    with console.file:
        console.print(summary.table(), summary.skipped_table())
    text = console.export_text()
    assert "350" in text
    assert all(reason in text for reason in (reasons.EMPTY, reasons.CONTROL, reasons.OVER_SEGMENT))
    assert f"{config.train.files[0]}:41 sentence 1" in text
    assert json.loads(json.dumps(summary.to_json()))["splits"]["train"]["skipped"][reasons.EMPTY]["count"] == 1


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


def test_progress_ends_with_all_pairs(config: DataConfig, tmp_path: Path) -> None:
    told: dict[str, int] = {}
    prepare(config, tmp_path / "out", progress=told.__setitem__)
    assert told == {"tokenizer": 100, "train": 100, "valid": 11}


def test_errors_name_the_split_and_the_remedy(config: DataConfig, tmp_path: Path) -> None:
    missing = config.replace(test={"path": tmp_path / "missing.tsv"})
    with pytest.raises(DataError, match=r"missing.tsv: No such file"):
        prepare(missing, tmp_path / "out")
    (tmp_path / "empty.jsonl").write_text(json.dumps({"src": [""], "tgt": [""]}) + "\n", "utf-8")
    with pytest.raises(DataError, match=rf"test: no documents in .*empty.jsonl; {reasons.EMPTY}: 1"):
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
    pytest.importorskip("reluformer.translation.embedded")
    embedded = {"embedded": {"documents": 20, "sentences": [2, 4]}}
    config = DataConfig(train=embedded, test=embedded, tokenizer={"vocab_size": 400})
    summary = prepare(config, tmp_path / "out")
    assert summary.splits["train"].documents == 20
    assert prepare(config, tmp_path / "out").reused
    train, test = (list(PreparedCorpus(tmp_path / "out").documents(split)) for split in ("train", "test"))
    assert train != test
