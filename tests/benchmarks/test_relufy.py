"""The relufy benchmark runs on a tiny translator and writes every stage; its rank correlation is right."""

from __future__ import annotations

import gzip
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.embedded import generate
from reluformer.translation.recipe import TokenizerConfig
from reluformer.translation.tokenizer import Tokenizer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SOFTMAX = dict.fromkeys(("encoder_attention", "decoder_attention", "cross_attention"), "softmax")


def test_a_translator(tmp_path: Path) -> None:
    data, run, out = tmp_path / "data", tmp_path / "run", tmp_path / "result.json"
    (data / "multi30k").mkdir(parents=True)
    pairs = [pair for found in generate(8) for pair in zip(found.document.src, found.document.tgt or (), strict=True)]
    for split, part in (("train", pairs[:24]), ("valid", pairs[24:28]), ("test", pairs[28:31])):
        for language, side in zip(("en", "de"), zip(*part, strict=True), strict=True):
            with gzip.open(data / "multi30k" / f"{split}.{language}.gz", "wt", encoding="utf-8") as file:
                file.write("".join(f"{sentence}\n" for sentence in side))
    tokenizer = Tokenizer.train([side for pair in pairs for side in pair], TokenizerConfig(vocab_size=300))
    tokenizer.save(run)
    sizes = dict(width=16, heads=2, encoder_layers=1, decoder_layers=1, slots=16)
    ReLUFormer(ModelConfig(vocab_size=tokenizer.vocab_size, **sizes, **SOFTMAX)).save(run)
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    flags = ["--run", run, "--data", data, "--steps", "4", "--texts", "20", "--calibrate-on", "4", "--json", out]
    command = [sys.executable, BENCHMARKS / "relufy.py", "translator", *flags]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    content = json.loads(out.read_text(encoding="utf-8"))
    stages = content["report"]["stages"]
    assert list(stages) == ["swapped", "calibrated", "distilled"]
    assert all(0 <= stage["measures"]["test_bleu"] <= 100 for stage in stages.values())
    assert content["report"]["distillation"]["layers"]["steps"] == 1
    assert "calibrated" in done.stdout and str(tmp_path) not in content["command"]


def test_rank_correlation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spearman = importlib.import_module("relufy").spearman
    values = torch.tensor([0.3, -1.0, 2.0, 5.0])
    assert spearman(values, values**3) == pytest.approx(1)
    assert spearman(values, -values) == pytest.approx(-1)
    assert spearman(torch.tensor([1.0, 2.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0, 4.0])) == pytest.approx(0.9486833)
