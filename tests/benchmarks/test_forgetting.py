"""The benchmark of forget gates times the reads of a trained language model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import reluformer as rf
from reluformer.training.progress import SilentProgress

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


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
    command = [sys.executable, BENCHMARKS / "forgetting.py", "--run", tmp_path / "run", "--lengths", "64"]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*map(str, command), "--repeats", "1", "--json"], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [row["layer"] for row in result["reads"]] == ["0", "1", "all"]
    assert all(row["over_sdpa"] > 0 and 0 < row["zeros"] < 1 for row in result["reads"])
    assert (result["run"], result["split"]) == ("run", "test")
