"""`reluformer relufy`: a run and a model of transformers, from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from reluformer import hub, load
from reluformer.errors import ArgumentError, StorageError
from reluformer.training.progress import SilentProgress
from reluformer.translation.recipe import Recipe
from reluformer.translation.task import train

Invoke = Callable[..., Result]
WORDS = ["the", "cat", "saw", "a", "dog", "and", "it", "ran"]


@pytest.fixture(scope="module")
def softmax_run(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "softmax"
    values = recipe.model_dump(mode="json")
    values["model"]["architecture"] = "transformer"
    values["training"]["updates"] = 2
    train(values, directory, progress=SilentProgress())
    return directory


def test_a_run_becomes_a_run(invoke: Invoke, softmax_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "relu"
    shown = invoke("relufy", softmax_run, "--out", out, "--calibrate-on", "8", "--limit", "40").stdout
    assert "rule relu_exp" in shown and "calibrated" in shown and "distilled" not in shown
    assert f"next: reluformer translate {out} FILE" in shown
    assert load(out).model.config.cross_attention.name == "relu_exp"
    assert load(softmax_run).model.config.cross_attention.name == "softmax"
    assert (out / "relufy.json").is_file()
    with pytest.raises(StorageError, match="exists already; choose a new directory"):
        invoke("relufy", softmax_run, "--out", out)


def test_a_target_of_zeros_shows_the_curve(invoke: Invoke, softmax_run: Path, tmp_path: Path) -> None:
    options = ("--rule", "relu_chance", "--zeros", "0.5", "--calibrate-on", "8", "--limit", "40", "--json")
    report = json.loads(invoke("relufy", softmax_run, "--out", tmp_path / "sparse", *options).stdout)
    assert report["target_reached"] and report["stages"]["calibrated"]["mean_zero_share"] >= 0.5
    assert len(report["search"]) > 3 and report["rule"]["name"] == "relu_chance"


def test_texts_of_ones_own_and_distillation(invoke: Invoke, softmax_run: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("The lamp is new.,Die Lampe ist neu.\n" * 12, encoding="utf-8")
    options = ("--texts", tmp_path / "pairs.csv", "--rule", "relu", "--steps", "2", "--json")
    report = json.loads(invoke("relufy", softmax_run, "--out", tmp_path / "relu", *options).stdout)
    assert report["rule"] == "relu"
    assert "distilled" in report["stages"]
    assert sum(report["texts"].values()) >= 12


def test_an_encoder_of_transformers(invoke: Invoke, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import tokenizers

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer: Any = transformers.PreTrainedTokenizerFast(tokenizer_object=model, pad_token="[PAD]", unk_token="[UNK]")
    config = transformers.BertConfig(
        vocab_size=10, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    with pytest.raises(ArgumentError, match="has no corpus of its own; add --texts FILE"):
        invoke("relufy", tmp_path / "bert", "--out", tmp_path / "out")
    (tmp_path / "lines.txt").write_text("the cat saw a dog\n\nit ran and ran\n" * 8, encoding="utf-8")
    shown = invoke("relufy", tmp_path / "bert", "--texts", tmp_path / "lines.txt", "--out", tmp_path / "out").stdout
    assert "next: hub.load_relufied" in shown
    assert type(hub.load_relufied(tmp_path / "out")).__name__ == "BertModel"
