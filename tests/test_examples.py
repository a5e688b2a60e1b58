"""Public names are documented: arguments, results, and an example that runs and prints what it says.

An example may use what it finds in its working directory:

    runs/demo/reluformer  a small trained run; `rf.load("runs/demo")` opens it, as after `make demo`
    exported              the same run as `reluformer export --to hf` writes it
    exported-onnx         the same run as `reluformer export --to onnx` writes it
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import reluformer as rf
from reluformer import conformance, hub
from reluformer.translation.translator import Translator

SOURCE = Path(__file__).parents[1] / "src"
WRITTEN = Path(__file__).parent / "golden" / "v0.1"
OPTIONAL = {"transformers": "hf", "onnx": "onnx", "server": "serve"}
MODULES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((SOURCE / "reluformer").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
PACKAGES = {"hf": "transformers", "onnx": "onnxruntime", "serve": "fastapi"}
SKIPPED = {"hub.onnx.export_run": "torch traces for half a minute"}
"""Examples that are only shown, and why."""


def provide(directory: Path) -> None:
    """Copy what the examples may use into their working directory."""
    shutil.copytree(WRITTEN / "run", directory / "runs" / "demo" / "reluformer")
    shutil.copytree(WRITTEN / "hf", directory / "exported")
    shutil.unpack_archive(WRITTEN / "onnx.zip", directory / "exported-onnx")


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part, extra in OPTIONAL.items():
        if f"integrations.{part}" in name and find_spec(PACKAGES[extra]) is None:
            pytest.skip(f"needs the extra [{extra}]")
    provide(tmp_path)
    monkeypatch.chdir(tmp_path)
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    failed, attempted = doctest.testmod(importlib.import_module(name), optionflags=options)
    assert attempted > 0
    assert failed == 0


def test_there_are_examples() -> None:
    assert {"reluformer.models.config", "reluformer.loading", "reluformer.conformance"} <= set(MODULES)


def public_names() -> Iterator[str]:
    """Every public function and class as an expression."""
    yield from (f"rf.{name}" for name in rf.__all__)
    yield from (f"rf.rules.{name}" for name in rf.rules.__all__ if inspect.isfunction(getattr(rf.rules, name)))
    yield from (f"conformance.{name}" for name in conformance.__all__)
    yield from (f"Translator.{name}" for name, value in vars(Translator).items() if is_public_method(name, value))
    yield "Translator"
    if find_spec("transformers") is not None:
        yield from (f"hub.{name}" for name in hub.__all__)
    if find_spec("onnxruntime") is not None:
        yield from (f"hub.onnx.{name}" for name in hub.onnx.__all__)


def is_public_method(name: str, value: object) -> bool:
    return inspect.isfunction(value) and not name.startswith("_")


def found(expression: str) -> Any:
    first, *rest = expression.split(".")
    value = {"rf": rf, "hub": hub, "conformance": conformance, "Translator": Translator}[first]
    for name in rest:
        value = getattr(value, name)
    return value


NAMES = [name for name in public_names() if callable(found(name))]
every_name = pytest.mark.parametrize("name", NAMES)


def section(name: str, title: str) -> str:
    """Return the lines of a section of a docstring, or nothing."""
    match = re.search(rf"^{title}:\n((?: {{4}}.*\n|\n)+)", f"{inspect.getdoc(found(name))}\n", re.MULTILINE)
    return match[1] if match else ""


def parameters(value: Callable[..., Any]) -> list[str]:
    """Return the parameters that need a description; the fields of data have one each, where they stand."""
    if is_dataclass(value) or hasattr(value, "model_fields") or hasattr(value, "from_model_config"):
        return []
    if isinstance(value, type) and (issubclass(value, Exception) or value.__init__ is object.__init__):
        return []
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    given = inspect.signature(value).parameters.values()
    return [one.name for one in given if one.name != "self" and one.kind not in kinds]


@every_name
def test_arguments_are_described(name: str) -> None:
    described = re.findall(r"^ {4}\**(\w+): ", section(name, "Args"), re.MULTILINE)
    assert [one for one in parameters(found(name)) if one not in described] == []


@every_name
def test_results_are_described(name: str) -> None:
    if inspect.isfunction(found(name)) and inspect.signature(found(name)).return_annotation != "None":
        assert section(name, "Returns") or section(name, "Yields")


@every_name
def test_there_is_an_example_that_runs(name: str) -> None:
    lines = re.findall(r"^ {4}>>> .*$", section(name, "Example"), re.MULTILINE)
    assert lines
    assert any("+SKIP" in line for line in lines) == (name in SKIPPED)


def test_every_name_is_looked_at() -> None:
    assert {"rf.train", "rf.rules.register", "Translator.score", "conformance.check"} <= set(NAMES)
