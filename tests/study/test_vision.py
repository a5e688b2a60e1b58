"""Runs of image models: they learn, diverge, and say where they looked for their images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reluformer.errors import DataError
from reluformer.study import measures, vision
from reluformer.study.plan import Run, changed, make_plan
from reluformer.study.trainings import Context

CONTENT: dict[str, Any] = {
    "study": 1,
    "kind": "images",
    "dataset": "gratings",
    "data": {"gratings": {"train": 64, "valid": 16, "test": 16, "classes": 3, "size": 8}},
    "model": {"image_size": 8, "patch": 4, "classes": 3, "width": 8, "heads": 2, "layers": 1, "slots": 8},
    "training": {
        "updates": 4,
        "tokens_per_batch": 64,
        "warmup": 1,
        "schedule": "cosine",
        "lr": 0.01,
        "seed": 0,
        "validate_every": 2,
        "telemetry_every": 100,
        "device": "cpu",
    },
    "test": {"split": "test"},
}


def test_a_run_has_its_accuracy_and_its_curve(context: Context) -> None:
    result = vision.run_images(Run(CONTENT), context)
    results = {"images": result}
    assert result["status"] == "finished" and result["test"]["images"] == 16
    assert measures.value("test_accuracy", results) == result["test"]["accuracy"]
    assert 0 <= measures.value("image_zeros", results) <= 1
    assert [step for step, _ in measures.series("accuracy_by_step").points(results)] == [2, 4]
    assert not (context.study.training(Run(CONTENT)) / "checkpoints").exists()
    assert vision.run_images(Run(CONTENT), context)["test"] == result["test"]  # it is done already


def test_divergence_is_a_result(context: Context) -> None:
    wild = Run(changed(CONTENT, {"training.lr": 1e30, "training.clip": None, "model.attention": "relu_plain"}))
    result = vision.run_images(wild, context)
    assert result["status"] == "diverged"
    assert measures.value("test_accuracy", {"images": result}) == float("-inf")


def test_the_better_of_two_trials_decides_and_neither_reads_the_test_images(context: Context) -> None:
    content = changed(CONTENT, {"trials": {"lr": [1e-30, 0.01], "updates": 3, "seed": 100, "validate_every": 3}})
    del content["training"]["lr"]
    run = Run(content)
    for trial in run.trials:
        result = vision.run_images(trial, context)
        assert "test" not in result and result["valid"][-1]["step"] == 3
        context.study.write_result(trial, result)
    result = vision.run_images(run, context)
    assert result["lr"] == 0.01 and result["test"]["images"] == 16


def test_images_come_from_the_folder_of_the_study(tmp_path: Path) -> None:
    (tmp_path / "some-set").mkdir()
    assert vision.find_images("some-set", tmp_path) == tmp_path / "some-set"
    with pytest.raises(DataError, match=r"the set 'other' is needed and not in .*other; `reluformer data get other"):
        vision.find_images("other", tmp_path)
    with pytest.raises(DataError, match="not in no folder"):
        vision.find_images("other", None)


def test_the_grids_are_those_of_the_paper() -> None:
    plan = make_plan(["vision"], "small", None)
    parts = [cell.part for cell in plan.cells]
    assert parts.count("activations") == 8 * 4
    assert parts.count("tokens") == 3 * 4 * 2 * 2
    tokens = {(28 // run.content["model"]["patch"]) ** 2 for run in plan.runs.values()}
    assert tokens == {49, 196, 784}


def test_every_variant_tries_the_same_two_learning_rates() -> None:
    plan = make_plan(["vision"], "small", None)
    for cell in plan.cells:
        (run,) = cell.runs
        updates = run.content["training"]["updates"]
        assert [trial.content["training"]["lr"] for trial in run.trials] == [1e-3, 3e-3]
        for trial in run.trials:
            assert trial.seed == 100 and trial.address in plan.runs and "test" not in trial.content
            assert updates / 10 <= trial.content["training"]["updates"] <= max(updates / 10, 100)
    softmax = {cell.runs[0].address for cell in plan.cells if cell.labels.get("h") == "softmax"}
    assert len(softmax) == 1  # one run for each alpha
