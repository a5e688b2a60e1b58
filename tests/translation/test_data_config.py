"""The data configuration says at once what does not fit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from reluformer.errors import ConfigError
from reluformer.translation.recipe import CorpusSource, DataConfig, EmbeddedOptions, SegmentConfig


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.jsonl", "jsonl"),
        ("a.jsonl.gz", "jsonl"),
        ("a.b.TSV", "tsv"),
        ("a.tmx", "tmx"),
        ("a.xlf", "xliff"),
        ("a.xliff.gz", "xliff"),
        ("a.po", "po"),
    ],
)
def test_the_format_follows_the_name(name: str, kind: str) -> None:
    assert CorpusSource(path=name).kind == kind


def test_an_explicit_format_wins_over_the_name() -> None:
    assert CorpusSource(path="a.txt", format="tsv").kind == "tsv"


def test_a_pair_of_files_is_aligned_lines() -> None:
    source = CorpusSource(src="a.en", tgt="a.de")
    assert source.kind == "lines"
    assert source.files == (Path("a.en"), Path("a.de"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "exactly one of"),
        ({"path": "a.tsv", "src": "a", "tgt": "b"}, "exactly one of"),
        ({"src": "a"}, "'tgt' is missing"),
        ({"tgt": "a"}, "'src' is missing"),
        ({"path": "a.txt"}, "cannot tell the format of 'a.txt'"),
        ({"path": "a.txt", "format": "lines"}, "give 'src' and 'tgt'"),
        ({"src": "a", "tgt": "b", "format": "tsv"}, "give 'path'"),
        ({"path": " "}, "'path': is empty"),
        ({"pth": "a.tsv"}, "did you mean 'path'"),
        ({"path": "a\0.tsv"}, "'path': holds a NUL character"),
        ({"path": "\ud800.tsv"}, "'path': holds half a surrogate pair"),
    ],
)
def test_a_source_that_does_not_fit_is_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CorpusSource(**values)


@pytest.mark.parametrize("tokens", [0, 7, True, "document", 12.5])
def test_segment_tokens_is_a_number_or_sentence(tokens: object) -> None:
    with pytest.raises(ConfigError, match=r"'segment_tokens': give a number of tokens, at least 8, or 'sentence'"):
        SegmentConfig(segment_tokens=tokens)


def test_joining_needs_segments_longer_than_a_sentence() -> None:
    with pytest.raises(ConfigError, match="set segment_tokens to a number"):
        SegmentConfig(segment_tokens="sentence", join_documents=True)
    with pytest.raises(ConfigError, match="without join_documents"):
        SegmentConfig(join_across_groups=True)


def test_embedded_sentences_are_a_range() -> None:
    with pytest.raises(ConfigError, match="fewest and the most"):
        EmbeddedOptions(sentences=(5, 4))


def test_resolved_paths_are_absolute_and_survive_json() -> None:
    config = DataConfig(train={"path": "a.tsv"}, test={"src": "a.en", "tgt": "a.de"}, tokenizer={"path": "tok"})
    resolved = config.resolved()
    assert all(file.is_absolute() for source in resolved.splits.values() for file in source.files)
    assert resolved.tokenizer.path is not None
    assert resolved.tokenizer.path.is_absolute()
    assert DataConfig.parse(resolved.model_dump(mode="json"), where="manifest") == resolved
    assert list(resolved.splits) == ["train", "test"]


def test_a_split_may_have_several_sources() -> None:
    config = DataConfig(train=[{"path": "a.tsv"}, {"src": "b.en", "tgt": "b.de", "weight": 2}], valid={"path": "c.tsv"})
    assert [source.weight for source in config.splits["train"].sources] == [1, 2]
    assert [file.name for file in config.splits["train"].files] == ["a.tsv", "b.en", "b.de"]
    resolved = config.resolved()
    assert isinstance(resolved.train, tuple) and all(file.is_absolute() for file in resolved.splits["train"].files)
    assert DataConfig(**config.model_dump(mode="json")) == config


def test_one_source_has_the_identity_that_it_had_before_there_were_weights() -> None:
    config = DataConfig(train={"path": "a.tsv"}, test={"path": "b.tsv"})
    assert set(config.identity()["train"]) == {"path", "src", "tgt", "embedded", "format", "documents"}
    assert config.identity()["train"].keys() == config.identity()["test"].keys()


def test_a_weight_changes_the_training_but_not_the_prepared_corpus() -> None:
    one, two = (DataConfig(train=[{"path": "a.tsv"}, {"path": "b.tsv", "weight": w}]) for w in (1, 2))
    assert one.identity() == two.identity()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train": []}, "'train': give a section with path, or with src and tgt, or a list"),
        ({"train": None}, "'train': give a section"),
        ({"train": "a.tsv"}, "'train': give a section"),
        ({"train": [{"path": "a.tsv"}, {"pth": "b.tsv"}]}, "unknown key 'train.1.pth'; did you mean 'path'"),
        ({"train": [{"path": "a.tsv"}, "b.tsv"]}, "'train.1': expected a section with keys"),
        ({"train": {"path": "a.tsv", "weight": 0}}, "'train.weight': input should be greater than 0"),
        ({"train": {"path": "a.tsv"}, "valid": {"path": "a.tsv", "weight": 2}}, "only the sources of data.train"),
    ],
)
def test_lists_of_sources_that_do_not_fit(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        DataConfig(**values)


def test_weights_do_not_go_with_random_joins() -> None:
    source = {"src": "a.en", "tgt": "a.de"}
    with pytest.raises(ConfigError, match="random joins mix all sources evenly"):
        DataConfig.parse(
            {
                "train": [source, {**source, "weight": 2}],
                "segments": {"segment_tokens": 64, "join_documents": "random"},
            },
            where="recipe",
        )
