"""The tokenizer in transformers gives our ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the extra [hf]")

from transformers import AutoTokenizer

from reluformer.errors import ArgumentError, StorageError
from reluformer.integrations.transformers.modeling import ReLUFormerConfig
from reluformer.integrations.transformers.tokenization import ReLUFormerTokenizer
from reluformer.models.config import ModelConfig
from reluformer.translation.recipe import TokenizerConfig
from reluformer.translation.tokenizer import END, SEPARATOR, Tokenizer

TEXTS = ["The house is big.", " two  spaces ", "<sep> and </s> are text", "größer, Ünïcode 語 🙂", "", "a\nb"]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def own(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.train(TEXTS * 20, TokenizerConfig(kind=request.param, vocab_size=320))


@pytest.fixture
def saved(own: Tokenizer, tmp_path: Path) -> Path:
    ReLUFormerTokenizer.of(own).save_pretrained(tmp_path)
    config = ReLUFormerConfig.from_model_config(
        ModelConfig(vocab_size=own.vocab_size), tokenizer_sha256=own.fingerprint
    )
    config.save_pretrained(tmp_path)
    return tmp_path


def test_equal_ids(own: Tokenizer, saved: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(saved)
    assert isinstance(tokenizer, ReLUFormerTokenizer)
    assert len(tokenizer) == own.vocab_size
    for text in TEXTS:
        assert tokenizer(text)["input_ids"] == [*own.encode(text), END]
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == own.encode(text)
        assert tokenizer(text_target=text)["input_ids"] == [*own.encode(text), END]
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    batch = tokenizer(TEXTS, padding=True)
    assert batch["input_ids"] == [
        [*row, *[0] * (len(batch["input_ids"][0]) - len(row))] for row in tokenizer(TEXTS)["input_ids"]
    ]
    assert [sum(mask) for mask in batch["attention_mask"]] == [len(own.encode(text)) + 1 for text in TEXTS]


def test_special_tokens(saved: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(saved)
    ids = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.sep_token_id)
    assert (*ids, tokenizer.unk_token_id) == (0, 1, 2, 3, 4)
    assert tokenizer.padding_side == "right"


def test_documents(own: Tokenizer, saved: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(saved)
    documents = [TEXTS[:2], TEXTS[2:3]]
    batch = tokenizer.encode_documents(documents, return_tensors="pt")
    first, second = own.encode_batch(TEXTS[:2])
    assert batch["input_ids"][0, : len(first) + len(second) + 2].tolist() == [*first, SEPARATOR, *second, END]
    pair = tokenizer(TEXTS[0], TEXTS[1])["input_ids"]
    assert pair == [*first, SEPARATOR, *second, END]
    for row, document in zip(batch["input_ids"], documents, strict=True):
        assert tokenizer.decode_sentences([1, *row.tolist()]) == list(document)
    with pytest.raises(ArgumentError, match="lists of sentences"):
        tokenizer.encode_documents(["one text"])


def test_the_file_is_never_written_anew(own: Tokenizer, saved: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(saved)
    tokenizer(TEXTS, padding="max_length", truncation=True, max_length=7)
    tokenizer.save_pretrained(tmp_path / "again")
    again = (tmp_path / "again" / "tokenizer.json").read_text(encoding="utf-8")
    assert again == own.definition == (saved / "tokenizer.json").read_text(encoding="utf-8")
    assert AutoTokenizer.from_pretrained(tmp_path / "again").fingerprint == own.fingerprint
    tokenizer.add_tokens(["zebra"])
    with pytest.raises(ArgumentError, match="1 tokens were added"):
        tokenizer.save_pretrained(tmp_path / "more")


def test_a_tokenizer_of_another_model_is_refused(saved: Path) -> None:
    other = Tokenizer.train(["something else entirely"] * 9, TokenizerConfig(vocab_size=310))
    other.save(saved)
    with pytest.raises(StorageError, match="not the tokenizer that the model was trained with"):
        AutoTokenizer.from_pretrained(saved)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.meta.json", "config.json"])
def test_damage_is_named(saved: Path, name: str) -> None:
    def load() -> Any:
        return ReLUFormerTokenizer.from_pretrained(saved)

    whole = (saved / name).read_bytes()
    (saved / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StorageError, match=r"damaged|not readable"):
        load()
    (saved / name).write_bytes(whole)
    if name != "config.json":
        (saved / name).unlink()
        with pytest.raises(StorageError, match="cannot read the tokenizer"):
            load()


def test_a_changed_file_is_refused(saved: Path) -> None:
    content = json.loads((saved / "tokenizer.json").read_text(encoding="utf-8"))
    (saved / "tokenizer.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    with pytest.raises(StorageError, match="damaged, or changed since it was saved"):
        AutoTokenizer.from_pretrained(saved)


def test_without_files_it_says_what_is_missing() -> None:
    with pytest.raises(StorageError, match=r"tokenizer\.meta\.json is missing"):
        ReLUFormerTokenizer()
