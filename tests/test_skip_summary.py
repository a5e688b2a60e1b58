"""The end of a test run tells what was skipped and why, in one process and with xdist."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

@pytest.mark.skipif(True, reason="this machine has no GPU")
@pytest.mark.parametrize("number", range(3))
def test_on_a_gpu(number):
    pass

def test_with_a_package():
    pytest.importorskip("absent_package", reason="needs absent_package")

def test_without_conditions():
    pass
"""


@pytest.mark.parametrize("processes", ["0", "1"])
def test_skips_are_counted_by_reason(tmp_path: Path, processes: str) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_example.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "--numprocesses", processes, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    first = next(number for number, line in enumerate(lines) if "4 skipped, and why" in line)
    assert [line.split(maxsplit=1) for line in lines[first + 1 : first + 3]] == [
        ["3", "this machine has no GPU"],
        ["1", "needs absent_package"],
    ]
