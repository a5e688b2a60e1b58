"""From measured numbers to a verdict, by the rules of docs/protocol.md and nothing else.

Differences are taken seed by seed, and turned so that positive means that `a` is better. With k
seeds their interval is Student's with k - 1 degrees of freedom.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Literal

from reluformer.study import measures
from reluformer.study.experiment import Condition, Experiment, Judgement, Scale
from reluformer.study.gathered import Gathered
from reluformer.study.intervals import Interval, interval
from reluformer.study.wording import Figures, Sides, reason

Word = Literal["reproduced", "not reproduced", "inconclusive"]
Outcome = Literal["holds", "fails", "undecided"]
LEAST_SEEDS = 3


@dataclass(frozen=True)
class Verdict:
    """On one claim, from one experiment."""

    claim: str
    experiment: str
    verdict: Word
    smoke: bool
    """From scale `quick`: says that the machinery works, and nothing about the claim."""
    reasons: tuple[str, ...]
    figures: tuple[str, ...]
    """What we measured, to stand beside the paper's figures."""

    @property
    def word(self) -> str:
        return f"smoke: {self.verdict}" if self.smoke else self.verdict

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


# ------------------------------------------------------------------ conditions


def compare(a: Mapping[int, float], b: Mapping[int, float], condition: Condition) -> tuple[Outcome, str]:
    """The outcome of a paired condition, and the difference in words."""
    rule = measures.measure(condition.metric)
    sign = 1.0 if rule.better == "higher" else -1.0
    seeds = sorted(a.keys() & b.keys())
    pairs = [(a[seed], b[seed]) for seed in seeds if math.isfinite(a[seed]) or math.isfinite(b[seed])]
    if not pairs:
        return "undecided", "nothing to compare"
    base = abs(statistics.fmean([y for _, y in pairs if math.isfinite(y)] or [0.0]))
    unit = base / 100 if rule.relative else 1.0
    margin, by = rule.margin * unit, (condition.by or 0.0) * unit
    differences = [sign * (x - y) for x, y in pairs]
    if any(map(math.isinf, differences)):
        outcome, told = _with_divergence(differences, condition.test, margin, by)
    else:
        wide, narrow = interval(differences), interval(differences, 0.90)
        outcome = _outcome(condition, wide, narrow, margin, by)
        told = _told(wide, unit, rule)
        if condition.test in ("not_worse", "equivalent") and len(pairs) > 1:  # what decides them
            told += f", 90 % {_span(narrow, unit, rule)}, margin {rule.margin:g}{' %' if rule.relative else ''}"
    if len(pairs) < LEAST_SEEDS:
        return "undecided", f"{told}; {LEAST_SEEDS} seeds are needed"
    return outcome, told


def _outcome(condition: Condition, wide: Interval, narrow: Interval, margin: float, by: float) -> Outcome:
    equivalent = -margin < narrow.low and narrow.high < margin
    if condition.test == "equivalent":
        outside = wide.low > margin or wide.high < -margin
        return "holds" if equivalent else "fails" if outside else "undecided"
    if condition.test == "not_worse":
        return "holds" if narrow.low > -margin else "fails" if wide.high < -margin else "undecided"
    low, high = (wide.low, wide.high) if condition.test == "better" else (-wide.high, -wide.low)
    if low > by:
        return "holds"
    return "fails" if high < by or (equivalent and by <= margin) else "undecided"


def _with_divergence(differences: Sequence[float], test: str, margin: float, by: float) -> tuple[Outcome, str]:
    """Divergence is worse than anything; it decides where every seed says the same."""
    lost, won = sum(d == -math.inf for d in differences), sum(d == math.inf for d in differences)
    told = f"diverged: {lost} of {len(differences)} on the one side, {won} on the other"
    least, most = min(differences), max(differences)
    if test == "equivalent":
        return ("fails" if most < -margin or least > margin else "undecided"), told
    if test == "worse":
        least, most = -most, -least
    needed = -margin if test == "not_worse" else by
    return ("holds" if least > needed else "fails" if most < needed else "undecided"), told


