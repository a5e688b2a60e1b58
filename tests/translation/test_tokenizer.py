"""The tokenizer loses no text, keeps special tokens apart from text, and is the same every time."""

from __future__ import annotations

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reluformer.errors import DataError, StorageError
from reluformer.translation.recipe import TokenizerConfig
from reluformer.translation.tokenizer import BEGIN, END, PAD, SEPARATOR, SPECIAL_TOKENS, UNKNOWN, Tokenizer

KINDS = ["bpe", "unigram"]
WORDS = ["the", "house", "stands", "near", "a", "green", "river", "das", "Haus", "steht", "an", "einem", "Fluß"]
SENTENCES = [" ".join(WORDS[(i * k) % len(WORDS)] for k in range(1, 9)) + "." for i in range(200)]


@cache
def tokenizer(kind: str) -> Tokenizer:
    return Tokenizer.train(SENTENCES, TokenizerConfig(kind=kind, vocab_size=400))


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=200)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_no_text_is_lost(kind: str, text: str) -> None:
    assert tokenizer(kind).decode(tokenizer(kind).encode(text)) == text


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=100)
@given(parts=st.lists(st.sampled_from([*SPECIAL_TOKENS, " ", "a", "<", ">", "</"]), max_size=6))
def test_text_never_becomes_a_special_token(kind: str, parts: list[str]) -> None:
    text = "".join(parts)
    ids = tokenizer(kind).encode(text)
    assert not set(ids) & set(range(len(SPECIAL_TOKENS)))
    assert tokenizer(kind).decode(ids) == text


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_have_fixed_ids_and_vanish_in_text(kind: str) -> None:
    assert (PAD, BEGIN, END, SEPARATOR, UNKNOWN) == (0, 1, 2, 3, 4)
    ids = tokenizer(kind).encode("the house")
    assert tokenizer(kind).decode([BEGIN, *ids, END, PAD, PAD]) == "the house"


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_is_the_same_at_the_start_and_inside(kind: str) -> None:
    first, inside = tokenizer(kind).encode("house river"), tokenizer(kind).encode("river house")
    assert sorted(first) == sorted(inside)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_encoded_as_its_sentences(kind: str) -> None:
    sentences = [*SENTENCES[:20], "", "<sep>", "ü"]
    assert tokenizer(kind).encode_batch(sentences) == [tokenizer(kind).encode(sentence) for sentence in sentences]


def test_sentences_of_a_segment() -> None:
    one, two = tokenizer("bpe").encode("the house"), tokenizer("bpe").encode("a <sep> river")
    assert tokenizer("bpe").decode_sentences([*one, SEPARATOR, *two, END, *one]) == ["the house", "a <sep> river"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "sentences",
    [SENTENCES, SENTENCES[:20], WORDS, ["_"], ["aaaa bbbb cccc " * 9, "x"], [*SENTENCES, "ä", "日本"]],
    ids=["sentences", "few", "words", "one_byte", "repeated", "rare_letters"],
)
def test_training_again_gives_the_same_tokenizer(kind: str, sentences: list[str]) -> None:
    trained = [Tokenizer.train(iter(sentences), TokenizerConfig(kind=kind, vocab_size=400)) for _ in range(6)]
    assert len({each.fingerprint for each in trained}) == 1
    assert trained[0].decode(trained[0].encode("Fluß \x00 <sep>")) == "Fluß \x00 <sep>"


def test_other_data_gives_another_fingerprint() -> None:
    other = Tokenizer.train(reversed(WORDS * 9), TokenizerConfig(vocab_size=400))
    assert other.fingerprint != tokenizer("bpe").fingerprint


def test_only_the_sample_is_looked_at() -> None:
    taken = 0

    def endless() -> object:
        nonlocal taken
        while True:
            taken += 1
            yield SENTENCES[taken % len(SENTENCES)]

    Tokenizer.train(endless(), TokenizerConfig(vocab_size=300, sample_sentences=50))
    assert taken == 50


def test_nothing_to_learn_from() -> None:
    with pytest.raises(DataError, match="no sentences"):
        Tokenizer.train([], TokenizerConfig())


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_it_is_the_same(tmp_path: Path, kind: str) -> None:
    tokenizer(kind).save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.fingerprint, loaded.kind, loaded.vocab_size) == (
        tokenizer(kind).fingerprint,
        kind,
        tokenizer(kind).vocab_size,
    )
    assert loaded.encode("a <sep> house") == tokenizer(kind).encode("a <sep> house")


