"""The notebook for students runs from top to bottom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "from_read_to_translation.ipynb"


def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With three updates instead of the notebook's own number, in a directory of its own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
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


def test_it_is_stored_without_output() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")
