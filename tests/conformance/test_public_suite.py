"""The conformance suite as a stranger runs it: from the installed package, on their own function."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reluformer.conformance.cases import implementation
from reluformer.errors import ArgumentError

KERNELS = '''
import torch
import reluformer as rf
from reluformer.errors import ArgumentError

def good(q, k, v, rule, **options):
    if rule != "relu" or options.get("return_stats"):
        raise ArgumentError("only relu, without statistics")
    return rf.read(q, k, v, rule=rule, **options)

def padded_length(q, k, v, rule, causal=False, key_mask=None, **options):
    """The mistake of public re-implementations: divides by the padded length."""
    if rule != "relu":
        raise ArgumentError("only relu")
    plain = rf.read(q, k, v, rule="relu_plain", causal=causal, key_mask=key_mask, **options)
    return plain / (k.size(2) / 2) ** 0.5 if k.size(2) else plain

def first_tile(q, k, v, rule, **options):
    """Right as long as everything fits into one tile."""
    out = good(q, k, v, rule, **options)
    return torch.cat([out[..., :64, :], torch.zeros_like(out[..., 64:, :])], dim=-2)
'''


def run_suite(directory: Path, function: str) -> subprocess.CompletedProcess[str]:
    (directory / "my_kernels.py").write_text(KERNELS)
    arguments = ["--pyargs", "reluformer.conformance", "--impl", f"my_kernels:{function}", "-p", "no:cacheprovider"]
    select = ["-k", "relu- or relu]", "-q", "--rootdir", str(directory), "-W", "error"]
    command = [sys.executable, "-m", "pytest", *arguments, *select]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def test_a_correct_kernel_passes(tmp_path: Path) -> None:
    result = run_suite(tmp_path, "good")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "passed" in result.stdout
    assert "my_kernels:good" not in result.stdout


def test_a_kernel_that_counts_padding_fails(tmp_path: Path) -> None:
    result = run_suite(tmp_path, "padded_length")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "test_padding_changes_nothing" in result.stdout
    assert "test_no_row_sees_the_future" in result.stdout


def test_a_kernel_that_is_wrong_past_its_first_tile_fails(tmp_path: Path) -> None:
    result = run_suite(tmp_path, "first_tile")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "relu-long-full" in result.stdout
    assert "relu-self" not in result.stdout


def test_an_implementation_that_does_not_exist() -> None:
    with pytest.raises(ArgumentError, match="--impl math:none: module 'math' has no function 'none'"):
        implementation("math:none")
    with pytest.raises(ArgumentError, match="--impl no_such_module:f: No module named 'no_such_module'"):
        implementation("no_such_module:f")
