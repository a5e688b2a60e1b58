"""Implementations of one read, and the one place that picks among them."""

from __future__ import annotations

import torch
from torch import Tensor

from reluformer.errors import ArgumentError, UnknownNameError, nearest
from reluformer.kernels import cpu, reference, sdpa, triton
from reluformer.kernels.bias import Bias, RowKeyBias
from reluformer.kernels.centering import centring_bias
from reluformer.kernels.statistics import RowStats
from reluformer.kernels.visibility import Visibility
from reluformer.rules import RowCentered, Rule

__all__ = ["IMPLEMENTATIONS", "Bias", "RowKeyBias", "RowStats", "Visibility", "availability", "run"]

IMPLEMENTATIONS = ("auto", "reference", "sdpa", "cpu", "triton")


def run(
    impl: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rule: Rule,
    visibility: Visibility,
    bias: Bias | None,
    scale: float,
    stats: bool,
) -> tuple[Tensor, RowStats | None]:
    """Read with `impl`; "auto" takes the fastest that can do it."""
    if impl not in IMPLEMENTATIONS:
        raise UnknownNameError(f"unknown impl '{impl}'; {nearest(impl, IMPLEMENTATIONS)}")
    if impl == "auto" and torch.onnx.is_in_onnx_export():  # the kernels are no operators of ONNX
        impl = "reference"
    if isinstance(rule, RowCentered) and (
        impl in ("cpu", "triton")
        or (
            impl == "auto"
            and (cpu.pays(q, k, v, visibility, stats) or _triton_can(q, k, v, rule.core, visibility, bias))
        )
    ):
        moved = centring_bias(q, k, rule, visibility, bias, scale)
        if moved is not None:
            rule, bias = rule.core, moved
    fused = sdpa.reads(rule) and not stats
    if impl == "sdpa" and not fused:
        raise ArgumentError(
            f"impl='sdpa' reads only softmax rules and without statistics, not rule '{rule.name}' with "
            f"return_stats={stats}; use impl='auto'"
        )
    if fused and impl in ("auto", "sdpa"):
        return sdpa.read(q, k, v, visibility, bias, scale), None
    if impl == "cpu" or (impl == "auto" and _cpu_is_best(q, k, v, rule, visibility, bias, stats)):
        return cpu.read(q, k, v, rule, visibility, bias, scale, stats)
    if impl == "triton" or (impl == "auto" and _triton_can(q, k, v, rule, visibility, bias)):
        return triton.read(q, k, v, rule, visibility, bias, scale, stats)
    return reference.read(q, k, v, rule, visibility, bias, scale, stats)


def _cpu_is_best(
    q: Tensor, k: Tensor, v: Tensor, rule: Rule, visibility: Visibility, bias: Bias | None, stats: bool
) -> bool:
    return cpu.pays(q, k, v, visibility, stats) and cpu.refusal(q, rule, visibility, bias) is None


def _triton_can(q: Tensor, k: Tensor, v: Tensor, rule: Rule, visibility: Visibility, bias: Bias | None) -> bool:
    return q.is_cuda and triton.refusal(q, k, v, rule, visibility, bias) is None


def availability() -> dict[str, str]:
    """Each implementation: what it is here, or why it cannot be used."""
    return {
        "reference": "available: any rule, device and dtype",
        "sdpa": "available: softmax without statistics",
        "cpu": cpu.description(),
        "triton": f"not available: {reason}" if (reason := triton.unavailable()) else "available",
    }
