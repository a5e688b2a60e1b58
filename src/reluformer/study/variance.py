"""Claims C5 and C6: the variance of a read against the number of slots.

For scores ~ N(0, 1) and values of variance one whose correlation is rho, a pointwise
rule reads with variance n E[w^2] + n (n - 1) E[w]^2 rho. Plain ReLU therefore grows with
n; divided by sqrt(n/2) it stays at one, as long as the values are uncorrelated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reluformer import memory, rules
from reluformer.rules import Pointwise

WIDTH = 64
DRAWS = 64
QUERIES = 8


@dataclass(frozen=True)
class VariancePoint:
    """One rule at one size: what theory says and what was measured."""

    rule: str
    slots: int
    correlation: float
    theory: float | None
    """None where the rule is row-wise and has no closed form."""
    measured: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def correlated_values(draws: int, slots: int, correlation: float, generator: torch.Generator) -> Tensor:
    """(draws, 1, slots, WIDTH) of variance one; two slots of a draw have the given correlation."""
    common = torch.randn(draws, 1, 1, WIDTH, generator=generator)
    own = torch.randn(draws, 1, slots, WIDTH, generator=generator)
    return math.sqrt(correlation) * common + math.sqrt(1 - correlation) * own


def measure(rule: str, slots: int, correlation: float = 0.0, seed: int = 0) -> VariancePoint:
    """Read random memories of `slots` slots with `rule`."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(DRAWS, 1, QUERIES, WIDTH, generator=generator)
    k = torch.randn(DRAWS, 1, slots, WIDTH, generator=generator)
    v = correlated_values(DRAWS, slots, correlation, generator)
    chosen = rules.get(rule)
    theory = chosen.read_variance(slots, correlation) if isinstance(chosen, Pointwise) else None
    measured = memory.read(q, k, v, rule=chosen).var(correction=0)
    return VariancePoint(rule, slots, correlation, theory, float(measured))


def sweep(names: Iterable[str], slots: Iterable[int], correlations: Iterable[float]) -> Iterator[VariancePoint]:
    """Every combination, rule by rule."""
    sizes, correlations = list(slots), list(correlations)
    for name in names:
        for correlation in correlations:
            for size in sizes:
                yield measure(name, size, correlation)


def draw(points: list[VariancePoint], path: Path) -> None:
    """Variance against slots on two logarithmic axes: a panel a correlation, theory as lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    correlations = sorted({point.correlation for point in points})
    names = list(dict.fromkeys(point.rule for point in points))
    figure, axes = plt.subplots(
        1, len(correlations), figsize=(5.4 * len(correlations), 4.2), sharey=True, squeeze=False, layout="constrained"
    )
    colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
    markers = "os^Dv*Px"
    for axis, correlation in zip(axes[0], correlations, strict=True):
        axis.axhline(1.0, color="0.8", linewidth=6, zorder=0)
        for i, name in enumerate(names):
            chosen = [point for point in points if point.rule == name and point.correlation == correlation]
            sizes = [point.slots for point in chosen]
            colour = colours[i % len(colours)]
            axis.plot(sizes, [p.measured for p in chosen], markers[i % 8], color=colour, label=name, markersize=6)
            if all(point.theory is not None for point in chosen):
                axis.plot(sizes, [p.theory for p in chosen], "-", color=colour, linewidth=1)
            else:
                axis.plot(sizes, [p.measured for p in chosen], ":", color=colour, linewidth=1)
        axis.set(xscale="log", yscale="log", xlabel="slots n", title=f"values with correlation {correlation:g}")
        axis.set_xscale("log", base=2)
        axis.grid(True, which="major", color="0.92")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("variance of the read")
    axes[0][0].legend(frameon=False, title="measured (lines: theory)", alignment="left")
    figure.savefig(path, dpi=150)
    plt.close(figure)