def _told(found: Interval, unit: float, rule: measures.Measure) -> str:
    scale, sign = (unit, " %") if rule.relative else (1.0, "")
    mean = f"{abs(found.mean) / scale:.3g}{sign} {'better' if found.mean >= 0 else 'worse'}"
    if found.count < 2:
        return f"{mean}, one seed"
    return f"{mean}, 95 % {_span(found, unit, rule)}"


def _span(found: Interval, unit: float, rule: measures.Measure) -> str:
    scale = unit if rule.relative else 1.0
    return f"[{found.low / scale:+.3g}, {found.high / scale:+.3g}]"


def against_limit(values: Mapping[int, float], condition: Condition) -> tuple[Outcome, str]:
    """The outcome of `above` or `below`."""
    limit = condition.limit or 0.0
    known = [v for v in values.values() if math.isfinite(v)]
    if not known:
        return "undecided", "nothing measured"
    found = interval(known)
    told = f"{found.mean:.3g} (limit {limit:g})"
    if len(known) < LEAST_SEEDS:
        return "undecided", f"{told}; {LEAST_SEEDS} seeds are needed"
    told = f"{found.mean:.3g}, 95 % [{found.low:.3g}, {found.high:.3g}] (limit {limit:g})"
    beyond, short = found.low > limit, found.high < limit
    if condition.test == "below":
        beyond, short = short, beyond
    return ("holds" if beyond else "fails" if short else "undecided"), told


# ------------------------------------------------------------------ claims


def judge(experiment: Experiment, judgement: Judgement, gathered: Gathered, scale: Scale) -> Verdict:
    """The verdict on one claim."""
    reasons: list[str] = []
    figures = Figures()
    parts = {condition.part for condition in (*judgement.requires, *judgement.conditions)}

    def measured(part: str, sides: Sides, metric: str) -> list[dict[int, float]]:
        """By seed, for each side; also to be told."""
        places = (sides.a, sides.b)
        values = [{} if p is None else gathered.values(experiment.name, part, p, metric) for p in places]
        figures.add(metric, sides, *values)
        return values

    def examine(condition: Condition, prefix: str = "") -> Outcome:
        """At every place that it is about; says each in words."""
        part = experiment.parts[condition.part]
        title = (part.brief or part.title) if len(parts) > 1 else ""
        limited = condition.test in ("above", "below")
        beside = measures.measure(condition.metric).beside
        found: list[Outcome] = []
        for place in _places(experiment, condition, scale):
            sides = Sides(title, {**place, **condition.a}, None if limited else {**place, **condition.b})
            a, b = measured(condition.part, sides, condition.metric)
            if beside:
                measured(condition.part, sides, beside)
            outcome, told = against_limit(a, condition) if limited else compare(a, b, condition)
            found.append(outcome)
            reasons.append(f"{prefix}{reason(condition, sides)}: {outcome} ({told})")
        if not found:
            sides = Sides(title, condition.a, None if limited else condition.b)
            reasons.append(f"{prefix}{reason(condition, sides)}: not run at this scale")
            return "undecided"
        return "fails" if "fails" in found else "undecided" if "undecided" in found else "holds"

    met = [examine(condition, "required: ") for condition in judgement.requires]
    outcomes = [examine(condition) for condition in judgement.conditions]
    word: Word = "inconclusive"
    if all(outcome == "holds" for outcome in met):
        if "fails" in outcomes:
            word = "not reproduced"
        elif all(outcome == "holds" for outcome in outcomes):
            word = "reproduced"
    return Verdict(judgement.claim, experiment.name, word, scale == "quick", tuple(reasons), figures.lines())


def _places(experiment: Experiment, condition: Condition, scale: Scale) -> list[dict[str, str]]:
    """Every combination of the axes that the condition does not name, as far as the scale runs them."""
    part = experiment.parts[condition.part]
    if scale not in part.scales:
        return []
    chosen = part.scales[scale].grid
    labels = {name: chosen.get(name, list(axis.choices)) for name, axis in part.grid.items()}
    for place in (condition.a, condition.b):
        if any(label not in labels[axis] for axis, label in place.items()):
            return []
    open_axes = [[(name, label) for label in found] for name, found in labels.items() if name not in condition.a]
    return [dict(combination) for combination in product(*open_axes)]
