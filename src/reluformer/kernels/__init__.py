"""Implementations of one read, and the one place that picks among them."""

from __future__ import annotations

from torch import Tensor

from reluformer.errors import ArgumentError, UnknownNameError, nearest
from reluformer.kernels import reference, sdpa
from reluformer.kernels.statistics import RowStats
from reluformer.kernels.visibility import Visibility
from reluformer.rules import Rule, Softmax

__all__ = ["IMPLEMENTATIONS", "RowStats", "Visibility", "run"]

IMPLEMENTATIONS = ("auto", "reference", "sdpa")


def run(
    impl: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rule: Rule,
    visibility: Visibility,
    bias: Tensor | None,
    scale: float,
    stats: bool,
) -> tuple[Tensor, RowStats | None]:
    """Read with `impl`; "auto" takes the fastest that can do it."""
    if impl not in IMPLEMENTATIONS:
        raise UnknownNameError(f"unknown impl '{impl}'; {nearest(impl, IMPLEMENTATIONS)}")
    fused = isinstance(rule, Softmax) and not stats
    if impl == "sdpa" and not fused:
        raise ArgumentError(
            f"impl='sdpa' reads only softmax rules and without statistics, not rule '{rule.name}' with "
            f"return_stats={stats}; use impl='auto'"
        )
    if fused and impl != "reference":
        return sdpa.read(q, k, v, visibility, bias, scale), None
    return reference.read(q, k, v, rule, visibility, bias, scale, stats)
