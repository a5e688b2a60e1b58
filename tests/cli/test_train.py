"""`reluformer train`: BLEU while training, and what the command refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from reluformer import load
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.training.run import RunDirectory
from reluformer.translation import scoring
from reluformer.translation import task as module
from reluformer.translation import translator as decoding
from reluformer.translation.corpus import PreparedCorpus
from reluformer.translation.recipe import Recipe

Invoke = Callable[..., Result]


@pytest.mark.parametrize(("asked", "read"), [(None, 256), (64, 64), ("sentence", "sentence")])
def test_validation_bleu_is_of_documents_read_as_the_model_was_trained(
    recipe: Recipe, run: Path, monkeypatch: pytest.MonkeyPatch, asked: Any, read: Any
) -> None:
    seen = []

    class Watched(decoding.Translator):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            seen.append((self.config.window_tokens, self.config.beam))

    monkeypatch.setattr(module, "Translator", Watched)
    task = module.TranslationTask(
        recipe.replace(
            training=recipe.training.replace(validate_bleu=2), decoding=recipe.decoding.replace(window_tokens=asked)
        ),
        run / "data",
    )
    assert task.evaluate is not None
    found = task.evaluate(ReLUFormer.load(run))
    documents = list(islice(PreparedCorpus(run / "data").documents("valid"), 2))
    hypotheses = load(run, beam=1, window_tokens=read).translate_documents([d.src for d in documents])
    assert found == {"bleu": scoring.score(hypotheses, [d.tgt or () for d in documents]).bleu.value}
    assert seen[0] == (read, 1)


def test_bleu_stands_beside_the_validation_loss(invoke: Invoke, recipe: Recipe, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(yaml.safe_dump(recipe.model_dump(mode="json")), encoding="utf-8")
    changes = ("training.updates=2", "training.validate_every=1", "training.validate_bleu=2")
    options = [part for change in changes for part in ("--set", change)]
    shown = invoke("train", file, "--run", tmp_path / "[/b]", "--prepared", run / "data", *options).stdout
    assert "[/b]" in shown
    events = RunDirectory(tmp_path / "[/b]").log.events("valid")
    assert [event["step"] for event in events] == [1, 2]
    assert all(0 <= event["bleu"] <= 100 for event in events)
    again = invoke("train", file, "--run", tmp_path / "[/b]", "--prepared", run / "data", *options, "--json").stdout
    assert json.loads(again)["step"] == 2


@pytest.mark.parametrize(
    ("splits", "command"),
    [
        ({"valid", "test"}, "evaluate {run}"),
        ({"valid"}, "evaluate {run} --split valid"),
        (set(), "translate {run} FILE"),
    ],
)
def test_the_next_command_is_one_that_works(
    invoke: Invoke, recipe: Recipe, tmp_path: Path, splits: set[str], command: str
) -> None:
    values = recipe.model_dump(mode="json")
    for split in {"valid", "test"} - splits:
        del values["data"][split]
    values["training"]["updates"] = 1
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    shown = invoke("train", tmp_path / "r.yaml", "--run", tmp_path / "r").stdout.partition("Next: reluformer ")[2]
    assert shown.split() == command.format(run=tmp_path / "r").split()


def test_a_run_is_resumed_by_its_directory(invoke: Invoke, run: Path) -> None:
    assert json.loads(invoke("train", run, "--json").stdout)["step"] == 20
