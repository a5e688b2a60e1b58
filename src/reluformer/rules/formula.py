"""What a kernel needs to know of a rule, as frozen data.

A formula describes the weights of every rule whose read is a sum over slots, perhaps divided by the row's own sum:

    x_ij = s_ij - level_i
    u_ij = factor * n_i^-exponent * a(x_ij)
    w_ij = u_ij                              where delta is None
           u_ij / (delta + sum_l u_il)       otherwise
           (u_ij + rest_i / n_i) / (rest_i + sum_l u_il)      where there is a rest

Where there is a `log_factor`, scores are multiplied by log_factor * log n_i before anything else.

The rest is what softmax gives beside u = ReLU(e^x - 1): e^x = ReLU(e^x - 1) + min(e^x, 1). The second part is spread
evenly over the visible slots, so that it needs their mean value and no scores. `rest_mass` estimates its sum.

Such a read can be taken slot by slot in any order: tile after tile, or over processes. Implementations match on
this data and on nothing else, so a rule of your own that states its formula gets those that know it. `rules.formula_of`
compares the formula with the weights that the rule computes before anybody relies on it.

Shapes: Tq queries, Tk slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Activation = Literal["relu", "relu_squared", "rectified_exp", "sigmoid", "exp", "other"]
"""The activation a(x); "other" is a function of PyTorch that no compiled kernel knows."""

FAR = 8.0
"""From here on erfc leaves the range of float32."""
HIGHEST = 60.0
"""Scores above it count as this much in `rectified_exp`, so that no sum overflows."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "relu_squared": lambda x: torch.relu(x).square(),
    "rectified_exp": lambda x: torch.relu(torch.expm1(x.clamp(max=HIGHEST))),
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
}


@dataclass(frozen=True)
class Level:
    """What is taken off the scores of a row.

        level = threshold + growth * log n + (mean + deviations * sqrt(variance + floor) where centred)
        deviations = spread + chance * sqrt(2 log n)

    Mean and variance are those of the n visible scores of the row. Where the level is not centred, the deviation counts
    as 1. The best of n normal scores lies about sqrt(2 log n) deviations above their mean, so `chance` says what share
    of that a score must reach to count. With a `cap` the level is at most the best visible score less the cap, so that
    the best slot always weighs something and no row dies:

        capped level = min(level, best - cap)

    The gradient of a capped level goes to the best score alone; among equal ones to the first.

    Example:
        >>> Level(threshold=0.5, growth=1.0).of(torch.tensor([1.0, torch.e]))
        tensor([0.5000, 1.5000])
    """

    threshold: float = 0.0
    growth: float = 0.0
    centred: bool = False
    spread: float = 0.0
    """How many standard deviations above the mean the level lies."""
    floor: float = 0.0
    """Keeps the root smooth where all scores of a row are equal."""
    cap: float | None = None
    """How far below the best score of its row the level lies at least; None for no such limit."""
    chance: float = 0.0
    """How many times sqrt(2 log n) standard deviations the level lies above the mean, beside `spread`."""

    @property
    def needs_variance(self) -> bool:
        """Whether the level depends on the variance of the scores."""
        return self.centred and (self.spread != 0 or self.chance != 0)

    def of(self, n: Tensor, mean: Tensor | None = None, variance: Tensor | None = None) -> Tensor:
        """Returns the level of each row, before any cap.

        Args:
            n: number of visible slots of each row, at least 1.
            mean: mean score of each row, of the shape of n; needed where `centred`.
            variance: variance of the scores of each row; needed where `needs_variance`.

        Returns:
            A tensor of the broadcast shape of the arguments.
        """
        mean = torch.zeros_like(n) if mean is None else mean
        moved = mean + (self.threshold + self.growth * torch.log(n) if self.growth else self.threshold)
        deviations = self.spread + self.chance * torch.sqrt(2 * torch.log(n)) if self.chance else self.spread
        if variance is None:
            return moved if self.centred or not (self.spread or self.chance) else moved + deviations
        return moved + deviations * torch.sqrt(variance + self.floor)

    def of_scores(self, scores: Tensor, n: Tensor, visible: Tensor | None, gated: Tensor | None = None) -> Tensor:
        """Returns the level of each row of dense scores (..., Tq, Tk), as (..., Tq, 1).

        With a forget gate, `gated` are the scores with the gate. Only the cap, which keeps rows alive, looks at them:
        mean and deviation of gated scores would say how far a row reaches back, and nothing about its contrast.
        """
        mean = variance = None
        if self.centred:
            mean = visible_only(scores, visible).sum(-1, keepdim=True) / n
            if self.needs_variance:
                variance = visible_only(scores - mean, visible).square().sum(-1, keepdim=True) / n
        return self.capped(self.of(n, mean, variance), scores if gated is None else gated, visible)

    def capped(self, level: Tensor, scores: Tensor, visible: Tensor | None) -> Tensor:
        """Returns `level` (..., Tq, 1), no nearer to the best visible score of each row than the cap allows.

        Args:
            level: what `of` returned; broadcasts to (..., Tq, 1).
            scores: (..., Tq, Tk).
            visible: boolean, broadcasts to scores; None where every slot is visible.
        """
        if self.cap is None or not scores.size(-1):
            return level
        lowest = torch.finfo(scores.dtype).min
        hidden_last = scores if visible is None else scores.masked_fill(~visible, lowest)
        best = visible_only(scores, visible).gather(-1, hidden_last.argmax(-1, keepdim=True))
        return torch.where(best - self.cap < level, best - self.cap, level)


