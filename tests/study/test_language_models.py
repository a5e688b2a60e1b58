"""A language model is trained and tested at several lengths; the experiment `forgetting` asks for equal runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import reluformer as rf
from reluformer.errors import DataError
from reluformer.language.scoring import own_reads, skipped_pairs
from reluformer.study import language_models, measures
from reluformer.study.plan import VERSION, Run, make_plan
from reluformer.study.speed import estimate
from reluformer.study.trainings import Context

SPLITS = {split: {"embedded": {"documents": 20, "sentences": [2, 4]}} for split in ("train", "valid", "test")}
CONTENT: dict[str, Any] = {
    "study": VERSION,
    "kind": "language",
    "dataset": "embedded",
    "data": {**SPLITS, "tokenizer": {"vocab_size": 300}, "context": 16},
    "model": {"size": "tiny", "architecture": "fox", "width": 16, "slots": 16},
    "training": {"updates": 3, "tokens_per_batch": 64, "warmup": 1, "lr": 0.01, "seed": 0, "validate_every": 3},
    "test": {"contexts": [16, 32], "tokens": 64, "needles": 2, "needle": {"length": 4, "shown": 2}},
}


def test_it_is_trained_and_tested_at_every_length(context: Context) -> None:
    result = language_models.run(Run(CONTENT), context)
    assert result["status"] == "finished" and result["lr"] == 0.01
    found = {"language": result}
    for length in ("16", "32"):
        assert 4 < measures.value(f"context_loss@{length}", found) < 7
        assert measures.value(f"context_zeros@{length}", found) == 0
        assert 0 <= measures.value(f"needles_found@{length}", found) <= 1
        assert measures.value(f"pairs_skipped@{length}", found) == 0
    assert measures.value("context_loss@64", found) is None
    points = measures.series("loss_by_context_position").points(found)
    assert [x for x, _ in points] == [1, 2, 4, 8, 16, 32]
    assert not (context.study.training(Run(CONTENT)) / "checkpoints").exists()


def test_a_trial_is_not_tested_and_decides_the_rate(context: Context) -> None:
    training = {key: value for key, value in CONTENT["training"].items() if key != "lr"}
    run = Run({**CONTENT, "training": training, "trials": {"lr": [0.01, 1e-6], "updates": 3, "warmup": 1, "seed": 100}})
    for trial in run.trials:
        result = language_models.run(trial, context)
        assert result["contexts"] == {} and result["loss"] > 0
        context.study.write_result(trial, result)
    assert language_models.run(run, context)["lr"] == 0.01


def test_a_training_that_diverges_is_a_result(context: Context) -> None:
    run = Run({**CONTENT, "training": {**CONTENT["training"], "lr": 1e30, "clip": None, "updates": 9}})
    result = language_models.run(run, context)
    assert result["status"] == "diverged"
    assert measures.value("context_loss@16", {"language": result}) == float("inf")
    assert measures.value("context_zeros@16", {"language": result}) is None


def test_the_english_side_of_a_corpus_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "europarl7-doc"
    folder.mkdir()
    content = {**CONTENT, "dataset": "europarl7-doc", "data": {"context": 16}}
    with pytest.raises(DataError, match="europarl7-doc"):
        language_models.data_config(content, tmp_path)
    for split in ("train", "valid", "test"):
        (folder / f"{split}.jsonl").write_text('{"src": ["A."], "tgt": ["B."]}\n')
    (source,) = language_models.data_config(content, tmp_path).train
    assert (source.path, source.field) == (folder / "train.jsonl", "src")


def test_own_reads_are_those_of_the_model() -> None:
    torch.manual_seed(0)
    model = rf.LanguageModel(rf.LanguageConfig.preset("tiny", "reluformer", vocab_size=50, key_heads=2)).eval()
    text = torch.randint(50, (1, 600))
    found = own_reads(model, text)
    assert [(q.shape, slots.keys.shape) for _, q, slots in found] == [((1, 4, 600, 32), (1, 2, 600, 32))] * 2
    read, q, slots = found[0]
    assert slots.gate is not None
    fast = slots._replace(gate=slots.gate - torch.arange(600) * 9.0)
    assert skipped_pairs(read, q, fast) > 0.3
    read.gate_on = "weights"
    assert skipped_pairs(read, q, fast) == 0


def test_along_the_models_everything_but_rule_and_gate_is_equal() -> None:
    for part in ("contrast", "exploration"):
        plan = make_plan(["forgetting"], "small", None, parts=[part])
        runs = [cell.runs[0] for cell in plan.cells]
        others = ("attention", "positions", "forget", "forget_on")
        for run in runs:
            model = {key: value for key, value in run.content["model"].items() if key not in others}
            first = runs[0].content
            assert model == {key: value for key, value in first["model"].items() if key not in others}
            assert {**run.content["training"], "seed": 0} == {**first["training"], "seed": 0}
            assert (run.content["data"], run.content["test"]) == (first["data"], first["test"])
            assert [trial.seed for trial in run.trials] == ([100, 100] if part == "contrast" else [])
            assert all("test" not in trial.content for trial in run.trials)
    assert len(plan.cells) == 6


def test_an_estimate_knows_language_models() -> None:
    plan = make_plan(["forgetting"], "quick", 1, only={"model": ["softmax gate"]})
    found = estimate(plan, plan.runs)
    assert found.target_tokens == 40 * 512 and found.seconds > 0
