"""`reluformer.load` opens whatever the package writes, and all of it translates alike."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import reluformer as rf
from reluformer.errors import ArgumentError, StorageError

WRITTEN = Path(__file__).parent / "golden" / "v0.1"
RUN = WRITTEN / "run"
TEXT = "The lamp is new. It is big."


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return rf.load(RUN).translate([TEXT])


def test_a_run_on_a_device_of_choice(expected: list[str]) -> None:
    assert rf.load(str(RUN), "auto").translate([TEXT]) == expected
    assert rf.load(RUN, beam=1).config.beam == 1
    with pytest.raises(ArgumentError, match=r"device abacus: .*; use cpu"):
        rf.load(RUN, "abacus")


@pytest.mark.parametrize("written", ["today", "before"])
def test_the_best_model_of_a_run_loads_by_itself(tmp_path: Path, expected: list[str], written: str) -> None:
    """Before, best/ held the weights alone, and the run above it the tokenizer and the recipe."""
    best = tmp_path / "run" / "best"
    files = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer.meta.json", "recipe.yaml")
    best.mkdir(parents=True)
    for number, name in enumerate(files):
        shutil.copy(RUN / name, best if written == "today" or number < 2 else best.parent)
    found = rf.load(best)
    assert found.translate([TEXT]) == expected
    assert found.config == rf.load(RUN).config


def test_a_folder_of_runs_stands_for_its_reluformer(tmp_path: Path, expected: list[str]) -> None:
    shutil.copytree(RUN, tmp_path / "reluformer")
    assert rf.load(tmp_path).translate([TEXT]) == expected


def test_an_export_to_transformers(expected: list[str]) -> None:
    pytest.importorskip("transformers", reason="needs the extra [hf]")
    found = rf.load(WRITTEN / "hf", beam=2)
    assert found.config == rf.load(RUN, beam=2).config
    assert rf.load(WRITTEN / "hf").translate([TEXT]) == expected


def test_an_export_to_onnx(tmp_path: Path) -> None:
    """It gives no attention, so what a sentence read is not checked."""
    pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
    shutil.unpack_archive(WRITTEN / "onnx.zip", tmp_path / "onnx")
    assert rf.load(tmp_path / "onnx").translate([TEXT]) == rf.load(RUN, check_alignment=False).translate([TEXT])
    with pytest.raises(ArgumentError, match="device cuda: an ONNX export runs on the CPU"):
        rf.load(tmp_path / "onnx", "cuda")


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"model_type": "bert"})], ids=["cut", "list", "foreign"])
def test_another_config_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(StorageError, match=r"config\.json: (damaged|written by another program)"):
        rf.load(tmp_path)
