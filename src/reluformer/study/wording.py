"""What a claim was judged by, in words that need no look at the experiment's file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from reluformer.study import measures
from reluformer.study.experiment import Condition

TESTS = {
    "better": "better than",
    "worse": "worse than",
    "not_worse": "not worse than",
    "equivalent": "equivalent to",
}


@dataclass(frozen=True)
class Sides:
    """What is compared: two places of a grid, or one with a limit."""

    part: str
    """What the part is about, where a claim rests on several; otherwise empty."""
    a: Mapping[str, str]
    b: Mapping[str, str] | None

    def names(self) -> tuple[str, str]:
        """Each side by what the other has not."""
        a, b = self.a, self.b or {}
        return " ".join(a[x] for x in a if b.get(x) != a[x]), " ".join(b[x] for x in b if a.get(x) != b[x])

    def where(self) -> str:
        """What both have in common, in brackets."""
        shared = [f"{axis} {label}" for axis, label in (self.b or {}).items() if self.a.get(axis) == label]
        said = ", ".join([self.part, *shared] if self.part else shared)
        return f" ({said})" if said else ""


def reason(condition: Condition, sides: Sides) -> str:
    """The condition as a sentence."""
    a, b = sides.names()
    name = measures.name(condition.metric)
    if sides.b is None:
        return f"{name}{f' of {a}' if a else ''} {condition.test} {condition.limit:g}{sides.where()}"
    percent = " %" if measures.measure(condition.metric).relative else ""
    by = "" if condition.by is None else f" by {condition.by:g}{percent}"
    return f"{a} {TESTS[condition.test]} {b}{by} in {name}{sides.where()}"


class Figures:
    """What was measured, to stand beside the paper's figures: a line for each measure and place."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, str]] = {}

    def add(self, metric: str, sides: Sides, a: Mapping[int, float], b: Mapping[int, float]) -> None:
        """Means over seeds; a side that was not measured is left out."""
        line = self._lines.setdefault(measures.name(metric) + sides.where(), {})
        for name, values in zip(sides.names(), (a, b), strict=True):
            if values:
                finite = [value for value in values.values() if math.isfinite(value)]
                digits = measures.measure(metric).digits
                line[name] = f"{statistics.fmean(finite):.{digits}f}" if finite else "diverged"

    def lines(self) -> tuple[str, ...]:
        """For example "BLEU: softmax 33.08, relu 34.22"."""
        told = {
            what: ", ".join(f"{name} {mean}".strip() for name, mean in line.items())
            for what, line in self._lines.items()
        }
        return tuple(f"{what}: {means}" for what, means in told.items() if means)
