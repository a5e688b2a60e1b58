"""Verdicts: from measured numbers to a verdict on each claim, by the rules of docs/protocol.md and nothing else.

Differences are taken seed by seed, with the sign that makes a positive one an advantage of `a`. With k
seeds their interval is Student's with k - 1 degrees of freedom. Every verdict carries its reasons in words.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from typing import Any, Literal

from reluformer.errors import ReluformerError
from reluformer.study import measures
from reluformer.study.experiment import Condition, Experiment, Judgement, Scale
from reluformer.study.results import Results

VerdictWord = Literal["reproduced", "not reproduced", "inconclusive"]
ConditionOutcome = Literal["holds", "fails", "undecided"]
LEAST_SEEDS = 3
LEAST_BLEU = 1.0
"""Models with a lower mean do not do their task, so that a comparison of rules counts for little."""
TESTS = {
    "better": "better than",
    "worse": "worse than",
    "not_worse": "not worse than",
    "equivalent": "equivalent to",
}


# ------------------------------------------------------------------ intervals


@dataclass(frozen=True)
class ConfidenceInterval:
    """A mean over seeds and its confidence interval."""

    mean: float
    low: float
    high: float
    count: int


@lru_cache
def student(confidence: float, degrees: int) -> float:
    """Returns the quantile t of Student's distribution with P(|T| < t) = confidence.

    Args:
        confidence: A probability, as in 0.95.
        degrees: The degrees of freedom.

    Example:
        >>> round(student(0.95, 2), 3)
        4.303
    """
    try:
        from scipy.special import stdtrit
    except ImportError:
        raise ReluformerError("the report of a study needs scipy; pip install 'reluformer[study]'") from None
    return float(stdtrit(degrees, (1 + confidence) / 2))


def interval(values: Sequence[float], confidence: float = 0.95) -> ConfidenceInterval:
    """Returns the mean of finite values with Student's interval, which is unbounded for a single value.

    Example:
        >>> found = interval([1.0, 2.0, 3.0])
        >>> round(found.low, 2), found.mean, round(found.high, 2)
        (-0.48, 2.0, 4.48)
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return ConfidenceInterval(mean, -math.inf, math.inf, len(values))
    half = student(confidence, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return ConfidenceInterval(mean, mean - half, mean + half, len(values))


# ------------------------------------------------------------------ conditions in words


@dataclass(frozen=True)
class Sides:
    """The two sides of a comparison: two places of a grid, or one place and a limit."""

    part: str
    """The title of the part if a claim rests on several parts; otherwise empty."""
    a: Mapping[str, str]
    b: Mapping[str, str] | None

    def names(self) -> tuple[str, str]:
        """Returns each side by the labels that the other side does not have."""
        a, b = self.a, self.b or {}
        return " ".join(a[x] for x in a if b.get(x) != a[x]), " ".join(b[x] for x in b if a.get(x) != b[x])

    def where(self) -> str:
        """Returns the labels that both sides share, in brackets."""
        shared = [f"{axis} {label}" for axis, label in (self.b or {}).items() if self.a.get(axis) == label]
        said = ", ".join([self.part, *shared] if self.part else shared)
        return f" ({said})" if said else ""


def reason(condition: Condition, sides: Sides) -> str:
    """Returns the condition as a sentence."""
    a, b = sides.names()
    name = measures.name(condition.metric)
    if sides.b is None:
        return f"{name}{f' of {a}' if a else ''} {condition.test} {condition.limit:g}{sides.where()}"
    percent = " %" if measures.measure(condition.metric).relative else ""
    by = "" if condition.by is None else f" by {condition.by:g}{percent}"
    return f"{a} {TESTS[condition.test]} {b}{by} in {name}{sides.where()}"


class MeasuredMeans:
    """The means that stand beside the paper's figures: a line for each metric and place."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, str]] = {}

    def add(self, metric: str, sides: Sides, a: Mapping[int, float], b: Mapping[int, float]) -> None:
        """Add the means over seeds of both sides; a side that was not measured is left out."""
        line = self._lines.setdefault(measures.name(metric) + sides.where(), {})
        for name, values in zip(sides.names(), (a, b), strict=True):
            if values:
                finite = [value for value in values.values() if math.isfinite(value)]
                digits = measures.measure(metric).digits
                line[name] = f"{statistics.fmean(finite):.{digits}f}" if finite else "diverged"

    def lines(self) -> tuple[str, ...]:
        """Returns the lines, for example "BLEU: softmax 33.08, relu 34.22"."""
        means_of = {
            what: ", ".join(f"{name} {mean}".strip() for name, mean in line.items())
            for what, line in self._lines.items()
        }
        return tuple(f"{what}: {means}" for what, means in means_of.items() if means)


# ------------------------------------------------------------------ conditions


def compare(a: Mapping[int, float], b: Mapping[int, float], condition: Condition) -> tuple[ConditionOutcome, str]:
    """Decide a paired condition.

    Args:
        a: The metric of the one side by seed; infinite for a training that diverged.
        b: The metric of the other side; only seeds that both sides have count.
        condition: The test, its metric and what the difference must exceed.

    Returns:
        The outcome, and the difference in words.
    """
    rule = measures.measure(condition.metric)
    sign = 1.0 if rule.better == "higher" else -1.0
    seeds = sorted(a.keys() & b.keys())
    pairs = [(a[seed], b[seed]) for seed in seeds if math.isfinite(a[seed]) or math.isfinite(b[seed])]
    if not pairs:
        return "undecided", "nothing to compare"
    base = abs(statistics.fmean([y for _, y in pairs if math.isfinite(y)] or [0.0]))
    unit = base / 100 if rule.relative else 1.0
    allowed = rule.margin if condition.margin is None else condition.margin
    margin, by = allowed * unit, (condition.by or 0.0) * unit
    differences = [sign * (x - y) for x, y in pairs]
    if any(map(math.isinf, differences)):
        outcome, text = _with_divergence(differences, condition.test, margin, by)
    else:
        wide, narrow = interval(differences), interval(differences, 0.90)
        outcome = _outcome(condition, wide, narrow, margin, by)
        text = _difference(wide, unit, rule)
        if condition.test in ("not_worse", "equivalent") and len(pairs) > 1:  # what decides them
            text += f", 90 % {_span(narrow, unit, rule)}, margin {allowed:g}{' %' if rule.relative else ''}"
    if len(pairs) < LEAST_SEEDS:
        return "undecided", f"{text}; {LEAST_SEEDS} seeds are needed"
    return outcome, text


def _outcome(
    condition: Condition, wide: ConfidenceInterval, narrow: ConfidenceInterval, margin: float, by: float
) -> ConditionOutcome:
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


def _with_divergence(differences: Sequence[float], test: str, margin: float, by: float) -> tuple[ConditionOutcome, str]:
    """Decide a condition where some training diverged, which counts as worse than any that did not."""
    lost, won = sum(d == -math.inf for d in differences), sum(d == math.inf for d in differences)
    text = f"diverged: {lost} of {len(differences)} on the one side, {won} on the other"
    least, most = min(differences), max(differences)
    if test == "equivalent":
        return ("fails" if most < -margin or least > margin else "undecided"), text
    if test == "worse":
        least, most = -most, -least
    needed = -margin if test == "not_worse" else by
    return ("holds" if least > needed else "fails" if most < needed else "undecided"), text


def _difference(found: ConfidenceInterval, unit: float, rule: measures.Measure) -> str:
    scale, sign = (unit, " %") if rule.relative else (1.0, "")
    mean = f"{abs(found.mean) / scale:.3g}{sign} {'better' if found.mean >= 0 else 'worse'}"
    if found.count < 2:
        return f"{mean}, one seed"
    return f"{mean}, 95 % {_span(found, unit, rule)}"


def _span(found: ConfidenceInterval, unit: float, rule: measures.Measure) -> str:
    scale = unit if rule.relative else 1.0
    return f"[{found.low / scale:+.3g}, {found.high / scale:+.3g}]"


def against_limit(values: Mapping[int, float], condition: Condition) -> tuple[ConditionOutcome, str]:
    """Decide a condition `above` or `below`; returns the outcome and the mean in words."""
    limit = condition.limit or 0.0
    known = [v for v in values.values() if math.isfinite(v)]
    if not known:
        return "undecided", "nothing measured"
    found = interval(known)
    text = f"{found.mean:.3g} (limit {limit:g})"
    if len(known) < LEAST_SEEDS:
        return "undecided", f"{text}; {LEAST_SEEDS} seeds are needed"
    text = f"{found.mean:.3g}, 95 % [{found.low:.3g}, {found.high:.3g}] (limit {limit:g})"
    beyond, short = found.low > limit, found.high < limit
    if condition.test == "below":
        beyond, short = short, beyond
    return ("holds" if beyond else "fails" if short else "undecided"), text


# ------------------------------------------------------------------ verdicts


@dataclass(frozen=True)
class Verdict:
    """The verdict of one experiment on one claim."""

    claim: str
    experiment: str
    verdict: VerdictWord
    smoke: bool
    """Whether it comes from scale `quick`, which tests the machinery and says nothing about the claim."""
    reasons: tuple[str, ...]
    figures: tuple[str, ...]
    """The means that we measured, to stand beside the paper's figures."""
    translates: bool | None = None
    """Whether the models behind the verdict translate, with a mean BLEU of at least 1; None if it is not known."""

    @property
    def word(self) -> str:
        """The verdict in a word or two."""
        return f"smoke: {self.verdict}" if self.smoke else self.verdict

    @property
    def remark(self) -> str:
        """A warning if a model that the verdict rests on does not translate; otherwise empty."""
        return "" if self.translates in (None, True) else f"models do not translate: BLEU under {LEAST_BLEU:g}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the verdict as plain data."""
        return asdict(self)


def judge(experiment: Experiment, judgement: Judgement, results: Results, scale: Scale) -> Verdict:
    """Returns the verdict on one claim."""
    reasons: list[str] = []
    scores: list[dict[int, float]] = []
    means = MeasuredMeans()
    parts = {condition.part for condition in (*judgement.requires, *judgement.conditions)}

    def measured(part: str, sides: Sides, metric: str) -> list[dict[int, float]]:
        """Returns the metric of each side by seed, and adds both to the means."""
        places = (sides.a, sides.b)
        values = [{} if p is None else results.values(experiment.name, part, p, metric) for p in places]
        means.add(metric, sides, *values)
        return values

    def decide(condition: Condition, prefix: str = "") -> ConditionOutcome:
        """Decide a condition at every place that it is about, and add each outcome to the reasons."""
        part = experiment.parts[condition.part]
        title = (part.brief or part.title) if len(parts) > 1 else ""
        limited = condition.test in ("above", "below")
        beside = measures.measure(condition.metric).beside
        found: list[ConditionOutcome] = []
        for place in _places(experiment, condition, scale):
            sides = Sides(title, {**place, **condition.a}, None if limited else {**place, **condition.b})
            a, b = measured(condition.part, sides, condition.metric)
            if beside:
                scores.extend(measured(condition.part, sides, beside))
            outcome, text = against_limit(a, condition) if limited else compare(a, b, condition)
            found.append(outcome)
            reasons.append(f"{prefix}{reason(condition, sides)}: {outcome} ({text})")
        if not found:
            sides = Sides(title, condition.a, None if limited else condition.b)
            reasons.append(f"{prefix}{reason(condition, sides)}: not run at this scale")
            return "undecided"
        return "fails" if "fails" in found else "undecided" if "undecided" in found else "holds"

    met = [decide(condition, "required: ") for condition in judgement.requires]
    outcomes = [decide(condition) for condition in judgement.conditions]
    word: VerdictWord = "inconclusive"
    if all(outcome == "holds" for outcome in met):
        if "fails" in outcomes:
            word = "not reproduced"
        elif all(outcome == "holds" for outcome in outcomes):
            word = "reproduced"
    smoke, translates = scale == "quick", _translate(scores)
    return Verdict(judgement.claim, experiment.name, word, smoke, tuple(reasons), means.lines(), translates)


def _translate(scores: Sequence[Mapping[int, float]]) -> bool | None:
    """Returns whether the mean BLEU of every side reaches LEAST_BLEU; None if no side has one."""
    finite = [[score for score in side.values() if math.isfinite(score)] for side in scores]
    means = [statistics.fmean(side) for side in finite if side]
    return min(means) >= LEAST_BLEU if means else None


def _places(experiment: Experiment, condition: Condition, scale: Scale) -> list[dict[str, str]]:
    """Returns every combination of the axes that the condition does not name, as far as the scale runs them."""
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
