"""Versions, commit, kernel and command are recorded as they are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from reluformer import __version__, environment
from reluformer.kernels import cpu


def test_a_machine_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert environment.commit(tmp_path) is None


def test_a_clone_of_something_else_is_not_taken_for_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for prefix, commit in (("src/reluformer/", "abc1234"), ("lib/reluformer/", None)):
        answer = subprocess.CompletedProcess([], 0, stdout=f"{prefix}\nabc1234\n")
        monkeypatch.setattr(environment.subprocess, "run", lambda *_, answer=answer, **__: answer)
        assert environment.commit(tmp_path) == commit


def test_an_installed_package_knows_its_commit_from_the_build(tmp_path: Path) -> None:
    (tmp_path / environment.COMMIT_FILE).write_text("1234567\n", encoding="utf-8")
    assert environment.commit(tmp_path) == "1234567"


def test_the_version_line_names_commit_and_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "commit", lambda: "abc1234")
    assert environment.version_line() == f"reluformer {__version__} (commit abc1234), kernel: {environment.kernel()}"
    monkeypatch.setattr(environment, "commit", lambda: None)
    monkeypatch.setattr(cpu, "unavailable", lambda: "it was not built")
    assert environment.version_line() == f"reluformer {__version__}, kernel: none"


def test_the_command_can_be_typed_again() -> None:
    assert environment.command_line(["/x/reluformer", "train", "a b.yaml"]) == "reluformer train 'a b.yaml'"
    assert environment.command_line(["/x/reluformer/__main__.py", "demo"]) == "python -m reluformer demo"
    assert environment.command_line([]) == "''"


def test_circumstances_name_neither_host_nor_folder() -> None:
    found = environment.circumstances()
    assert {"commit", "reluformer", "torch", "kernel", "cpu", "cores"} <= found.keys()
    assert str(Path(__file__).parents[1]) not in str(found)
