"""The GPU kernels compile for real GPUs and fit into them. No GPU is needed, and nothing runs on one."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DOCS = BENCHMARKS.parent / "docs"
KERNELS = {"read_rows", "differentiate_rows", "differentiate_slots"}
SMALLEST_SHARED_MEMORY = 99 * 1024
"""Bytes that a program has on the GPUs with the least (sm_86, sm_89)."""
FEW_BYTES = 16
"""Of registers that ptxas spills by choice, to run more programs at once."""
LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'read_rows' for 'sm_80'
ptxas info    : Function properties for read_rows
    48 bytes stack frame, 44 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 48 bytes cumulative stack size
"""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark as a module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("gpu_compile")


@pytest.fixture
def compiled(command: ModuleType) -> list[dict[str, Any]]:
    """The largest kernels of common heads: centred, causal, masked, with a bias and with statistics."""
    if reason := command.unavailable():
        pytest.skip(reason)
    grid = ("--dtypes", "bfloat16", "float32", "--widths", "128", "--rules", "relu_exp", "--patterns", "everything")
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    finished = subprocess.run(
        [sys.executable, BENCHMARKS / "gpu_compile.py", "--json", *grid],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)["rows"]  # type: ignore[no-any-return]


def test_the_kernels_compile_for_gpus_and_fit_into_them(compiled: list[dict[str, Any]]) -> None:
    found = {(row["target"], row["dtype"], row["kernel"]) for row in compiled}
    assert found == {(t, d, k) for t in ("sm_80", "sm_90") for d in ("bfloat16", "float32") for k in KERNELS}
    assert all(row["fits"] and row["shared"] <= SMALLEST_SHARED_MEMORY for row in compiled)
    assert all(row["binary"] > 0 and 0 < row["registers"] <= 255 for row in compiled)
    assert [row for row in compiled if row["spill_stores"] > FEW_BYTES] == []


def test_the_report_of_the_assembler_is_read(command: ModuleType) -> None:
    assert command.Report.of(LOG) == command.Report(registers=255, spill_stores=44, spill_loads=40)
    with pytest.raises(ValueError, match="no registers or no spills"):
        command.Report.of("ptxas info    : 0 bytes gmem")


@pytest.mark.parametrize(("target", "fits"), [(80, False), (90, True)])
def test_a_kernel_that_is_too_large_is_reported(command: ModuleType, target: int, fits: bool) -> None:
    driver = command.CompilingDriver(target, StringIO(LOG))
    driver.launcher_cls(None, SimpleNamespace(num_warps=8))
    driver.load_binary("read_rows", b"code", shared=200 * 1024, device=target)
    assert [row["fits"] for row in driver.compiled] == [fits]


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "resident"),
    [(255, 1024, 8, 8), (128, 1024, 8, 16), (32, 0, 4, 64), (32, 80 * 1024, 4, 8)],
    ids=["registers", "fewer registers", "warps", "shared memory"],
)
def test_what_limits_the_warps_of_a_multiprocessor(
    command: ModuleType, registers: int, shared: int, warps: int, resident: int
) -> None:
    assert command.resident_warps(80, registers, shared, warps) == resident


def test_the_page_shows_the_published_table(command: ModuleType) -> None:
    published = json.loads((DOCS / "results" / "gpu-compile.json").read_text(encoding="utf-8"))
    assert command.table(published["summary"]) in (DOCS / "gpu.md").read_text(encoding="utf-8")
    assert published["summary"] == command.summary(published["rows"])


def test_a_second_run_keeps_what_the_same_sources_gave(command: ModuleType, tmp_path: Path) -> None:
    versions = {"triton": "3.9.0", "sources": "abc"}
    out = tmp_path / "results.json"
    assert command.kept(out, versions) == []
    out.write_text(json.dumps({**versions, "rows": [{"kernel": "read_rows"}]}), encoding="utf-8")
    assert command.kept(out, versions) == [{"kernel": "read_rows"}]
    assert command.kept(out, {**versions, "sources": "changed"}) == []
