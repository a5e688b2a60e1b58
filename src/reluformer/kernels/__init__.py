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

__all__ = ["IMPLEMENTATIONS", "Bias", "RowKeyBias", "RowStats", "Visibility", "availability", "fastest", "run"]

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
    chosen = fastest(q, k, v, rule, visibility, bias, stats) if impl == "auto" else impl
    if isinstance(rule, RowCentered) and chosen in ("cpu", "triton"):
        moved = centring_bias(q, k, rule, visibility, bias, scale)
        if moved is not None:
            rule, bias = rule.core, moved
    if chosen == "sdpa":
        if stats or not sdpa.reads(rule):
            raise ArgumentError(
                f"impl='sdpa' reads only softmax rules and without statistics, not rule '{rule.name}' with "
                f"return_stats={stats}; use impl='auto'"
            )
        return sdpa.read(q, k, v, visibility, bias, scale), None
    read = {"cpu": cpu.read, "triton": triton.read, "reference": reference.read}[chosen]
    return read(q, k, v, rule, visibility, bias, scale, stats)


def fastest(q: Tensor, k: Tensor, v: Tensor, rule: Rule, visibility: Visibility, bias: Bias | None, stats: bool) -> str:
    """The fastest implementation that can do it; those that are no operators of ONNX stay out of its graphs."""
    if torch.onnx.is_in_onnx_export():
        return "reference"
    if sdpa.reads(rule) and not stats:
        return "sdpa"
    core = rule.core if isinstance(rule, RowCentered) and type(rule).weights is RowCentered.weights else rule
    if cpu.pays(q, k, v, rule, visibility, stats) and cpu.refusal(q, core, visibility, bias) is None:
        return "cpu"
    if q.is_cuda and triton.refusal(q, k, v, core, visibility, bias) is None:
        return "triton"
    return "reference"


def availability() -> dict[str, str]:
    """Each implementation: what it is here, or why it cannot be used."""
    return {
        "reference": "available: any rule, device and dtype",
        "sdpa": "available: softmax without statistics",
        "cpu": cpu.description(),
        "triton": f"not available: {reason}" if (reason := triton.unavailable()) else "available",
    }
