"""The benchmark of forget gates times the reads of a trained language model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import reluformer as rf
from reluformer.training.progress import SilentProgress

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def result_of(*options: object) -> dict[str, Any]:
    command = [sys.executable, BENCHMARKS / "forgetting.py", *options, "--repeats", "1", "--json"]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*map(str, command)], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("changes", [{}, {"forget_on": "weights", "key_heads": 2}, {"positions": "rotary"}], ids=str)
def test_the_reads_of_a_trained_model(changes: dict[str, object], tmp_path: Path) -> None:
    splits = {split: {"embedded": {"documents": 20}} for split in ("train", "test")}
    recipe = {
        "task": "language",
        "data": {**splits, "tokenizer": {"vocab_size": 300}, "context": 16},
        "model": {"size": "tiny", "architecture": "reluformer", "width": 32, "slots": 16, **changes},
        "training": {"updates": 1, "tokens_per_batch": 32, "warmup": 1},
    }
    rf.train(recipe, tmp_path / "run", progress=SilentProgress())
    result = result_of("--run", tmp_path / "run", "--lengths", 64)
    assert [row["layer"] for row in result["reads"]] == ["0", "1", "all"]
    assert all(row["over_sdpa"] > 0 and 0 < row["zeros"] < 1 for row in result["reads"])
    assert (result["run"], result["split"]) == ("run", "test")


def test_models_are_compared_with_a_llama_of_their_size() -> None:
    pytest.importorskip("transformers", reason="needs the extra [hf]")
    result = result_of("--lengths", 8, "--rules", "relu", "--models", 16, "--size", "tiny")
    assert [row["model"] for row in result["models"]] == ["reluformer", "fox", "transformer"]
    for row in result["models"]:
        assert row["over_llama"] > 0
        assert row["parameters"] == pytest.approx(row["llama_parameters"], rel=0.02)
