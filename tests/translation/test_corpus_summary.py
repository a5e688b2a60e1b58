"""What is odd about a corpus is counted and shown, and dropped if the recipe asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reluformer.training.progress import WarningProgress
from reluformer.translation.corpus import PreparedCorpus, prepare
from reluformer.translation.corpus_summary import CorpusSummary
from reluformer.translation.document import SkipReason
from reluformer.translation.recipe import DataConfig, Recipe
from reluformer.translation.task import TranslationTask

LONG = "a sentence that goes on for a long while, and then for another while, and does not end"
TRAIN = [
    ("one house", "ein Haus"),
    ("OK", "OK"),
    ("one house", "ein Haus"),
    (f"{LONG}, {LONG}", "kurz"),
    ("in the test", "im Test"),
    ("caf\u00e9 one", "Caf\u00e9 eins"),
    ("cafe\u0301 two", "Cafe\u0301 zwei"),
    ("a boat", "ein Boot"),
]


def tsv(path: Path, pairs: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs), encoding="utf-8")
    return path


def config_of(directory: Path, train: list[tuple[str, str]] = TRAIN, **filters: Any) -> DataConfig:
    return DataConfig(
        train={"path": tsv(directory / "train.tsv", train), "documents": "line"},
        test={"path": tsv(directory / "test.tsv", [("in the test", "im Test")]), "documents": "line"},
        tokenizer={"vocab_size": 300},
        filters=filters,
    )


@pytest.fixture
def summary(tmp_path: Path) -> CorpusSummary:
    return prepare(config_of(tmp_path), tmp_path / "data")


def test_everything_odd_is_counted_and_kept(summary: CorpusSummary) -> None:
    train = summary.splits["train"]
    assert train.found.counts == {
        SkipReason.COPY_KEPT: 1,
        SkipReason.DUPLICATE_KEPT: 1,
        SkipReason.RATIO_KEPT: 1,
        SkipReason.HELD_OUT_KEPT: 1,
        SkipReason.NOT_NFC: 1,
    }
    assert (train.sentences, train.skipped.counts, summary.warnings()) == (8, {}, [])
    assert "pair that is also in valid" in str(summary.report())


def test_the_findings_are_part_of_the_manifest(summary: CorpusSummary) -> None:
    assert PreparedCorpus(summary.directory).summary.splits["train"].found == summary.splits["train"].found


def test_the_recipe_may_drop_them(tmp_path: Path) -> None:
    filters = dict(drop_copies=True, drop_duplicates=True, drop_held_out=True, max_length_ratio=5)
    summary = prepare(config_of(tmp_path, **filters), tmp_path / "data")
    train = summary.splits["train"]
    assert train.sentences == 4
    assert train.skipped.counts == {
        SkipReason.COPY: 1,
        SkipReason.DUPLICATE: 1,
        SkipReason.RATIO: 1,
        SkipReason.HELD_OUT: 1,
    }
    assert train.found.counts == {SkipReason.NOT_NFC: 1}
    assert summary.splits["test"].sentences == 1


def test_a_split_that_lost_many_pairs_is_a_warning_in_every_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(tmp_path, [*TRAIN, *((f"number {number}", "") for number in range(8))])
    messages: list[str] = []
    TranslationTask(Recipe(data=config.resolved()), tmp_path / "data").prepare(messages.append)
    assert "empty sentence: pair dropped" in messages[-1]
    assert "warning: 50% of the pairs of the train split were skipped; check its files" in messages[-1]
    WarningProgress().message(messages[-1])  # as `train --json` shows it
    assert capsys.readouterr().err.splitlines() == messages[-1].splitlines()[-1:]


def test_a_corpus_that_was_prepared_before_there_were_filters_is_reused(summary: CorpusSummary) -> None:
    """Its manifest names neither filters, findings nor weights, and its key was made without them."""
    path = summary.directory / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    del manifest["config"]["filters"]
    del manifest["config"]["segments"]["join_seed"], manifest["config"]["segments"]["join_shortest"]
    for split in ("train", "test"):
        del manifest["config"][split]["weight"]
    for figures in manifest["splits"].values():
        del figures["found"], figures["segments_by_source"]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    config = DataConfig.parse(manifest["config"], where="before")
    assert config.identity() == manifest["config"]
    assert prepare(config, summary.directory).reused
    assert not prepare(config.replace(filters={"drop_copies": True}), summary.directory).reused


def test_generated_text_repeats_itself_on_purpose(tmp_path: Path) -> None:
    config = DataConfig(train={"embedded": {"documents": 30}}, tokenizer={"vocab_size": 300})
    assert prepare(config, tmp_path / "data").report() is None
