"""The benchmarks run, and tell what they measured and what they left out. Nothing here asserts on time."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.embedded import generate
from reluformer.translation.recipe import TokenizerConfig
from reluformer.translation.tokenizer import Tokenizer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model with its tokenizer."""
    directory = tmp_path_factory.mktemp("run")
    documents = [found.document for found in generate(20)]
    tokenizer = Tokenizer.train([s for d in documents for s in (*d.src, *d.tgt)], TokenizerConfig(vocab_size=300))
    tokenizer.save(directory)
    sizes = dict(width=16, heads=2, encoder_layers=1, decoder_layers=2, slots=16)
    ReLUFormer(ModelConfig(vocab_size=tokenizer.vocab_size, **sizes)).save(directory)
    (directory / "text.txt").write_text("\n".join(documents[0].src[:2]), encoding="utf-8")
    return directory


def results(script: str, *options: str | Path) -> dict[str, Any]:
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, BENCHMARKS / script, "--json", *options]
    finished = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)  # type: ignore[no-any-return]


SMALL = ("--widths", "16", "--threads", "1", "--repeats", "2", "--seconds", "0.01", "--matrix", "64")


def test_attention_random_and_trained(run: Path) -> None:
    grid = ("--lengths", "48", "96", "--patterns", "causal", "--peers", "sdpa", "eager", "--impl", "auto", "nonsense")
    found = results("attention.py", *SMALL, *grid, "--run", run, "--text", run / "text.txt")
    measured = {(r["inputs"], r["width"], r["length"], r["kind"], r["contestant"]) for r in found["rows"]}
    kinds, names = ("forward", "forward+backward"), ("sdpa", "eager", "read:auto")
    inputs = (("random", 16), ("trained", 8))
    assert measured == {(*i, n, kind, name) for i in inputs for n in (48, 96) for kind in kinds for name in names}
    assert all(row["milliseconds"] > 0 and row["share_of_mm"] >= 0 for row in found["rows"])
    assert {row["time_over_sdpa"] for row in found["rows"] if row["contestant"] == "sdpa"} == {1.0}
    assert {(row["contestant"], row["reason"].split(";")[0]) for row in found["left_out"]} == {
        ("read:nonsense", "unknown impl 'nonsense'")
    }
    assert {row["inputs"] for row in found["sparsity"]} == {"random", "trained"}
    assert {"commit", "torch", "cpu", "threads"} <= set(found)


def test_what_needs_too_much_memory_is_named() -> None:
    grid = ("--lengths", "64", "--patterns", "full", "--passes", "forward", "--peers", "sdpa", "eager")
    found = results("attention.py", *SMALL, *grid, "--impl", "reference", "--memory-limit", "0")
    assert [row["contestant"] for row in found["rows"]] == ["sdpa"]
    assert {row["contestant"] for row in found["left_out"]} == {"eager", "read:reference"}
    assert all("the limit is 0 MB" in row["reason"] for row in found["left_out"])


def test_every_rule_against_four_lines() -> None:
    found = results("attention.py", *SMALL, "--compare-rules", "--lengths", "32", "--patterns", "full", "causal")
    assert {"relu", "softmax", "sparsemax"} <= {row["rule"] for row in found["rules"]}
    assert {row["pattern"] for row in found["rules"]} == {"full", "causal"}
    assert all(row["four_lines_over_read"] > 0 for row in found["rules"])


def test_decoding(run: Path) -> None:
    options = ("--tokens", "60", "--documents", "2", "--beam", "2", "--repeats", "1")
    found = results("decoding.py", "--run", run, "--text", run / "text.txt", *options)
    kinds = {(row["contestant"], row["weights"]) for row in found["rows"]}
    assert kinds == {(name, weights) for name in ("relu", "softmax twin") for weights in ("float32", "int8")}
    assert all(30 < tokens <= 61 for tokens in found["settings"]["source_tokens"])
    assert all(0 <= share <= 1 for share in found["zero_fractions"].values())


@pytest.fixture
def inputs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("attention_inputs")


def test_sparsity_of_elements_and_tiles(inputs: Any) -> None:
    q, k = torch.ones(1, 1, 128, 1), torch.ones(1, 1, 128, 1)
    k[:, :, :64] = -1
    assert inputs.sparsity(q, k, causal=False) == {"elements": 0.5, "tiles": 0.5}
    pairs = 128 * 129 / 2  # of which those with both in the second half are positive, in one of three tiles
    expected = {"elements": round(1 - 64 * 65 / 2 / pairs, 4), "tiles": round(2 / 3, 4)}
    assert inputs.sparsity(q, k, causal=True) == expected
    k[:, :, 0] = 1  # one positive element fills its column of tiles
    assert inputs.sparsity(q, k, causal=False)["tiles"] == 0.0


def test_four_lines_mean_what_read_means(inputs: Any) -> None:
    import reluformer as rf

    contestants = importlib.import_module("contestants")
    tensors = inputs.random_inputs("causal", 9, 2, 8)
    for rule in contestants.FOUR_LINES:
        obvious = contestants.four_lines(rule, True, *tensors)
        torch.testing.assert_close(rf.read(*tensors, rule=rule, causal=True), obvious)


def test_bounds_are_measured_and_drawn(tmp_path: Path) -> None:
    options = ("--slots", "9", "--radii", "0.1", "1", "--figure", tmp_path / "bounds.svg")
    found = results("bounds.py", *options, "--out", tmp_path / "bounds.json")
    assert len(found["rows"]) == 12
    assert all(row["elementwise"] >= row["width"] > 0 for row in found["rows"])
    one = found["candidates"]
    assert min(one["minimum"]) == pytest.approx(one["lower"], abs=1e-4)
    assert max(one["maximum"]) == pytest.approx(one["upper"], abs=1e-4)
    assert "<svg" in (tmp_path / "bounds.svg").read_text(encoding="utf-8")