def test_damage_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read the tokenizer metadata"):
        Tokenizer.load(tmp_path)
    tokenizer("bpe").save(tmp_path)
    file, metadata = tmp_path / "tokenizer.json", tmp_path / "tokenizer.meta.json"
    whole, described = file.read_text("utf-8"), metadata.read_text("utf-8")
    file.write_text(whole.replace("house", "mouse"), "utf-8")
    with pytest.raises(StorageError, match="damaged, or changed"):
        Tokenizer.load(tmp_path)
    file.unlink()
    with pytest.raises(StorageError, match="cannot read the tokenizer"):
        Tokenizer.load(tmp_path)
    file.write_text(whole, "utf-8")
    metadata.write_text(described[:20], "utf-8")
    with pytest.raises(StorageError, match="metadata is damaged"):
        Tokenizer.load(tmp_path)
    metadata.write_text(json.dumps({**json.loads(described), "format": 99}), "utf-8")
    with pytest.raises(StorageError, match="format 99"):
        Tokenizer.load(tmp_path)


def test_a_foreign_tokenizer_is_refused(tmp_path: Path) -> None:
    definition = json.loads(tokenizer("bpe").definition)
    for token in definition["added_tokens"]:
        token["content"] = token["content"].replace("<sep>", "<mask>")
    vocabulary = definition["model"]["vocab"]
    vocabulary["<mask>"] = vocabulary.pop("<sep>")
    Tokenizer(json.dumps(definition), "bpe").save(tmp_path)
    with pytest.raises(StorageError, match="not made by reluformer"):
        Tokenizer.load(tmp_path)


GROWING = {"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * 1000}
HOSTILE = {
    "normalizer": ({"normalizer": {"type": "Sequence", "normalizers": [GROWING] * 9}}, "has another 'normalizer'"),
    "no-normalizer": ({"normalizer": None}, "has another 'normalizer'"),
    "pre-tokenizer": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a*)*b"}, "behavior": "Removed", "invert": False}},
        "has another 'pre_tokenizer'",
    ),
    "decoder": ({"decoder": {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}}, "has another 'decoder'"),
    "truncation": (
        {"truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}},
        "has another 'truncation'",
    ),
    "deep": ({"post_processor": json.loads("[" * 200 + "]" * 200)}, "not a tokenizer: .*nested more than 100"),
    "no-model": ({"model": None}, "not a tokenizer"),
    "no-tokens": ({"added_tokens": []}, "other added tokens"),
}


def save_definition(definition: dict[str, Any], directory: Path) -> None:
    """Writes a tokenizer.json with a checksum that fits, as an attacker would."""
    text = json.dumps(definition)
    metadata = {"format": 1, "kind": "bpe", "sha256": hashlib.sha256(text.encode()).hexdigest()}
    (directory / "tokenizer.json").write_text(text, "utf-8")
    (directory / "tokenizer.meta.json").write_text(json.dumps(metadata), "utf-8")


@pytest.mark.parametrize("case", HOSTILE)
def test_parts_that_training_never_writes_are_refused(tmp_path: Path, case: str) -> None:
    changes, message = HOSTILE[case]
    save_definition({**json.loads(tokenizer("bpe").definition), **changes}, tmp_path)
    with pytest.raises(StorageError, match=message):
        Tokenizer.load(tmp_path)


def test_options_and_entries_that_training_never_writes_are_refused(tmp_path: Path) -> None:
    definition = json.loads(tokenizer("bpe").definition)
    model = definition["model"]
    save_definition({**definition, "model": {**model, "dropout": 0.5}}, tmp_path)
    with pytest.raises(StorageError, match="has the option 'dropout'; it was not made by reluformer"):
        Tokenizer.load(tmp_path)
    vocabulary = {**model["vocab"], "a" * 100_001: len(model["vocab"])}
    save_definition({**definition, "model": {**model, "vocab": vocabulary}}, tmp_path)
    with pytest.raises(StorageError, match="an entry of the vocabulary has 100,001 characters, at most 100,000"):
        Tokenizer.load(tmp_path)
    save_definition(definition, tmp_path)
    assert Tokenizer.load(tmp_path).vocab_size == tokenizer("bpe").vocab_size


def test_a_pipe_is_no_tokenizer(tmp_path: Path) -> None:
    tokenizer("bpe").save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(StorageError, match="is a named pipe"):
        Tokenizer.load(tmp_path)
