"""`reluformer export`: a run for transformers and back, and for ONNX."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from reluformer.errors import ArgumentError, StorageError, UnknownNameError
from reluformer.integrations import onnx

Invoke = Callable[..., Result]
TEXT = "Our readers live in Austria. The bag is old.\n\n  It was very big.\n"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer.meta.json", "recipe.yaml")


needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra [hf]")
needs_onnx = pytest.mark.skipif(
    any(find_spec(package) is None for package in ("onnx", "onnxscript", "onnxruntime")),
    reason="needs the extra [onnx]",
)


@needs_transformers
def test_there_and_back(run: Path, invoke: Invoke, tmp_path: Path) -> None:
    shown = invoke("export", run, "--to", "hf", "--out", tmp_path / "hf").stdout
    assert f"wrote {tmp_path / 'hf'}" in shown
    assert "model.safetensors" in shown
    assert f"AutoModelForSeq2SeqLM.from_pretrained('{tmp_path / 'hf'}')" in shown
    found = json.loads(invoke("export", tmp_path / "hf", "--to", "run", "--json").stdout)
    back = tmp_path / "hf" / "run"
    assert (found["to"], found["out"], sorted(found["files"])) == ("run", str(back), sorted(FILES))
    for name in FILES:
        assert (back / name).read_bytes() == (run / name).read_bytes()
    translated = [invoke("translate", path, stdin="The house is big.\n").stdout for path in (run, back)]
    assert translated[0] == translated[1] != ""


def test_onnx_is_handed_on(run: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def export_run(run: Path, out: Path, **options: Any) -> dict[str, Any]:
        asked.update(run=run, out=out, **options)
        return {"files": {"model.onnx": 3}}

    monkeypatch.setitem(vars(onnx), "export_run", export_run)  # the package imports its names lazily
    shown = invoke("export", run, "--to", "onnx", "--quantize", "int8", "--opset", "20", "--force").stdout
    assert asked == {"run": run, "out": run / "onnx", "quantize": "int8", "opset": 20, "force": True}
    assert "model.onnx  3 bytes" in shown
    (tmp_path / "reluformer").symlink_to(run)
    invoke("export", tmp_path, "--to", "onnx")
    assert (asked["run"], asked["out"]) == (tmp_path / "reluformer", tmp_path / "reluformer" / "onnx")


@needs_transformers
def test_wrong_use(run: Path, invoke: Invoke, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such directory"):
        invoke("export", tmp_path / "none", "--to", "hf")
    with pytest.raises(StorageError, match="not a run"):
        invoke("export", tmp_path, "--to", "hf")
    with pytest.raises(ArgumentError, match="are for --to onnx"):
        invoke("export", run, "--to", "hf", "--quantize", "int8")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("")
    with pytest.raises(StorageError, match="choose another --out, or --force"):
        invoke("export", run, "--to", "hf", "--out", tmp_path / "there")
    assert invoke("export", run).exit_code == 2
    assert invoke("export", run, "--to", "gguf").exit_code == 2


@pytest.mark.parametrize("verb", ["export", "evaluate", "inspect", "translate"])
def test_the_example_of_the_help_names_a_run_of_the_demo(invoke: Invoke, verb: str) -> None:
    assert f"Example: reluformer {verb} runs/demo/reluformer " in invoke(verb, "--help").stdout


@needs_onnx
def test_an_exported_run_translates_as_the_run_does(run: Path, invoke: Invoke, tmp_path: Path) -> None:
    out = tmp_path / "exported"
    shown = invoke("export", run, "--to", "onnx", "--out", out).stdout
    assert f"wrote {out}" in shown and "decoder.onnx" in shown
    plain = invoke("translate", run, "--set", "check_alignment=false", stdin=TEXT).stdout  # ONNX gives no attention
    assert invoke("translate", out, stdin=TEXT).stdout == plain
    with pytest.raises(ArgumentError, match="device cuda: an ONNX export runs on the CPU"):
        invoke("translate", out, "--device", "cuda", stdin=TEXT)
    with pytest.raises(StorageError, match="an ONNX export, which only translates; give the run"):
        invoke("inspect", out, "-", stdin=TEXT)
    with pytest.raises(StorageError, match="an ONNX export, not a run"):
        invoke("export", out, "--to", "onnx", "--out", tmp_path / "again")


@needs_onnx
def test_wrong_options_are_refused(run: Path, invoke: Invoke, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="valid: int8"):
        invoke("export", run, "--to", "onnx", "--out", tmp_path / "x", "--quantize", "fp4")
    with pytest.raises(ArgumentError, match="valid are 18 to 23"):
        invoke("export", run, "--to", "onnx", "--out", tmp_path / "x", "--opset", "7")
    assert not (tmp_path / "x").exists()
