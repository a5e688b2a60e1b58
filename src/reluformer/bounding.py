"""The exact range of a read when each score lies in an interval.

The scores of a row lie in a box, low_j <= s_j <= high_j, and each value c_j is known or lies in an interval of its own.
`bounds` returns the least and the largest read, one dimension of the values at a time.

Rules whose weights are divided by their row sum. With phi_j = phi(s_j) >= 0 and delta >= 0 the read is

    f(s) = sum_j phi_j c_j / (delta + sum_j phi_j)

For a fixed sum in the denominator it is linear in each phi_j, so both ends lie at a vertex of the box. At the minimum m
a slot with c_j < m has its largest phi and the others their least. After sorting c the minimum is therefore

    min over k = 0 ... n of   (sum_{j<=k} phi_j^max c_j + sum_{j>k} phi_j^min c_j)
                            / (delta + sum_{j<=k} phi_j^max + sum_{j>k} phi_j^min)

which prefix sums give in O(n log n). Softmax is phi = e^s and delta = 0, where it was first shown (Vertex-Softmax,
arXiv 2605.10974). As phi >= 0, an interval for a value counts with its lower end at the minimum.

Pointwise rules are separable: each term w_j c_j lies between the least and the largest of four products, and the sum
of these is exact. A weight is least at one end of its interval or at a turning point of the rule, as that of GELU at
-0.75.

Rules of centred scores (`relu_exp`) move their level with the scores. Each score less its level then lies in an
interval that follows from intervals for mean and deviation of the row. The formulas above, applied to these intervals,
are sound and not exact.

All sums are computed in float64. What rounding may do to them is taken off the lower end and added to the upper one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from reluformer import rules
from reluformer.errors import ArgumentError
from reluformer.memory import RuleSpec
from reluformer.rules import Formula, Level, Pointwise, RowCentered, RowNormalized, Rule, ScalableSoftmax, rest_mass
from reluformer.rules.formula import ACTIVATIONS, visible_only

EPSILON = torch.finfo(torch.float64).eps
SMALLEST = 1e-250
"""Below it a sum of exponentials may have lost terms to underflow."""
AT_ONCE = 2**21
"""The most numbers of a sorted tensor (rows, slots, dv) that are held at once."""


class ReadBounds(NamedTuple):
    """The range of a read: two tensors (..., Tq, dv), and whether it is the least such range."""

    lower: Tensor
    upper: Tensor
    exact: bool
    """Whether both ends are reached for some scores and values, up to rounding; otherwise the range is only sound."""


def bounds(
    rule: RuleSpec,
    low: Tensor,
    high: Tensor,
    values: Tensor | tuple[Tensor, Tensor],
    *,
    visible: Tensor | None = None,
    elementwise: bool = False,
) -> ReadBounds:
    """Return the range of a read whose scores lie in intervals.

    It is exact for softmax and its relatives (`softmax_ln`, `scalable_softmax`, `softmax1`), for `relu_norm`, and for
    pointwise rules with known turning points. It is sound and not exact for the rules of centred scores (`relu_exp`,
    `relu_chance`, `relu_rest`). Where exponentials span more than e^500 within a row, it is sound for every rule. The
    gradient goes to the ends of the intervals that decide.

    Args:
        rule: a name, a mapping or a rule, as in `read`.
        low: the least scores, (..., Tq, Tk), already scaled.
        high: the largest scores, of the same shape.
        values: of the slots, (..., Tk, dv), or a pair with their least and largest values. Leading dimensions broadcast
            with those of the scores.
        visible: boolean, broadcasts to the scores; None where every slot is visible.
        elementwise: bound each weight alone first, the usual baseline. For rules that divide by a row sum the range is
            wider then, and sound only.

    Returns:
        The lower and the upper end, (..., Tq, dv), in the type of the scores, and whether they are exact. A query that
        sees nothing reads zero. The output norm of `rela` and `softmax_ln` is not applied.

    Raises:
        ArgumentError: low lies above high, a number is not finite, shapes do not fit, or nothing is known about how
            the read of this rule depends on its scores.
        UnknownNameError: there is no rule of that name.

    Example:
        >>> low, high = torch.tensor([[-1.0, 0.0]]), torch.tensor([[1.0, 0.0]])
        >>> found = bounds("softmax", low, high, torch.tensor([[1.0], [0.0]]))
        >>> round(found.lower.item(), 4), round(found.upper.item(), 4), found.exact
        (0.2689, 0.7311, True)
    """
    rule = rules.get(rule)
    formula = _known_formula(rule)
    least, largest = values if isinstance(values, tuple) else (values, values)
    visible = _check(low, high, least, largest, visible)
    batch = _batch(low, least)
    rows, slots, width = low.size(-2), low.size(-1), least.size(-1)
    if not slots:
        nothing = low.new_zeros(*batch, rows, width)
        return ReadBounds(nothing, nothing, True)
    scores = [_flat(x.double().masked_fill(~visible, 0), batch) for x in (low, high)]
    contents = [_flat(x.double(), batch) for x in (least, largest)]
    seen = _flat(visible, batch)
    if formula.rest:  # the mean of the visible values differs from row to row
        scores = [x.reshape(-1, 1, slots) for x in scores]
        contents = [x[:, None].expand(-1, rows, -1, -1).reshape(-1, slots, width) for x in contents]
        seen = seen.reshape(-1, 1, slots)
    parts = [
        _bounds_of_rows(
            rule, formula, (scores[0][b, r], scores[1][b, r]), contents[0][b], contents[1][b], seen[b, r], elementwise
        )
        for b, r in _chunks(seen, width)
    ]
    ends = []
    for sign, end in ((-1, 0), (1, 1)):
        found = _joined([part[end] for part in parts], seen.shape, width).reshape(*batch, rows, width)
        if not bool(found.isfinite().all()):
            raise ArgumentError("bounds: the read overflows the numbers of float64; scale the values down")
        ends.append(_outward(found, low.dtype, sign))
    divided = formula.delta is not None or formula.rest
    return ReadBounds(ends[0], ends[1], not _moves(formula.level) and not (elementwise and divided))


def _known_formula(rule: Rule) -> Formula:
    """Return the formula of a rule, or raise an error that says why its read has no known range."""
    if type(rule) is ScalableSoftmax:
        return Formula("exp", delta=0.0)
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
    """Return the pointwise rule inside of `rule`, or the rule itself."""
    if isinstance(rule, RowCentered):
        rule = rule.core
    return rule.inner if isinstance(rule, RowNormalized) else rule


def turning_points(rule: Rule) -> tuple[float, ...] | None:
    """Return the scores where the weights of a pointwise rule turn, or None if its class does not say.

    A class that overrides `activate` has to state `turning` itself; that of its parent may be wrong for it.

    Example:
        >>> turning_points(rules.get({"name": "polynomial", "p": 2}))
        (0.0,)
    """
    core = _core(rule)
    if not isinstance(core, Pointwise):
        return None
    for kind in type(core).__mro__:
        if "turning" in vars(kind):
            return core.turning
        if "activate" in vars(kind):
            return None
    return None


# ------------------------------------------------------------------ arguments and shapes


def _check(low: Tensor, high: Tensor, least: Tensor, largest: Tensor, visible: Tensor | None) -> Tensor:
    """Return the visibility in the shape of the scores, or raise an error that names the argument."""
    for name, tensor, axes in (("low", low, "(..., Tq, Tk)"), ("high", high, "(..., Tq, Tk)")):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.ndim < 2:
            raise ArgumentError(f"bounds: {name} must be a floating-point tensor {axes}, got {_shown(tensor)}")
    if low.shape != high.shape:
        raise ArgumentError(f"bounds: low has shape {tuple(low.shape)} and high {tuple(high.shape)}; they must agree")
    for tensor in (least, largest):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.ndim < 2:
            raise ArgumentError(f"bounds: values must be a floating-point tensor (..., Tk, dv), got {_shown(tensor)}")
    if least.shape != largest.shape:
        raise ArgumentError(
            f"bounds: the least values have shape {tuple(least.shape)} and the largest {tuple(largest.shape)}; "
            "they must agree"
        )
    if least.size(-2) != low.size(-1):
        raise ArgumentError(
            f"bounds: {low.size(-1)} slots have scores and {least.size(-2)} have values; pass equally many"
        )
    try:
        _batch(low, least)
    except RuntimeError:
        raise ArgumentError(
            f"bounds: scores of shape {tuple(low.shape)} and values of shape {tuple(least.shape)}: their leading "
            "dimensions do not broadcast"
        ) from None
    if visible is None:
        visible = torch.ones((), dtype=torch.bool, device=low.device)
    elif visible.dtype != torch.bool:
        raise ArgumentError(f"bounds: visible must be boolean with True = visible, got {visible.dtype}")
    try:
        visible = visible.expand(low.shape)
    except RuntimeError:
        raise ArgumentError(
            f"bounds: visible has shape {tuple(visible.shape)}, which does not broadcast to {tuple(low.shape)}"
        ) from None
    for name, tensor in (("low", low), ("high", high)):
        _check_finite(name, tensor.detach().masked_fill(~visible, 0))
    _check_finite("values", least.detach())
    _check_finite("values", largest.detach())
    _check_order("low", "high", low.detach().masked_fill(~visible, 0), high.detach().masked_fill(~visible, 0))
    _check_order("the least values", "the largest values", least.detach(), largest.detach())
    return visible


def _batch(low: Tensor, least: Tensor) -> torch.Size:
    """Return the leading dimensions of scores and values, broadcast."""
    return torch.Size(torch.broadcast_shapes(low.shape[:-2], least.shape[:-2]))  # type: ignore[no-untyped-call]


def _shown(given: object) -> str:
    return f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__


def _check_finite(name: str, tensor: Tensor) -> None:
    wrong = ~torch.isfinite(tensor)
    if bool(wrong.any()):
        place = tuple(wrong.nonzero()[0].tolist())
        raise ArgumentError(f"bounds: {name}{list(place)} is {tensor[place].item()}; every number must be finite")


def _check_order(name: str, other: str, low: Tensor, high: Tensor) -> None:
    wrong = low > high
    if bool(wrong.any()):
        place = tuple(wrong.nonzero()[0].tolist())
        raise ArgumentError(
            f"bounds: {name} is above {other} at {list(place)}: {low[place].item()} > {high[place].item()}; "
            "swap them, or fix what made them"
        )


def _flat(x: Tensor, batch: torch.Size) -> Tensor:
    """Return x (..., a, b) with its leading dimensions broadcast and joined, (B, a, b)."""
    return x.expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:])


def _chunks(seen: Tensor, width: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of batch and rows whose sorted tensors fit into memory, in order."""
    total, rows, slots = seen.shape
    row = max(1, (slots + 2) * width)
    rows_at_once = max(1, min(rows, AT_ONCE // row))
    batch_at_once = max(1, AT_ONCE // (row * max(rows, 1)))
    for b in range(0, max(total, 1), batch_at_once):
        for r in range(0, max(rows, 1), rows_at_once):
            yield slice(b, b + batch_at_once), slice(r, r + rows_at_once)


def _joined(parts: list[Tensor], shape: torch.Size, width: int) -> Tensor:
    """Return chunks (b, r, dv) as one tensor (B, Tq, dv)."""
    rows, found, line = shape[1], [], []
    for part in parts:
        line.append(part)
        if sum(piece.size(1) for piece in line) >= rows:
            found.append(torch.cat(line, 1))
            line = []
    return torch.cat(found).reshape(shape[0], rows, width)


def _outward(x: Tensor, dtype: torch.dtype, sign: int) -> Tensor:
    """Return float64 numbers in a shorter type, rounded away from the range.

    Beyond the largest number of that type the outer end is infinite, and the inner one is that number.
    """
    if dtype == torch.float64:
        return x
    info = torch.finfo(dtype)
    short = x.to(dtype)
    short = short.clamp(max=info.max) if sign < 0 else short.clamp(min=info.min)
    return short + sign * (2 * info.eps * short.detach().abs() + torch.where(short == x, 0.0, info.tiny).to(dtype))


# ------------------------------------------------------------------ intervals of weights


@dataclass(frozen=True)
class _Weights:
    """Intervals (B, Tq, Tk) for phi, delta (B, Tq, 1) or None where nothing divides, and for the rest (B, Tq, 1)."""

    least: Tensor
    largest: Tensor
    delta: Tensor | None
    rest: tuple[Tensor, Tensor] | None


def _moves(level: Level | None) -> bool:
    """Return whether the level of a row depends on its scores."""
    return level is not None and (level.centred or level.cap is not None)


def _bounds_of_rows(
    rule: Rule,
    formula: Formula,
    scores: tuple[Tensor, Tensor],
    least: Tensor,
    largest: Tensor,
    seen: Tensor,
    elementwise: bool,
) -> tuple[Tensor, Tensor]:
    """Return both ends (B, Tq, dv) for scores (B, Tq, Tk) and values (B, Tk, dv), all float64."""
    n = seen.sum(-1, keepdim=True).clamp_min(1).double()
    weights = _weights(rule, formula, *scores, n, seen)
    slack = (8 * (n + 1000) * EPSILON).detach()
    if weights.delta is None:
        return _separable(weights, least, largest, slack)
    if weights.rest is not None:
        weights, least, largest = _with_rest(weights, least, largest, seen, n)
    if elementwise:
        return _separable(_each_alone(weights, n), least, largest, slack)
    lower = _least_ratio(weights, least, slack, formula)
    upper = -_least_ratio(weights, -largest, slack, formula)
    return lower, upper


def _weights(rule: Rule, formula: Formula, low: Tensor, high: Tensor, n: Tensor, seen: Tensor) -> _Weights:
    """Return the intervals of phi for scores in intervals."""
    if type(rule) is ScalableSoftmax:
        scale = rule.c * torch.log(n)
        low, high = _widened(low * scale, low * scale, -1), _widened(high * scale, high * scale, 1)
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
    points = [low, high]
    if formula.function is not None:
        points += [torch.clamp(torch.full_like(low, at), low, high) for at in turning_points(rule) or ()]
        found = [formula.function(x, n) for x in points]
    else:
        factor = formula.row_factor(n)
        found = [ACTIVATIONS[formula.activation](x) * factor for x in points]
    least, largest = found[0], found[0]
    for other in found[1:]:
        least, largest = torch.minimum(least, other), torch.maximum(largest, other)
    least, largest = visible_only(least, seen), visible_only(largest, seen)
    if formula.delta is None and not formula.rest:
        return _Weights(least, largest, None, None)
    if bool((least.detach() < 0).any()):
        raise ArgumentError(
            f"bounds: rule '{rule.name or type(rule).__name__}' divides by a row sum with negative terms; "
            "no range is known"
        )
    return _Weights(least, largest, torch.full_like(n, formula.delta or 0.0), rest)


def _exponentials(formula: Formula, low: Tensor, high: Tensor, n: Tensor, seen: Tensor) -> _Weights:
    """Return the intervals of e^s, all of a row divided by the same number so that none overflows."""
    if formula.delta is None:
        ends = [visible_only(torch.exp(x) * formula.row_factor(n), seen) for x in (low, high)]
        if not bool(torch.isfinite(ends[1]).all()):
            raise ArgumentError("bounds: e^high overflows; scores above 700 have no finite weight")
        return _Weights(ends[0], ends[1], None, None)
    best = high.detach().masked_fill(~seen, -torch.inf).amax(-1, keepdim=True)
    best = torch.where(torch.isfinite(best), best, torch.zeros_like(best))
    if formula.delta > 0:
        best = best.clamp_min(0)
    ends = [visible_only(torch.exp(x - best) * formula.row_factor(n), seen) for x in (low, high)]
    return _Weights(ends[0], ends[1], formula.delta * torch.exp(-best), None)


def _widened(x: Tensor, size: Tensor, sign: int) -> Tensor:
    """Return x moved outward by what rounding of numbers of this size may have done to it."""
    return x + sign * 8 * EPSILON * size.detach().abs()


def _above_level(
    formula: Formula, low: Tensor, high: Tensor, n: Tensor, seen: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """Return intervals for scores less the centred level of their row, and for the rest."""
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
    """Return intervals for max(score - level, score - best + cap)."""
    below_low, below_high = (
        torch.clamp(end - _best_of_others(other, seen), max=0) + cap for end, other in ((low, high), (high, low))
    )
    size = low.abs() + high.abs() + cap
    return torch.maximum(x_low, _widened(below_low, size, -1)), torch.maximum(x_high, _widened(below_high, size, 1))


def _best_of_others(x: Tensor, seen: Tensor) -> Tensor:
    """Return for each slot the largest visible number among the other slots of its row, of the shape of x."""
    lowest = torch.finfo(x.dtype).min / 4
    hidden_last = x.masked_fill(~seen, lowest)
    if x.size(-1) < 2:
        return torch.full_like(x, lowest)
    best = hidden_last.topk(2, dim=-1)
    own = torch.arange(x.size(-1), device=x.device) == best.indices[..., :1]
    return torch.where(own, best.values[..., 1:], best.values[..., :1])


# ------------------------------------------------------------------ reads


def _separable(weights: _Weights, least: Tensor, largest: Tensor, slack: Tensor) -> tuple[Tensor, Tensor]:
    """Return the range of sum_j w_j c_j where each weight and each value has an interval of its own."""
    if bool(((weights.least < 0) & (weights.largest > 0)).any() and ((least < 0) & (largest > 0)).any()):
        corners = [w[..., None] * c[:, None] for w in (weights.least, weights.largest) for c in (least, largest)]
        lower, upper = corners[0], corners[0]
        for corner in corners[1:]:
            lower, upper = torch.minimum(lower, corner), torch.maximum(upper, corner)
        sums = [lower.sum(2), upper.sum(2)]
    else:  # signs decide the corner: a weight above 0 meets the nearer end of the value, one below 0 the other
        sums = []
        for first, second, near, far in (
            (weights.least, weights.largest, least, largest),
            (weights.largest, weights.least, largest, least),
        ):
            above = first.clamp_min(0) @ near.clamp_min(0) + second.clamp_min(0) @ near.clamp_max(0)
            below = first.clamp_max(0) @ far.clamp_min(0) + second.clamp_max(0) @ far.clamp_max(0)
            sums.append(above + below)
    size = torch.maximum(weights.least.abs(), weights.largest.abs()) @ torch.maximum(least.abs(), largest.abs())
    margin = slack * size.detach()
    return sums[0] - margin, sums[1] + margin


def _with_rest(
    weights: _Weights, least: Tensor, largest: Tensor, seen: Tensor, n: Tensor
) -> tuple[_Weights, Tensor, Tensor]:
    """Return the weights and values with one more slot, which has the weight of the rest and the mean value."""
    assert weights.rest is not None
    alive = seen.any(-1, keepdim=True)
    ends = [
        torch.cat([x, torch.where(alive, rest, torch.zeros_like(rest))], -1)
        for x, rest in zip((weights.least, weights.largest), weights.rest, strict=True)
    ]
    means = [(seen.double() @ x) / n for x in (least, largest)]
    values = [torch.cat([x, mean], 1) for x, mean in zip((least, largest), means, strict=True)]
    return _Weights(ends[0], ends[1], torch.zeros_like(n), None), values[0], values[1]


def _each_alone(weights: _Weights, n: Tensor) -> _Weights:
    """Return the interval of phi_j / (delta + sum phi) for each slot, whatever the other weights do meanwhile."""
    least, largest, delta = weights.least, weights.largest, weights.delta
    assert delta is not None
    off = 8 * (n + 1000) * EPSILON
    ends = []
    for own, others, sign in ((least, largest, 1), (largest, least, -1)):
        total = others.sum(-1, keepdim=True)
        rest = (total * (1 + sign * off) - others).clamp_min(0)  # what rounding may hide is added or taken off
        divisor = delta + own + rest
        known = divisor > SMALLEST
        unknown = torch.full_like(own, 0.0 if sign > 0 else 1.0)
        share = torch.where(known, own / torch.where(known, divisor, torch.ones_like(divisor)), unknown)
        ends.append(torch.where(largest > 0, share, torch.zeros_like(share)))
    return _Weights(ends[0], ends[1], None, None)


def _least_ratio(weights: _Weights, c: Tensor, slack: Tensor, formula: Formula) -> Tensor:
    """Return the least sum phi c / (delta + sum phi) over the box of phi, (B, Tq, dv), for values c (B, Tk, dv)."""
    assert weights.delta is not None
    order = c.detach().argsort(dim=1)
    ordered = c.gather(1, order)[:, None]  # (B, 1, Tk, dv)
    index = order[:, None].expand(-1, weights.least.size(1), -1, -1)
    least, largest = (
        x[..., None].expand(*x.shape, c.size(-1)).gather(2, index) for x in (weights.least, weights.largest)
    )
    more = largest - least
    first = torch.zeros_like(least[:, :, :1])
    totals = torch.cat([first, more.cumsum(2)], 2) + (least.sum(2, keepdim=True) + weights.delta[..., None])
    sums = torch.cat([first, (more * ordered).cumsum(2)], 2) + (least * ordered).sum(2, keepdim=True)
    known = totals > SMALLEST
    ratios = sums / torch.where(known, totals, torch.ones_like(totals))
    size = ordered.detach().abs().amax(2, keepdim=True) if c.size(1) else torch.zeros_like(ratios[:, :, :1])
    alive = (weights.largest > 0).any(-1)[..., None, None]
    if formula.activation == "exp":  # a sum that vanished: the read lies among the values and, with a delta, zero
        lost = ordered.detach().amin(2, keepdim=True) if c.size(1) else torch.zeros_like(size)
        lost = torch.where(weights.delta[..., None] > 0, lost.clamp_max(0), lost) if formula.delta else lost
        ratios = torch.where(known, ratios, torch.where(alive, lost, torch.zeros_like(lost)))
    else:
        ratios = torch.where(known, ratios, torch.zeros_like(ratios))
    lower = ratios.amin(2) - (slack[..., None] * size).squeeze(2)
    return torch.where(alive.squeeze(2), lower, torch.zeros_like(lower))
