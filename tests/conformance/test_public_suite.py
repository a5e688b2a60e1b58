"""The conformance suite as a stranger runs it: from the installed package, on their own function."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import reluformer as rf
from reluformer import conformance
from reluformer.conformance.cases import grid, implementation, parameters, run
from reluformer.errors import ArgumentError
from reluformer.kernels import cpu, parts

OURS = rf.rules.names()
"""Rules of the package alone: other tests register some of their own."""

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


def run_suite(directory: Path, function: str, rules: str = "relu") -> subprocess.CompletedProcess[str]:
    (directory / "my_kernels.py").write_text(KERNELS)
    arguments = ["--pyargs", "reluformer.conformance", "--impl", f"my_kernels:{function}", "-p", "no:cacheprovider"]
    select = ["--rules", rules, "-q", "--rootdir", str(directory), "-W", "error", "-rs"]
    command = [sys.executable, "-P", "-m", "pytest", *arguments, *select]  # -P: like `pytest`, without this folder
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def test_a_correct_kernel_passes(tmp_path: Path) -> None:
    result = run_suite(tmp_path, "good")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "passed" in result.stdout
    reasons = {line.rpartition("my_kernels:good: ")[2] for line in result.stdout.splitlines() if "SKIPPED" in line}
    assert reasons == {"only relu, without statistics"}
    assert result.stdout.count("SKIPPED") == 1  # the statistics; no case of a rule that was not named


def test_a_rule_that_was_named_must_be_read(tmp_path: Path) -> None:
    result = run_suite(tmp_path, "good", "relu,softmax")
    assert result.returncode == 1, result.stdout + result.stderr
    failed = [line for line in result.stdout.splitlines() if line.startswith("____")]
    assert failed and all("test_empty_memories" in line and "my_kernels:good-softmax" in line for line in failed)


@pytest.mark.parametrize(
    ("rules", "message"),
    [("relu,sofmax", "--rules: unknown rule 'sofmax'; did you mean 'softmax'"), (",", "name at least one rule")],
)
def test_rules_that_do_not_exist_are_wrong_use(tmp_path: Path, rules: str, message: str) -> None:
    result = run_suite(tmp_path, "good", rules)
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert message in result.stdout + result.stderr


class TestTheGrid:
    """What no other test would notice: a case that is left out, or read another way than it is for."""

    @pytest.mark.parametrize("impl", ["cpu", "cpu_dense", "cpu_sparse"])
    def test_packed_sequences_are_read_by_the_cpu_kernel(self, impl: str) -> None:
        if reason := cpu.unavailable():
            pytest.skip(reason)
        for rule in ("relu", "relu_exp"):
            found = [parameter.values[1] for parameter in parameters(impl, "case", [rule])]
            packed = [case for case in found if case.pattern == "packed"]
            assert [case.padding for case in packed] == ["full", "ragged"]
            assert all("offsets" in case.tensors()[1] for case in packed)
            assert not any(case.pattern == "window" for case in found)

    def test_every_rule_that_takes_a_sink_has_one(self) -> None:
        found = {case.rule for case in grid(list(OURS)) if case.pattern == "sink"}
        assert found == {"softmax", "softmax_ln", "softmax1"}
        inputs, options = next(case for case in grid(["softmax1"]) if case.pattern == "sink").tensors()
        _, gradients = run(implementation("auto"), inputs, options)
        assert gradients["sink"].abs().min() > 0

    @pytest.mark.parametrize("impl", ["cpu", "cpu_sparse"])
    @pytest.mark.parametrize("rule", ["relu", "relu2", "relu_norm", "tra"])
    def test_what_forget_gates_hide_is_pruned(self, rule: str, impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
        if reason := cpu.unavailable():
            pytest.skip(reason)
        shares, pruned = [], parts.read_blocks

        def counted(*given: Any) -> Tensor:
            shares.append(parts.share_of(given[-1], given[4]))
            return pruned(*given)

        monkeypatch.setattr(parts, "read_blocks", counted)
        (case,) = (case for case in grid([rule]) if case.pattern == "forgetting")
        run(implementation(impl), *case.tensors())
        assert shares and max(shares) > 0


class TestFromPython:
    def test_a_function_of_ones_own(self) -> None:
        def twice(q: Tensor, k: Tensor, v: Tensor, rule: str, **options: Any) -> Any:
            if options.get("return_stats"):
                raise ArgumentError("no statistics")
            return rf.read(q, k, v, rule=rule, **options) * (2 if options.get("bias") is not None else 1)

        failed = conformance.check(twice, rules=["relu2"])
        assert any(name.startswith("test_a_bias_is_added_to_the_scores") for name in failed)
        assert all("relu2" in name for name in failed)

    def test_a_built_in_one(self) -> None:
        assert conformance.check("reference", rules=["relu"]) == ()

    def test_what_it_cannot_read(self) -> None:
        with pytest.raises(ArgumentError, match=r"--rules: .*softmax"):
            conformance.check("sdpa", rules=["relu"])


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
    with pytest.raises(ArgumentError, match=r"--impl spda: did you mean 'sdpa'.*or PACKAGE:FUNCTION"):
        implementation("spda")


def test_an_implementation_that_does_not_exist_is_wrong_use(tmp_path: Path) -> None:
    result = run_suite(tmp_path, "best")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "module 'my_kernels' has no function 'best'" in result.stderr
