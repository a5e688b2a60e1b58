"""`reluformer export --to onnx`, and what other verbs do with its folder."""

from __future__ import annotations

import pytest

from reluformer.errors import ArgumentError, StorageError, UnknownNameError

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="needs the extra onnx: pip install 'reluformer[onnx]'")

TEXT = "Our readers live in Austria. The bag is old.\n\n  It was very big.\n"


def test_an_exported_run_translates_as_the_run_does(run, invoke, tmp_path):
    out = tmp_path / "exported"
    shown = invoke("export", run, "--to", "onnx", "--out", out).stdout
    assert f"wrote {out}" in shown and "decoder.onnx" in shown
    assert invoke("translate", out, stdin=TEXT).stdout == invoke("translate", run, stdin=TEXT).stdout
    with pytest.raises(ArgumentError, match="--device cuda: an ONNX export runs on the CPU"):
        invoke("translate", out, "--device", "cuda", stdin=TEXT)
    with pytest.raises(StorageError, match="an ONNX export, which only translates; give the run"):
        invoke("inspect", out, "-", stdin=TEXT)
    with pytest.raises(StorageError, match="an ONNX export, not a run"):
        invoke("export", out, "--to", "onnx", "--out", tmp_path / "again")


def test_wrong_options_are_refused(run, invoke, tmp_path):
    with pytest.raises(UnknownNameError, match="valid: int8"):
        invoke("export", run, "--to", "onnx", "--out", tmp_path / "x", "--quantize", "fp4")
    with pytest.raises(ArgumentError, match="valid are 18 to 23"):
        invoke("export", run, "--to", "onnx", "--out", tmp_path / "x", "--opset", "7")
    assert not (tmp_path / "x").exists()
