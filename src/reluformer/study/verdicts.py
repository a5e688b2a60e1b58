"""From measured numbers to a verdict, by the rules of docs/protocol.md and nothing else.

Differences are taken seed by seed, and turned so that positive means that `a` is better. With k
seeds their interval is Student's with k - 1 degrees of freedom.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from typing import Any, Literal

import numpy as np

from reluformer.study import measures
from reluformer.study.experiment import Condition, Experiment, Judgement, Scale
from reluformer.study.gathered import Gathered

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


@dataclass(frozen=True)
class Interval:
    """A mean and where it may lie."""

    mean: float
    low: float
    high: float
    count: int


@lru_cache
def student(confidence: float, degrees: int) -> float:
    """The quantile t with P(|T| < t) = confidence.

    With T = sqrt(k) tan(a) the density of a is proportional to cos(a)^(k - 1), which is summed up.
    """
    angle = np.linspace(0, math.pi / 2, 200_001)
    density = np.cos(angle) ** (degrees - 1)
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    found = float(np.interp(confidence, mass / mass[-1], angle))
    return math.sqrt(degrees) * math.tan(found)


def interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Of the mean of finite values; as wide as can be for a single one."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf, len(values))
    half = student(confidence, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, len(values))


# ------------------------------------------------------------------ conditions


def compare(a: Mapping[int, float], b: Mapping[int, float], condition: Condition) -> tuple[Outcome, str]:
    """The outcome of a paired condition, and the difference in words."""
    rule = measures.measure(condition.metric)
    sign = 1.0 if rule.better == "higher" else -1.0
    seeds = sorted(a.keys() & b.keys())
    pairs = [(a[seed], b[seed]) for seed in seeds if math.isfinite(a[seed]) or math.isfinite(b[seed])]
    if not pairs:
        return "undecided", "nothing to compare"
    if any(math.isinf(x) or math.isinf(y) for x, y in pairs):
        return _with_divergence([sign * (x - y) for x, y in pairs], condition, len(seeds))
    base = abs(statistics.fmean(y for _, y in pairs))
    unit = base / 100 if rule.relative else 1.0
    differences = [sign * (x - y) for x, y in pairs]
    wide, narrow = interval(differences), interval(differences, 0.90)
    told = _told(wide, unit, rule)
    if len(pairs) < LEAST_SEEDS:
        return "undecided", f"{told}; {LEAST_SEEDS} seeds are needed"
    return _outcome(condition, wide, narrow, rule.margin * unit, (condition.by or 0.0) * unit), told


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


def _with_divergence(differences: Sequence[float], condition: Condition, seeds: int) -> tuple[Outcome, str]:
    """Divergence is worse than anything; it decides where all seeds point one way."""
    lost, won = sum(d == -math.inf for d in differences), sum(d == math.inf for d in differences)
    told = f"diverged: {lost} of {len(differences)} on the one side, {won} on the other"
    if seeds < LEAST_SEEDS:
        return "undecided", f"{told}; {LEAST_SEEDS} seeds are needed"
    if all(d < 0 for d in differences):
        return ("holds" if condition.test == "worse" else "fails"), told
    if all(d > 0 for d in differences):
        return ("holds" if condition.test in ("better", "not_worse") else "fails"), told
    return "undecided", told


def _told(found: Interval, unit: float, rule: measures.Measure) -> str:
    scale, sign = (unit, " %") if rule.relative else (1.0, "")
    mean = f"{abs(found.mean) / scale:.3g}{sign} {'better' if found.mean >= 0 else 'worse'}"
    if found.count < 2:
        return f"{mean}, one seed"
    return f"{mean}, 95 % [{found.low / scale:+.3g}, {found.high / scale:+.3g}]"


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
    figures: dict[str, None] = {}
    met = [_examine(experiment, c, gathered, scale, reasons, figures, "required: ") for c in judgement.requires]
    outcomes = [_examine(experiment, c, gathered, scale, reasons, figures) for c in judgement.conditions]
    word: Word = "inconclusive"
    if all(outcome == "holds" for outcome in met):
        if "fails" in outcomes:
            word = "not reproduced"
        elif all(outcome == "holds" for outcome in outcomes):
            word = "reproduced"
    return Verdict(judgement.claim, experiment.name, word, scale == "quick", tuple(reasons), tuple(figures))


def _examine(
    experiment: Experiment,
    condition: Condition,
    gathered: Gathered,
    scale: Scale,
    reasons: list[str],
    figures: dict[str, None],
    prefix: str = "",
) -> Outcome:
    """One condition at every place it is about; says each in words, and what was measured."""
    found = []
    for place in _places(experiment, condition, scale):
        a_place, b_place = {**place, **condition.a}, {**place, **condition.b}
        a = gathered.values(experiment.name, condition.part, a_place, condition.metric)
        figures.update(_figure(condition.metric, a_place, a))
        if condition.test in ("above", "below"):
            outcome, told = against_limit(a, condition)
        else:
            b = gathered.values(experiment.name, condition.part, b_place, condition.metric)
            figures.update(_figure(condition.metric, b_place, b))
            outcome, told = compare(a, b, condition)
        found.append(outcome)
        reasons.append(f"{prefix}{_words(condition, a_place, b_place)}: {outcome} ({told})")
    if not found:
        reasons.append(f"{prefix}{_words(condition, condition.a, condition.b)}: not run at this scale")
        return "undecided"
    return "fails" if "fails" in found else "undecided" if "undecided" in found else "holds"


def _figure(metric: str, place: Mapping[str, str], values: Mapping[int, float]) -> dict[str, None]:
    """A mean in words, as the key of a dictionary that keeps order and drops repetitions."""
    finite = [value for value in values.values() if math.isfinite(value)]
    if not values:
        return {}
    told = f"{statistics.fmean(finite):.{measures.measure(metric).digits}f}" if finite else "diverged"
    return {f"{' '.join([*place.values(), measures.words(metric)])} {told}": None}


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


def _words(condition: Condition, a: Mapping[str, str], b: Mapping[str, str]) -> str:
    one, other = " ".join(a.values()), " ".join(b.values())
    if condition.test in ("above", "below"):
        return f"{' '.join(filter(None, [one, measures.words(condition.metric)]))} {condition.test} {condition.limit:g}"
    by = (
        ""
        if condition.by is None
        else f" by {condition.by:g}{' %' if measures.measure(condition.metric).relative else ''}"
    )
    test = {
        "better": "better than",
        "worse": "worse than",
        "not_worse": "not worse than",
        "equivalent": "equivalent to",
    }
    return f"{measures.words(condition.metric)}: {one} {test[condition.test]} {other}{by}"
