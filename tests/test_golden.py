"""What version 0.1 computed and wrote, which later versions must compute and read.

`golden/record.py` recorded the values, in float64. Losses agree within a relative 1e-9 on any machine;
`golden/compare.py` compares two checkouts on one machine bit for bit. The old run resumes in float32, whose sums differ
between processors.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.main import get_command
from typer.testing import CliRunner

import reluformer as rf
from reluformer.cli import app

GOLDEN = Path(__file__).parent / "golden"
OLD = GOLDEN / "v0.1"
DOCUMENTS = GOLDEN / "documents.jsonl"
RELATIVE = 1e-9
RELATIVE_FLOAT32 = 1e-5
CURVES = json.loads((GOLDEN / "curves.json").read_text(encoding="utf-8"))
EXPECTED = json.loads((OLD / "expected.json").read_text(encoding="utf-8"))
INTERFACE = json.loads((GOLDEN / "interface.json").read_text(encoding="utf-8"))


def call(*arguments: str | Path) -> str:
    """Run a verb in this process and return what it printed."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def translations(model: Path) -> list[dict[str, Any]]:
    """Return the best translation of each of the ten documents, as the search finds it."""
    listed = json.loads(call("translate", model, DOCUMENTS, "--json", "--set", "check_alignment=false"))["documents"]
    return [document["translations"][0] for document in listed]


def check_translations(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [one["sentences"] for one in found] == [one["sentences"] for one in expected]
    assert [one["score"] for one in found] == pytest.approx([one["score"] for one in expected], rel=1e-4)


# ---------------------------------------------------------------------- what it computes


@pytest.fixture(scope="module")
def curves() -> dict[str, Any]:
    """The three recipes of today, in a process of its own: it reads with the reference only."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(GOLDEN / "curves.py")]
    printed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
    return dict(json.loads(printed))


@pytest.mark.parametrize("recipe", CURVES)
def test_losses(curves: dict[str, Any], recipe: str) -> None:
    found, expected = curves[recipe], CURVES[recipe]
    assert len(found["train"]) == 30
    assert list(losses(found)) == pytest.approx(list(losses(expected)), rel=RELATIVE)
    assert [update["tokens"] for update in found["train"]] == [update["tokens"] for update in expected["train"]]


def losses(curve: dict[str, Any]) -> Iterator[float]:
    """The losses of all updates, parts of the regulariser included, and of all validations."""
    for update in curve["train"]:
        yield from (update["loss"], update["nll"])
        yield from (
            update["regularizer"][part] for part in ("loss", "normalization", "entropy") if "regularizer" in update
        )
    yield from curve["valid"]


@pytest.mark.parametrize("recipe", CURVES)
def test_translations_after_training(curves: dict[str, Any], recipe: str) -> None:
    assert len(CURVES[recipe]["translations"]) == 10
    check_translations(curves[recipe]["translations"], CURVES[recipe]["translations"])


# ---------------------------------------------------------------------- what it wrote


def test_a_run_translates() -> None:
    check_translations(translations(OLD / "run"), EXPECTED["run"])
    assert rf.load(OLD / "run", check_alignment=False).translate(EXPECTED["texts"]) == EXPECTED["translated_texts"]


def test_the_best_weights_of_a_run_load() -> None:
    weights = rf.ReLUFormer.load(OLD / "run" / "best").state_dict()
    saved = load_file(OLD / "run" / "model.safetensors")  # this run ended with its best weights
    assert weights.keys() >= saved.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in saved.items())


def test_a_run_resumes(tmp_path: Path) -> None:
    run, updates = tmp_path / "run", EXPECTED["updates"]
    shutil.copytree(OLD / "run", run)
    call("train", OLD / "run" / "recipe.yaml", "--run", run, "--set", f"training.updates={updates}")
    events = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    validations = [event for event in events if event["event"] == "valid"]
    assert [event["step"] for event in validations] == [100, 200, 300, 400, updates]
    assert validations[-1]["loss"] == pytest.approx(EXPECTED["valid"], rel=RELATIVE_FLOAT32)
    assert json.loads((run / "status.json").read_text(encoding="utf-8"))["status"] == "finished"


def test_a_prepared_corpus_is_reused(tmp_path: Path) -> None:
    shutil.copytree(OLD / "run" / "data", tmp_path / "data")
    summary = json.loads(call("prepare", OLD / "run" / "recipe.yaml", "--to", tmp_path / "data", "--json"))
    assert summary["reused"]
    for file in (OLD / "run" / "data").iterdir():
        assert (tmp_path / "data" / file.name).read_bytes() == file.read_bytes()


def test_a_corpus_prepared_today_is_the_same(tmp_path: Path) -> None:
    summary = json.loads(call("prepare", OLD / "run" / "recipe.yaml", "--to", tmp_path / "data", "--json"))
    assert not summary["reused"]
    for name in ("train.arrow", "valid.arrow", "test.arrow", "tokenizer.json"):
        assert (tmp_path / "data" / name).read_bytes() == (OLD / "run" / "data" / name).read_bytes()


def test_an_export_to_transformers_loads(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra [hf]")
    from reluformer import hub

    hub.register()
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(OLD / "hf")
    translator = hub.translator(model, transformers.AutoTokenizer.from_pretrained(OLD / "hf"), check_alignment=False)
    assert translator.translate(EXPECTED["texts"]) == EXPECTED["translated_texts"]
    call("export", OLD / "hf", "--to", "run", "--out", tmp_path / "back")
    check_translations(translations(tmp_path / "back"), EXPECTED["run"])


def test_an_export_to_onnx_translates(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
    shutil.unpack_archive(OLD / "onnx.zip", tmp_path / "onnx")
    check_translations(translations(tmp_path / "onnx"), EXPECTED["onnx"])


# ---------------------------------------------------------------------- what it is called by


def verbs(recorded: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """All recorded commands with their paths, e.g. ("data", "get")."""
    yield path, recorded
    for name, inner in recorded.get("commands", {}).items():
        yield from verbs(inner, (*path, name))


VERBS = dict(verbs(INTERFACE))


@pytest.mark.parametrize("path", VERBS, ids=lambda path: "-".join(path) or "reluformer")
def test_verbs_and_options_still_exist(path: tuple[str, ...]) -> None:
    command: Any = get_command(app)
    for name in path:
        command = command.commands[name]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert set(VERBS[path]["options"]) <= options
    arguments = [parameter.name for parameter in command.params if parameter.param_type_name == "argument"]
    assert len(arguments) == len(VERBS[path]["arguments"])
