"""A relufied model saved and loaded again gives the same outputs."""

from __future__ import annotations

import json

import pytest
import torch
import yaml

import reluformer as rf
from reluformer.errors import ArgumentError, StorageError
from reluformer.integrations.transformers.relufy.conversion import (
    load_relufied,
    relufy,
    save_relufied,
    save_relufied_run,
)
from reluformer.integrations.transformers.relufy.distillation import Distillation

pytest.importorskip("transformers", reason="transformers is not installed")
SHORT = Distillation(steps=4, batch_tokens=256)


@pytest.mark.parametrize("rule", ["relu", "relu_exp"])
def test_an_encoder(bert, word_tokenizer, sentences, tmp_path, rule):
    student, report = relufy(bert, sentences, tokenizer=word_tokenizer, rule=rule, distillation=SHORT, max_length=16)
    save_relufied(student, tmp_path, word_tokenizer, report)
    loaded = load_relufied(tmp_path)
    inputs = word_tokenizer(sentences[:5], padding=True, return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        wanted, got = (model(**inputs).last_hidden_state for model in (student, loaded))
    assert torch.equal(wanted, got)
    assert not loaded.training and loaded.config._attn_implementation == f"reluformer:{rule}"
    assert json.loads((tmp_path / "relufy.json").read_text())["rule"] == rule
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".bin", ".pt", ".pkl")]


def test_a_translator_of_transformers(marian, word_tokenizer, pairs, tmp_path):
    student, _ = relufy(marian, pairs, tokenizer=word_tokenizer, distillation=SHORT, max_length=16)
    save_relufied(student, tmp_path)
    loaded = load_relufied(tmp_path)
    ids = torch.tensor([[3, 4, 5, 2]])
    with torch.no_grad():
        wanted, got = (model(input_ids=ids, decoder_input_ids=ids).logits for model in (student, loaded))
    assert torch.equal(wanted, got)


@pytest.mark.parametrize("rule", ["relu", "relu_exp"])
def test_a_translator_of_our_own_is_a_run(make_translator, tokenizer, pairs, tmp_path, rule):
    teacher, run, relufied = make_translator(), tmp_path / "softmax", tmp_path / "relu"
    teacher.save(run)
    tokenizer.save(run)
    recipe = {
        "data": {"train": {"embedded": {"documents": 3}}},
        "model": {"size": "tiny", "architecture": "transformer", "width": 32},
        "decoding": {"beam": 2},
    }
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    student, report = relufy(teacher, pairs, tokenizer=tokenizer, rule=rule, distillation=SHORT, max_length=48)
    save_relufied_run(student, relufied, like=run, report=report)
    translator = rf.load(relufied)
    ids = torch.tensor([[7, 8, 2]])
    with torch.no_grad():
        assert torch.equal(translator.model(ids, ids).logits, student(ids, ids).logits)
    assert len(translator.translate(["the cat"])) == 1 and translator.config.beam == 2
    with pytest.raises(ArgumentError, match="is the run of the teacher"):
        save_relufied_run(student, run / ".." / "softmax", like=run)
    assert rf.load(run).config.beam == 2
    from reluformer.training.run import RunDirectory
    from reluformer.translation.recipe import Recipe

    saved = RunDirectory(relufied)
    assert saved.status["status"] == "finished"
    assert saved.recipe(Recipe).model_config_for(tokenizer.vocab_size) == student.config


def test_what_is_not_a_relufied_model(bert, tmp_path):
    with pytest.raises(ArgumentError, match="BertModel was not relufied"):
        save_relufied(bert, tmp_path)
    with pytest.raises(StorageError, match="holds no config"):
        load_relufied(tmp_path)
    bert.save_pretrained(tmp_path)
    with pytest.raises(StorageError, match="no section 'relufied'"):
        load_relufied(tmp_path)
