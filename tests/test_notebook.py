"""The notebooks for students run from top to bottom."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
NOTEBOOK = NOTEBOOKS / "from_read_to_translation.ipynb"


def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With three updates instead of the notebook's own number, in a directory of its own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = code_of(NOTEBOOK)
    small = {"UPDATES = 1500": "UPDATES = 3", '"documents": 4000': '"documents": 40'}
    for old, new in small.items():
        assert sum(cell.count(old) for cell in code) == 1
        code = [cell.replace(old, new) for cell in code]
    names: dict[str, Any] = {}
    for number, cell in enumerate(code):
        exec(compile(cell, f"{NOTEBOOK.name}, code cell {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert "largest difference:" in printed
    assert "3 updates" in printed
    assert "of all cross-attention weights are exactly zero" in printed
    assert names["translator"].translate_documents([["A lamp."]])


ROOMS: dict[str, tuple[dict[str, str], str]] = {
    "bounds_of_a_read": ({}, r"width of the range before \d\.\d+, after \d\.\d+"),
    "images_and_proofs": ({"UPDATES = 400": "UPDATES = 20", "IMAGES = 40": "IMAGES = 3"}, r"linear  : proved for \d+%"),
    "regions_from_relus": ({"UPDATES = 300": "UPDATES = 20"}, r"\d+% of the points are undecided"),
}
"""By notebook: what is replaced to make it quick, and what its last cell prints."""


@pytest.mark.parametrize("name", ROOMS)
def test_five_cells_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """In a directory of its own, and with the given changes, each of which has to apply once."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = code_of(NOTEBOOKS / f"{name}.ipynb")
    assert len(code) == 5
    changes, last = ROOMS[name]
    for old, new in changes.items():
        assert sum(cell.count(old) for cell in code) == 1
        code = [cell.replace(old, new) for cell in code]
    names: dict[str, Any] = {}
    for number, cell in enumerate(code):
        capsys.readouterr()
        exec(compile(cell, f"{name}.ipynb, code cell {number}", "exec"), names)
    assert re.search(last, capsys.readouterr().out)


def test_every_notebook_is_executed() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {NOTEBOOK.stem, *ROOMS}


def code_of(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_it_is_stored_without_output(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")
