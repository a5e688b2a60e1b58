"""The benchmark of the attention interface runs and tells what it measured. Nothing here asserts on time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs the extra [hf]")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_interface(tmp_path: Path) -> None:
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    options = ["--lengths", "16", "--rules", "relu", "--layers", "1", "--seconds", "0", "--json", tmp_path / "hub.json"]
    command = [sys.executable, BENCHMARKS / "hub.py", *options]
    printed = subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout
    found = json.loads((tmp_path / "hub.json").read_text())
    assert json.loads(printed) == found
    assert [(row["shape"], row["pass"]) for row in found["rows"]] == [
        (shape, kind) for shape in ("bert", "llama") for kind in ("inference", "training")
    ]
    assert all(low <= row["ratio"] <= high for row in found["rows"] for low, high in [row["quartiles"]])
