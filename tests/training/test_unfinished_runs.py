"""Runs that were interrupted translate with their best weights; runs that were moved resume from their own corpus."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import reluformer as rf
from reluformer.errors import DataError, StorageError, UnfinishedRunWarning
from reluformer.training.progress import SilentProgress, UpdateReport
from reluformer.training.run import RunDirectory
from reluformer.translation.recipe import Recipe
from reluformer.translation.scoring import read_split
from reluformer.translation.task import train

MakeRecipe = Callable[..., Recipe]


class InterruptedAt(SilentProgress):
    """Presses Ctrl-C after an update, and keeps the messages."""

    def __init__(self, step: int | None = None) -> None:
        self.step = step
        self.messages: list[str] = []

    def update(self, report: UpdateReport) -> None:
        if report.step == self.step:
            os.kill(os.getpid(), signal.SIGINT)

    def message(self, text: str) -> None:
        self.messages.append(text)


@pytest.fixture
def own_corpus(corpus: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """A copy of the corpus that a test may delete, with a test split."""
    shutil.copytree(Path(corpus["train"]["src"]).parent, tmp_path / "texts")
    splits = {
        name: {side: str(tmp_path / "texts" / f"{file}.{side}") for side in ("src", "tgt")} | {"documents": "line"}
        for name, file in (("train", "train"), ("valid", "valid"), ("test", "valid"))
    }
    return {**corpus, **splits}


def losses(directory: Path) -> list[float]:
    return [event["loss"] for event in RunDirectory(directory).log.events("train")]


def test_an_interrupted_run_translates_with_its_best_weights(
    make_recipe: MakeRecipe, prepared: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(make_recipe(validate_every=2), run, prepared=prepared, progress=InterruptedAt(5))
    assert RunDirectory(run).status["status"] == "interrupted"
    with pytest.warns(UnfinishedRunWarning, match="has not finished; using its best weights so far, those of update 4"):
        translator = rf.load(run)
    assert translator.translate(["the old house"]) == rf.load(run / "best").translate(["the old house"])
    RunDirectory(run).check_model()
    train(make_recipe(validate_every=2), run, prepared=prepared, progress=SilentProgress())
    assert RunDirectory(run).weights_note is None
    rf.load(run)  # without a warning, which would be an error here


def test_without_any_validation_there_is_nothing_to_translate_with(
    make_recipe: MakeRecipe, prepared: Path, tmp_path: Path
) -> None:
    train(make_recipe(), tmp_path / "run", prepared=prepared, progress=InterruptedAt(5))
    with pytest.raises(StorageError, match=r"no model yet; .* the first validation gives it one"):
        RunDirectory(tmp_path / "run").check_model()


@pytest.mark.parametrize("with_bleu", [0, 3])
def test_a_moved_run_resumes_without_the_files_of_its_corpus(
    make_recipe: MakeRecipe, own_corpus: dict[str, Any], tmp_path: Path, with_bleu: int
) -> None:
    recipe = make_recipe(data=own_corpus, validate_every=3, validate_bleu=with_bleu)
    train(recipe, tmp_path / "whole", progress=SilentProgress())
    train(recipe, tmp_path / "old" / "run", progress=InterruptedAt(4))
    before = read_split(tmp_path / "old" / "run", "test")
    (tmp_path / "old").rename(tmp_path / "new")
    shutil.rmtree(tmp_path / "texts")
    run, progress = tmp_path / "new" / "run", InterruptedAt()
    resumed = train(RunDirectory(run).recipe(Recipe), run, progress=progress)
    assert resumed.status == "finished"
    assert losses(run) == losses(tmp_path / "whole")
    assert any("is not there any more; using the corpus as it was prepared in" in text for text in progress.messages)
    assert read_split(run, "test") == before, "and its test split can still be scored"


@pytest.mark.parametrize("damage", ["a byte", "a file"])
def test_a_moved_run_whose_prepared_corpus_is_damaged_says_so(
    make_recipe: MakeRecipe, own_corpus: dict[str, Any], tmp_path: Path, damage: str
) -> None:
    train(make_recipe(data=own_corpus, updates=2), tmp_path / "run", progress=SilentProgress())
    shutil.rmtree(tmp_path / "texts")
    run = (tmp_path / "run").rename(tmp_path / "moved")
    store = run / "data" / "train.arrow"
    content = bytearray(store.read_bytes())
    content[len(content) // 2] ^= 1
    store.write_bytes(content if damage == "a byte" else b"")
    told = r"train\.arrow: .*prepared corpus is damaged.*train\.src.* is not there any more; copy .*data again"
    with pytest.raises(StorageError, match=told):
        train(make_recipe(data=own_corpus, updates=4), run, progress=SilentProgress())


def test_a_finished_run_that_was_copied_names_its_new_directory(
    make_recipe: MakeRecipe, prepared: Path, tmp_path: Path
) -> None:
    recipe = make_recipe(updates=2)
    first = train(recipe, tmp_path / "run", prepared=prepared, progress=SilentProgress())
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    copy = train(recipe, tmp_path / "copy", prepared=prepared, progress=SilentProgress())
    assert (first.directory, copy.directory) == (str(tmp_path / "run"), str(tmp_path / "copy"))
    assert copy.step == first.step and copy.tokens == first.tokens


def test_the_same_files_in_a_folder_that_is_gone_will_do_but_not_others(
    make_recipe: MakeRecipe, own_corpus: dict[str, Any], tmp_path: Path
) -> None:
    train(make_recipe(data=own_corpus, updates=2), tmp_path / "run", progress=SilentProgress())
    elsewhere = {
        split: {**own_corpus[split], "src": f"/gone/{split}.src", "tgt": f"/gone/{split}.tgt"}
        for split in ("train", "valid")
    }
    elsewhere["test"] = {**own_corpus["test"], "src": "/gone/valid.src", "tgt": "/gone/valid.tgt"}
    moved = make_recipe(data={**own_corpus, **elsewhere}, updates=4)
    assert train(moved, tmp_path / "run", progress=SilentProgress()).step == 4
    mistyped = {**elsewhere["train"], "src": "/gone/trian.src"}
    with pytest.raises(DataError, match=r"trian\.src"):
        train(make_recipe(data={**own_corpus, "train": mistyped}, updates=6), tmp_path / "run")
    other = make_recipe(data={**own_corpus, **elsewhere, "tokenizer": {"vocab_size": 310}}, updates=6)
    with pytest.raises(DataError, match=r"train\.src"):
        train(other, tmp_path / "other", prepared=tmp_path / "run" / "data")
