"""The range of a read whose scores lie in intervals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from reluformer import rules
from reluformer.bounding.weight_intervals import EPSILON, WeightIntervals, known_formula, level_moves, weight_intervals
from reluformer.errors import ArgumentError
from reluformer.memory import RuleSpec
from reluformer.rules import Formula, Rule

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
    """Returns the range of a read whose scores lie in intervals.

    It is exact for softmax and its relatives (`softmax_ln`, `scalable_softmax`, `softmax1`), for `relu_norm`, and for
    pointwise rules with known turning points. It is sound and not exact for the rules of centred scores (`relu_exp`,
    `relu_chance`, `relu_rest`). Where exponentials span more than e^500 within a row, sums of them may vanish; a range
    that is only sound for this reason says so, too. The gradient goes to the ends of the intervals that decide.

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
    formula = known_formula(rule)
    if isinstance(values, tuple) and len(values) != 2:
        raise ArgumentError(
            f"bounds: values is a tuple of {len(values)}; pass one tensor, or a pair with the least and largest values"
        )
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
    for sign, chunks in ((-1, [part[0] for part in parts]), (1, [part[1] for part in parts])):
        found = _joined(chunks, seen.shape, width).reshape(*batch, rows, width)
        if not bool(found.isfinite().all()):
            raise ArgumentError("bounds: the read overflows the numbers of float64; scale the values down")
        ends.append(_outward(found, low.dtype, sign))
    divided = formula.delta is not None or formula.rest
    reached = all(part[2] for part in parts) and not level_moves(formula.level) and not (elementwise and divided)
    return ReadBounds(ends[0], ends[1], reached)


# ------------------------------------------------------------------ arguments and shapes


def _check(low: Tensor, high: Tensor, least: Tensor, largest: Tensor, visible: Tensor | None) -> Tensor:
    """Returns the visibility in the shape of the scores, or raise an error that names the argument."""
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
    elif not isinstance(visible, Tensor) or visible.dtype != torch.bool:
        raise ArgumentError(f"bounds: visible must be a boolean tensor, True = visible; got {_shown(visible)}")
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
    """Returns the leading dimensions of scores and values, broadcast."""
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
    """Returns x (..., a, b) with its leading dimensions broadcast and joined, (B, a, b)."""
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
    """Returns chunks (b, r, dv) as one tensor (B, Tq, dv)."""
    rows, found, line = shape[1], [], []
    for part in parts:
        line.append(part)
        if sum(piece.size(1) for piece in line) >= rows:
            found.append(torch.cat(line, 1))
            line = []
    return torch.cat(found).reshape(shape[0], rows, width)


def _outward(x: Tensor, dtype: torch.dtype, sign: int) -> Tensor:
    """Returns float64 numbers in a shorter type, rounded away from the range.

    Beyond the largest number of that type the outer end is infinite, and the inner one is that number.
    """
    if dtype == torch.float64:
        return x
    info = torch.finfo(dtype)
    short = x.to(dtype)
    short = short.clamp(max=info.max) if sign < 0 else short.clamp(min=info.min)
    return short + sign * (2 * info.eps * short.detach().abs() + torch.where(short == x, 0.0, info.tiny).to(dtype))


def _bounds_of_rows(
    rule: Rule,
    formula: Formula,
    scores: tuple[Tensor, Tensor],
    least: Tensor,
    largest: Tensor,
    seen: Tensor,
    elementwise: bool,
) -> tuple[Tensor, Tensor, bool]:
    """Returns both ends (B, Tq, dv) for scores (B, Tq, Tk) and values (B, Tk, dv), all float64.

    Also return whether no end was moved outward because sums vanished.
    """
    n = seen.sum(-1, keepdim=True).clamp_min(1).double()
    weights = weight_intervals(rule, formula, *scores, n, seen)
    slack = (8 * (n + 1000) * EPSILON).detach()
    if weights.delta is None:
        return *_separable(weights, least, largest, slack), True
    if weights.rest is not None:
        weights, least, largest = _with_rest(weights, least, largest, seen, n)
    if elementwise:
        return *_separable(_each_alone(weights, n), least, largest, slack), False
    lower, lower_reached = _least_ratio(weights, least, slack, formula)
    upper, upper_reached = _least_ratio(weights, -largest, slack, formula)
    return lower, -upper, lower_reached and upper_reached


# ------------------------------------------------------------------ reads


def _separable(weights: WeightIntervals, least: Tensor, largest: Tensor, slack: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the range of sum_j w_j c_j where each weight and each value has an interval of its own."""
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
    weights: WeightIntervals, least: Tensor, largest: Tensor, seen: Tensor, n: Tensor
) -> tuple[WeightIntervals, Tensor, Tensor]:
    """Returns the weights and values with one more slot, which has the weight of the rest and the mean value."""
    assert weights.rest is not None
    alive = seen.any(-1, keepdim=True)
    ends = [
        torch.cat([x, torch.where(alive, rest, torch.zeros_like(rest))], -1)
        for x, rest in zip((weights.least, weights.largest), weights.rest, strict=True)
    ]
    means = [(seen.double() @ x) / n for x in (least, largest)]
    values = [torch.cat([x, mean], 1) for x, mean in zip((least, largest), means, strict=True)]
    return WeightIntervals(ends[0], ends[1], torch.zeros_like(n), None), values[0], values[1]


def _each_alone(weights: WeightIntervals, n: Tensor) -> WeightIntervals:
    """Returns the interval of phi_j / (delta + sum phi) for each slot, whatever the other weights do meanwhile."""
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
    return WeightIntervals(ends[0], ends[1], None, None)


def _least_ratio(weights: WeightIntervals, c: Tensor, slack: Tensor, formula: Formula) -> tuple[Tensor, bool]:
    """Returns the least sum phi c / (delta + sum phi) over the box of phi, (B, Tq, dv), for values c (B, Tk, dv).

    Where a sum vanished, the least value takes the place of its ratio. Also return whether that changed nothing.
    """
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
    # a sum that vanished: the read lies among the values and, with a delta or for a dead row, zero
    lost = ordered.detach().amin(2, keepdim=True) if c.size(1) else torch.zeros_like(size)
    if formula.activation != "exp":
        lost = torch.where(totals > 0, lost.clamp_max(0), torch.zeros_like(ratios))
    elif formula.delta:
        lost = torch.where(weights.delta[..., None] > 0, lost.clamp_max(0), lost)
    vanished = ~known & alive & ((totals > 0) | (formula.activation == "exp"))
    margin = (slack[..., None] * size).squeeze(2)
    of_known = torch.where(vanished, torch.inf, ratios).detach().amin(2)
    ratios = torch.where(known, ratios, torch.where(alive, lost, torch.zeros_like(ratios)))
    lower = ratios.amin(2)
    reached = not bool(((lower.detach() < of_known - margin) & alive.squeeze(2)).any())
    return torch.where(alive.squeeze(2), lower - margin, torch.zeros_like(lower)), reached
