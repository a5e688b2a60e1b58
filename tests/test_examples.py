"""The examples in docstrings run, and print what they say."""

from __future__ import annotations

import doctest
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
OPTIONAL = {"transformers": "hf", "onnx": "onnx", "server": "serve"}
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((SOURCE / "reluformer").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
PACKAGES = {"hf": "transformers", "onnx": "onnxruntime", "serve": "fastapi"}


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part, extra in OPTIONAL.items():
        if f"integrations.{part}" in name and find_spec(PACKAGES[extra]) is None:
            pytest.skip(f"needs the extra [{extra}]")
    monkeypatch.chdir(tmp_path)
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failed, attempted = doctest.testmod(importlib.import_module(name), optionflags=options)
    assert attempted > 0
    assert failed == 0


def test_there_are_examples() -> None:
    assert {"reluformer.models.config"} <= set(MODULES)
