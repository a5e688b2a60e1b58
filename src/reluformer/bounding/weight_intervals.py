"""Intervals of the weights of a row whose scores lie in intervals, and which rules have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from reluformer import rules
from reluformer.errors import ArgumentError
from reluformer.rules import Formula, Level, Pointwise, RowCentered, RowNormalized, Rule, rest_mass
from reluformer.rules.formula import ACTIVATIONS, visible_only

EPSILON = torch.finfo(torch.float64).eps


def known_formula(rule: Rule) -> Formula:
    """Returns the formula of a rule, or raise an error that says why its read has no known range."""
    formula = rules.formula_of(rule)
    name = rule.name or type(rule).__name__
    if formula is None:
        raise ArgumentError(
            f"bounds: rule '{name}' is neither pointwise nor phi(s) / (delta + sum phi(s)), so no range of its read is "
            "known; use softmax, relu_norm or a pointwise rule"
        )
    if formula.activation == "other" and turning_points(rule) is None:
        raise ArgumentError(
            f"bounds: rule '{name}' does not say where its weights turn from falling to rising; give its class "
            "`turning`, the scores of its turning points, () if it has none"
        )
    if formula.delta is not None and _core(rule).signed:
        raise ArgumentError(
            f"bounds: rule '{name}' divides by a row sum whose terms may be negative; no range is known"
        )
    if formula.rest and formula.level is not None and (formula.level.threshold > 0 or formula.level.growth > 0):
        raise ArgumentError(
            f"bounds: rule '{name}' with a threshold or growth above 0: no range of its rest is known; set them to 0"
        )
    return formula


def _core(rule: Rule) -> Rule:
    """Returns the pointwise rule inside of `rule`, or the rule itself."""
    if isinstance(rule, RowCentered):
        rule = rule.core
    return rule.inner if isinstance(rule, RowNormalized) else rule


def turning_points(rule: Rule) -> tuple[float, ...] | None:
    """Returns the scores where the weights of a pointwise rule turn, or None if its class does not say.

    A class that overrides `activate`, or `formula` where the weights are made of it alone, has to state `turning`
    itself; that of its parent may be wrong for it. Where there is a level, they are scores less their level.

    Example:
        >>> turning_points(rules.get({"name": "polynomial", "p": 2}))
        (0.0,)
    """
    core = _core(rule)
    made_by = "activate" if isinstance(core, Pointwise) else "formula"
    for kind in type(core).__mro__:
        if "turning" in vars(kind):
            return cast(tuple[float, ...] | None, core.turning)  # type: ignore[attr-defined]
        if made_by in vars(kind):
            return None
    return None


@dataclass(frozen=True)
class WeightIntervals:
    """Intervals (B, Tq, Tk) for phi, delta (B, Tq, 1) or None where nothing divides, and for the rest (B, Tq, 1)."""

    least: Tensor
    largest: Tensor
    delta: Tensor | None
    rest: tuple[Tensor, Tensor] | None


def level_moves(level: Level | None) -> bool:
    """Returns whether the level of a row depends on its scores."""
    return level is not None and (level.centred or level.cap is not None)


def weight_intervals(
    rule: Rule, formula: Formula, low: Tensor, high: Tensor, n: Tensor, seen: Tensor
) -> WeightIntervals:
    """Returns the intervals of phi for scores in intervals."""
    if formula.log_factor is not None:
        scale = formula.log_factor * torch.log(n)
        least, largest = (low, high) if formula.log_factor > 0 else (high, low)
        low, high = (_widened(x * scale, x * scale, sign) for x, sign in ((least, -1), (largest, 1)))
    level, rest = formula.level, None
    if level is not None and not level.centred:
        base = level.of(n)
        low, high = _widened(low - base, base.abs() + low.abs(), -1), _widened(high - base, base.abs() + high.abs(), 1)
        if level.cap is not None:
            low, high = _capped(level.cap, low, high, low, high, seen)
    elif level is not None:
        low, high, rest = _above_level(formula, low, high, n, seen)
    if formula.activation == "exp":
        return _exponentials(formula, low, high, n, seen)
    points, rounding = [low, high], None
    if formula.function is not None:
        points += [torch.clamp(torch.full_like(low, at), low, high) for at in turning_points(rule) or ()]
        found = [formula.function(x, n) for x in points]
        rounding = _rounding(rule, low, high, n)
    else:
        factor = formula.row_factor(n)
        found = [ACTIVATIONS[formula.activation](x) * factor for x in points]
    least, largest = found[0], found[0]
    for other in found[1:]:
        least, largest = torch.minimum(least, other), torch.maximum(largest, other)
    if rounding is not None:
        least, largest = least - rounding, largest + rounding
        least = least if _core(rule).signed else least.clamp_min(0)
    least, largest = visible_only(least, seen), visible_only(largest, seen)
    if formula.delta is None and not formula.rest:
        return WeightIntervals(least, largest, None, None)
    if bool((least.detach() < 0).any()):
        raise ArgumentError(
            f"bounds: rule '{rule.name or type(rule).__name__}' divides by a row sum with negative terms; "
            "no range is known"
        )
    return WeightIntervals(least, largest, torch.full_like(n, formula.delta or 0.0), rest)


def _exponentials(formula: Formula, low: Tensor, high: Tensor, n: Tensor, seen: Tensor) -> WeightIntervals:
    """Returns the intervals of e^s, all of a row divided by the same number so that none overflows."""
    if formula.delta is None:
        ends = [visible_only(torch.exp(x) * formula.row_factor(n), seen) for x in (low, high)]
        if not bool(torch.isfinite(ends[1]).all()):
            raise ArgumentError("bounds: e^high overflows; scores above 700 have no finite weight")
        return WeightIntervals(ends[0], ends[1], None, None)
    best = high.detach().masked_fill(~seen, -torch.inf).amax(-1, keepdim=True)
    best = torch.where(torch.isfinite(best), best, torch.zeros_like(best))
    if formula.delta > 0:
        best = best.clamp_min(0)
    ends = [visible_only(torch.exp(x - best) * formula.row_factor(n), seen) for x in (low, high)]
    return WeightIntervals(ends[0], ends[1], formula.delta * torch.exp(-best), None)


def _rounding(rule: Rule, low: Tensor, high: Tensor, n: Tensor) -> Tensor:
    """Returns how far rounding may move a weight that is a function of PyTorch.

    Such a function may lose all digits of a small result, as s (1 + erf(s / sqrt 2)) / 2 does far below 0. So the error
    is as large as that of the score itself.
    """
    core = _core(rule)
    scale = core.row_scale(n) if isinstance(core, Pointwise) else None
    size = 8 * EPSILON * torch.maximum(low.abs(), high.abs()).detach()
    return size if scale is None else size * scale.abs()


def _widened(x: Tensor, size: Tensor, sign: int) -> Tensor:
    """Returns x moved outward by what rounding of numbers of this size may have done to it."""
    return x + sign * 8 * EPSILON * size.detach().abs()


def _above_level(
    formula: Formula, low: Tensor, high: Tensor, n: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """Returns intervals for scores less the centred level of their row, and for the rest."""
    level = formula.level
    assert level is not None
    sums = [x.sum(-1, keepdim=True) for x in (low, high)]
    # a score less the mean: where this score is low, the others are high
    away_low, away_high = low - (low + sums[1] - high) / n, high - (high + sums[0] - low) / n
    middle, radius = visible_only((low + high) / 2, seen), visible_only((high - low) / 2, seen)
    centred = visible_only(middle - middle.sum(-1, keepdim=True) / n, seen)
    tiny = 1e-30  # keeps the gradient of the root finite
    deviation, spread = (
        torch.sqrt(x.square().sum(-1, keepdim=True) / n + tiny) for x in (centred, radius)
    )  # the deviation of a row is a seminorm, at most the root mean square
    size = torch.maximum(low.abs(), high.abs()).amax(-1, keepdim=True) if low.size(-1) else torch.zeros_like(n)
    rounding = 16 * (n + 8) * EPSILON * (size.detach() + 1) + 2 * tiny**0.5
    roots = [
        torch.sqrt(x.square() + level.floor)
        for x in ((deviation - spread - rounding).clamp_min(0), deviation + spread + rounding)
    ]
    deviations = level.spread + level.chance * torch.sqrt(2 * torch.log(n))
    fixed = level.threshold + level.growth * torch.log(n)
    reach = [deviations * root for root in roots]
    level_low, level_high = fixed + torch.minimum(*reach), fixed + torch.maximum(*reach)
    x_low, x_high = away_low - level_high - rounding, away_high - level_low + rounding
    if level.cap is not None:
        x_low, x_high = _capped(level.cap, x_low, x_high, low, high, seen)
    if not formula.rest:
        return x_low, x_high, None
    # the rest falls as the row spreads: slots above the level count 1, those below fall with the deviation
    ends = [rest_mass(deviations * root + fixed, root, n) for root in roots]
    return x_low, x_high, (ends[1] * (1 - 1e-6), ends[0] * (1 + 1e-6))


def _capped(
    cap: float, x_low: Tensor, x_high: Tensor, low: Tensor, high: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns intervals for max(score - level, score - best + cap)."""
    below_low, below_high = (
        torch.clamp(end - _best_of_others(other, seen), max=0) + cap for end, other in ((low, high), (high, low))
    )
    size = low.abs() + high.abs() + cap
    return torch.maximum(x_low, _widened(below_low, size, -1)), torch.maximum(x_high, _widened(below_high, size, 1))


def _best_of_others(x: Tensor, seen: Tensor) -> Tensor:
    """Returns for each slot the largest visible number among the other slots of its row, of the shape of x."""
    lowest = torch.finfo(x.dtype).min / 4
    hidden_last = x.masked_fill(~seen, lowest)
    if x.size(-1) < 2:
        return torch.full_like(x, lowest)
    best = hidden_last.topk(2, dim=-1)
    own = torch.arange(x.size(-1), device=x.device) == best.indices[..., :1]
    return torch.where(own, best.values[..., 1:], best.values[..., :1])
