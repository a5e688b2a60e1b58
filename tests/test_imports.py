"""Imports go one way only, heavy parts stay optional, and the package imports quickly."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "reluformer"
# each floor may import from those before it, and each name from those to the left of it
FLOORS = [
    ["errors", "files", "downloads", "config", "benchmarking", "report_page", "rules"],
    [
        "kernels",
        "memory",
        "bounding",
        "context_parallel",
        "regularizers",
        "layers",
        "telemetry",
        "conformance",
        "environment",
    ],
    ["models"],
    ["training", "translation", "language", "images", "study"],
    ["integrations", "hub", "loading", "recipe_reference", "cli", "__main__"],
]
RANK = {name: rank for rank, names in enumerate(name for floor in FLOORS for name in floor) for name in names.split()}
OPTIONAL = {"matplotlib", "scipy", "transformers", "fastapi", "triton"}
# a file that Triton compiles, itself imported only where a read runs
MADE_OF_TRITON = SOURCE / "kernels" / "triton_tiles.py"
# files around classes of transformers; the package itself imports them where a name is used
MADE_OF_TRANSFORMERS = [path for path in (SOURCE / "integrations").rglob("*.py") if path.name != "__init__.py"]


def imports_of(path: Path, top_level_only: bool) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    own = path.relative_to(SOURCE).with_suffix("").parts[0]
    assert own in RANK, f"give '{own}' its place on a floor"
    for name in imports_of(path, top_level_only=False):
        parts = name.split(".")
        if parts[0] == "reluformer" and len(parts) > 1 and parts[1] in RANK:
            assert RANK[parts[1]] <= RANK[own], f"{own} must not import {parts[1]}"


TASKS = ("translation", "language", "images")
# a language model reads the texts of a parallel corpus and the same tokens, so these are translation's
BORROWED = {"language": {f"reluformer.translation.{name}" for name in ("embedded", "recipe", "tokenizer")}}


@pytest.mark.parametrize("task", TASKS)
def test_no_task_imports_another(task: str) -> None:
    others = tuple(f"reluformer.{other}" for other in TASKS if other != task)
    borrowed = BORROWED.get(task, set())
    used = set()
    for path in (SOURCE / task).rglob("*.py"):
        for name in imports_of(path, top_level_only=False):
            if name.startswith(others):
                source = next((module for module in borrowed if f"{name}.".startswith(f"{module}.")), None)
                assert source is not None, f"{path.relative_to(SOURCE)} must not import {name}"
                used.add(source)
    assert used == borrowed, "what is no longer borrowed leaves the list"


def module_of(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    parts = ("reluformer", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def cycles_in(graph: dict[str, set[str]]) -> list[str]:
    """Return the modules on a cycle or between two: those without imports or importers are taken away first."""
    left = {module: set(imported) for module, imported in graph.items()}
    while free := [
        module
        for module, imported in left.items()
        if not imported & left.keys() or not any(module in others for others in left.values())
    ]:
        left = {module: imported - set(free) for module, imported in left.items() if module not in free}
    return sorted(left)


def parts_imported(path: Path, modules: Collection[str]) -> set[str]:
    """Return the modules that a file imports, in functions as well; `from package import part` is the part alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(part if part in modules else node.module for part in parts)
    return found & set(modules) - {module_of(path)}


PACKAGES = sorted(path.parent for path in SOURCE.rglob("__init__.py") if path.parent != SOURCE)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_inside_a_package_have_no_cycles(package: Path) -> None:
    files = {module_of(path): path for path in package.rglob("*.py")}
    assert cycles_in({name: parts_imported(path, files.keys()) for name, path in files.items()}) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_optional_parts_are_imported_where_they_are_used(path: Path) -> None:
    allowed = {"triton"} if path == MADE_OF_TRITON else {"transformers"} if path in MADE_OF_TRANSFORMERS else set()
    imported = {name.split(".")[0] for name in imports_of(path, top_level_only=True)}
    assert imported & OPTIONAL <= allowed
    if path != MADE_OF_TRITON:
        assert "reluformer.kernels.triton_tiles" not in imports_of(path, top_level_only=True)
    if path not in MADE_OF_TRANSFORMERS:
        assert not any(
            name.startswith("reluformer.integrations.transformers.") for name in imports_of(path, top_level_only=True)
        )


def test_the_bare_package_and_the_help_do_not_load_torch() -> None:
    code = "import sys, reluformer.conformance.plugin, reluformer.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names() -> None:
    import reluformer as rf

    assert {"read", "rules", "ReLUFormer", "ModelConfig"} <= set(dir(rf))
    assert rf.ReluformerError is rf.errors.ReluformerError
    with pytest.raises(AttributeError, match="no attribute 'reed'"):
        _ = rf.reed