@dataclass(frozen=True)
class Formula:
    """The description of a rule that kernels match on; the module's docstring has the mathematics.

    Example:
        ReLU(s) / (3 n^0.7):

        >>> formula = Formula("relu", factor=1 / 3, exponent=0.7)
        >>> formula.weights(torch.tensor([[3.0, -1.0]]), torch.tensor([[1.0]]), None)
        tensor([[1., 0.]])
    """

    activation: Activation
    factor: float = 1.0
    exponent: float = 0.0
    delta: float | None = None
    """What is added to the row sum that divides the weights; None where nothing is divided, 0 for softmax."""
    level: Level | None = None
    function: Callable[[Tensor, Tensor], Tensor] | None = None
    """Where the activation is "other": (scores less their level, n) -> u."""
    rest: bool = False
    """Whether each visible slot also gets an equal share of the rest; for `rectified_exp` with a centred level."""
    log_factor: float | None = None
    """Scores, and what a gate adds to them, are first multiplied by it times log n; None where they are not."""

    @property
    def is_softmax(self) -> bool:
        """Whether the weights are exp(s) over their sum."""
        return self.activation == "exp" and self == SOFTMAX

    @property
    def is_relu(self) -> bool:
        """Whether the weights are ReLU(s) times a factor of the row."""
        return self.activation == "relu" and self.delta is None and self.level is None and self.log_factor is None

    @property
    def centred(self) -> bool:
        """Whether the level of a row moves with its scores."""
        return self.level is not None and self.level.centred

    def without_level(self) -> Formula:
        """Returns the formula for scores less their level as it is before any cap; the cap stays."""
        cap = None if self.level is None or self.level.cap is None else Level(cap=self.level.cap)
        return replace(self, level=cap)

    def terms(self) -> Formula:
        """Returns the formula of u for scores less their level: neither level nor division nor rest."""
        return replace(self, delta=None, level=None, rest=False)

    def row_factor(self, n: Tensor) -> Tensor:
        """Returns factor * n^-exponent, of the shape of n."""
        return self.factor * n**-self.exponent

    def weights(self, scores: Tensor, n: Tensor, visible: Tensor | None, gate: Tensor | None = None) -> Tensor:
        """Evaluate the formula on dense scores.

        Args:
            scores: (..., Tq, Tk).
            n: visible slots of each row, at least 1; broadcasts to (..., Tq, 1).
            visible: boolean, broadcasts to scores; None where every slot is visible.
            gate: what a forget gate adds to the scores once a centred level is known; broadcasts to scores. The share
                of a rest that a slot gets fades with it.

        Returns:
            Weights of the shape of scores, exactly 0 where a slot is hidden.
        """
        if self.log_factor is not None:
            sharper = self.log_factor * torch.log(n)
            scores, gate = scores * sharper, None if gate is None else gate * sharper
        if self.rest:
            return self._weights_with_rest(scores, n, visible, gate)
        x = scores if gate is None else scores + gate
        x = x if self.level is None else x - self.level.of_scores(scores, n, visible, x)
        if self.activation == "exp" and self.delta is not None:
            return self._shares_of_exp(x, n, visible, self.delta)
        u = ACTIVATIONS[self.activation](x) * self.row_factor(n) if self.function is None else self.function(x, n)
        u = visible_only(u, visible)
        return u if self.delta is None else u / divisor(u.sum(-1, keepdim=True), self.delta)

    def _shares_of_exp(self, x: Tensor, n: Tensor, visible: Tensor | None, delta: float) -> Tensor:
        """Returns u / (delta + sum u) with both sides divided by e^(best x) of the row, so that nothing overflows."""
        if not x.size(-1):
            return x
        best = (x if visible is None else x.masked_fill(~visible, torch.finfo(x.dtype).min)).detach()
        best = best.amax(-1, keepdim=True).clamp_min(0 if delta else torch.finfo(x.dtype).min)
        u = visible_only(torch.exp((x - best).clamp_max(0)) * self.row_factor(n), visible)
        return u / divisor(u.sum(-1, keepdim=True), delta * torch.exp(-best) if delta else 0.0)

    def unread(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor | None:
        """Returns which slots have nothing but their share of the rest, of the shape of scores; None without a rest."""
        if not self.rest:
            return None
        assert self.level is not None
        return above_and_rest(scores, n, visible, self.level)[0] == 0

    def _weights_with_rest(self, scores: Tensor, n: Tensor, visible: Tensor | None, gate: Tensor | None) -> Tensor:
        assert self.level is not None
        u, rest = above_and_rest(scores, n, visible, self.level, gate)
        if gate is None:
            return visible_only(u + rest / n, visible) / (u.sum(-1, keepdim=True) + rest)
        share = visible_only(rest / n * torch.exp(gate.clamp(max=0)), visible)
        return (u + share) / divisor(u.sum(-1, keepdim=True) + share.sum(-1, keepdim=True), 0.0)


SOFTMAX = Formula("exp", delta=0.0)
SOFTMAX1 = Formula("exp", delta=1.0)


def rest_mass(level: Tensor, deviation: Tensor, n: Tensor) -> Tensor:
    """Returns the sum of min(e^(s - level), 1) over n scores, as if they were normal with mean 0.

    With z = level / deviation and the normal distribution Phi it is

        n (e^(deviation^2 / 2 - level) Phi(z - deviation) + Phi(-z))

    Args:
        level: how far above the mean of its row the level lies.
        deviation: the standard deviation of the scores of the row, above 0.
        n: visible slots of the row.

    Returns:
        A tensor of the broadcast shape of the arguments, between 0 and n.

    Example:
        >>> rest_mass(torch.tensor(0.0), torch.tensor(1e-3), torch.tensor(8.0))  # all scores lie at the level
        tensor(7.9968)
    """
    z = level / deviation
    away = deviation - z
    # e^(deviation^2 / 2 - level) overflows where Phi(z - deviation) vanishes, so there the two are one function
    sharp = torch.exp(-z.square() / 2) * _scaled_tail(away.clamp(min=0))
    flat = torch.exp((deviation.square() / 2 - level).clamp(max=0)) * _tail(away)
    return n * (torch.where(away > 0, sharp, flat) + _tail(z))


def _tail(a: Tensor) -> Tensor:
    """Returns Phi(-a) of the normal distribution."""
    return torch.erfc(a / math.sqrt(2)) / 2


def _scaled_tail(a: Tensor) -> Tensor:
    """Returns e^(a^2 / 2) Phi(-a) for a >= 0; by its asymptotic series, good to 4e-7, where Phi(-a) vanishes."""
    y = a / math.sqrt(2)
    near, far = y.clamp(max=FAR), y.clamp(min=FAR)
    t = 1 / (2 * far.square())
    series = (1 - t * (1 - 3 * t * (1 - 5 * t))) / (2 * math.sqrt(math.pi) * far)
    return torch.where(y < FAR, torch.exp(near.square()) * torch.erfc(near) / 2, series)


def above_and_rest(
    scores: Tensor, n: Tensor, visible: Tensor | None, level: Level, gate: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns ReLU(e^x - 1) of scores (..., Tq, Tk) above a centred level, and the rest of each row (..., Tq, 1).

    A gate is added to the scores once the level and the rest are known.
    """
    mean = visible_only(scores, visible).sum(-1, keepdim=True) / n
    centred = scores - mean
    variance = visible_only(centred, visible).square().sum(-1, keepdim=True) / n
    away = level.of(n, torch.zeros_like(mean), variance)
    x = centred - away if gate is None else centred - away + gate
    u = visible_only(ACTIVATIONS["rectified_exp"](x), visible)
    return u, rest_mass(away, torch.sqrt(variance + level.floor), n)


def divisor(row_sum: Tensor, delta: float | Tensor) -> Tensor:
    """Returns delta + row_sum, and 1 where that is nothing, so that a dead row reads zero."""
    total = row_sum + delta
    return torch.where(total > 0, total, torch.ones_like(total))


def visible_only(x: Tensor, visible: Tensor | None) -> Tensor:
    """Returns `x` (..., Tq, Tk) with 0 at hidden slots."""
    return x if visible is None else x.masked_fill(~visible, 0)


def sample() -> tuple[Tensor, Tensor, Tensor]:
    """Returns scores (5, 7), n (5, 1) and visible (5, 7) on which formulas are compared with rules.

    Rows see 7, 5, 2, 4 and 0 slots. The fourth has scores far beyond any clamp.
    """
    slot, row = torch.arange(7, dtype=torch.float64, device="cpu"), torch.arange(5, device="cpu")[:, None]
    scores = 2.5 * torch.sin(1.7 * slot + 2.3 * row + 0.4)
    scores = torch.where(row == 3, 40 * scores, scores)
    visible = slot < torch.tensor([[7], [5], [2], [4], [0]], device="cpu")
    visible = torch.where(row == 1, visible.flip(-1), visible)
    return scores, visible.sum(-1, keepdim=True).clamp_min(1).to(torch.float64), visible
