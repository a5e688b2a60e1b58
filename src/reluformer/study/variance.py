"""Claims C5 and C6: the variance of a read against the number of slots.

For scores ~ N(0, 1) and values of variance one whose correlation is rho, a pointwise
rule reads with variance n E[w^2] + n (n - 1) E[w]^2 rho. Plain ReLU therefore grows with
n; divided by sqrt(n/2) it stays at one, as long as the values are uncorrelated.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from reluformer import memory, rules
from reluformer.rules import Pointwise
from reluformer.study.plan import Run
from reluformer.study.trainings import Context, rounded

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


def run(run: Run, context: Context) -> dict[str, Any]:
    """A rule at every number of slots and every correlation of the values."""
    content = run.content
    places = [(correlation, slots) for correlation in content["correlations"] for slots in content["slots"]]
    points = []
    for i, (correlation, slots) in enumerate(places):
        context.report(i / len(places), f"{slots} slots")
        points.append(measure(content["rule"], slots, correlation, int(content["seed"])).to_dict())
    return {"points": [{key: rounded(value) for key, value in point.items()} for point in points]}
