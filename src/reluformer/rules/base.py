"""What a rule is: pointwise, row-wise, pointwise divided by its own row sum, or that of centred scores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from reluformer.errors import ArgumentError

OutputNorm = Literal["layer_norm", "gated_rms_norm", "learned_scale"]


@dataclass(frozen=True)
class Rule(ABC):
    """From scores to weights. Subclass `Pointwise` or `Rowwise`, not this."""

    name: ClassVar[str] = ""
    output_norm: ClassVar[OutputNorm | None] = None

    @abstractmethod
    def weights(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        """Weights of the same shape as `scores`, exactly 0 where not `visible`.

        scores: (..., Tq, Tk); n: visible slots of each row, at least 1, broadcasts to
        (..., Tq, 1); visible: boolean, broadcasts to scores, None = all.
        """


@dataclass(frozen=True)
class Pointwise(Rule):
    """weight_j = activate(s_j, n) * row_scale(n), so partial reads simply add up."""

    homogeneity: ClassVar[int | None] = None
    """k where activate(c s) = c^k activate(s) for c > 0; a layer can then fold gamma into q."""

    @abstractmethod
    def activate(self, scores: Tensor, n: Tensor) -> Tensor:
        """The activation of each score on its own."""

    def row_scale(self, n: Tensor) -> Tensor | None:
        """A factor common to the row, applied to the read instead of every weight."""
        return None

    def weights(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        weights = self.activations(scores, n, visible)
        scale = self.row_scale(n)
        return weights if scale is None else weights * scale

    def activations(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        """The weights short of `row_scale`."""
        activations = self.activate(scores, n)
        return activations if visible is None else activations.masked_fill(~visible, 0)

    def moments(self, n: int) -> tuple[float, float]:
        """E[w] and E[w^2] of one weight for a score ~ N(0, 1), by quadrature."""
        score = torch.linspace(-12, 12, 48001, dtype=torch.float64, device="cpu").unsqueeze(0)
        density = torch.exp(-(score**2) / 2) / math.sqrt(2 * math.pi) * (24 / 48000)
        weight = self.weights(score, torch.tensor([[float(n)]], dtype=torch.float64, device="cpu"), None)
        return float((weight * density).sum()), float((weight**2 * density).sum())

    def read_variance(self, n: int, correlation: float = 0.0) -> float:
        """Variance of sum_j w_j v_j for scores ~ N(0, 1) and values of variance one.

        n E[w^2] + n (n - 1) E[w]^2 rho, with rho the correlation between two values.
        """
        mean, square = self.moments(n)
        return n * square + n * (n - 1) * mean**2 * correlation


@dataclass(frozen=True)
class Rowwise(Rule):
    """The weights of a row depend on each other; hidden slots must not take part."""

    @abstractmethod
    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        """Weights over the visible slots; what it returns for hidden slots is dropped."""

    def weights(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        if scores.size(-1) == 0:
            return scores
        if visible is None:
            everything = torch.ones((), dtype=torch.bool, device=scores.device)
            return self.normalize(scores, everything)
        return self.normalize(scores, visible).masked_fill(~visible, 0)


@dataclass(frozen=True)
class RowNormalized(Rule):
    """w_j / (delta + sum_l w_l), w the weights of the pointwise rule `inner`: one more plain sum a row."""

    inner: ClassVar[Pointwise]
    delta: float = 1.0
    """What keeps a row without a positive score at zero, and one with low scores from reading in full."""

    def __post_init__(self) -> None:
        positive(self, delta=self.delta)

    def weights(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        weights = self.inner.weights(scores, n, visible)
        return weights / (self.delta + weights.sum(-1, keepdim=True))


@dataclass(frozen=True)
class RowCentered(Rule):
    """The weights of `core` for scores less a level that moves with their row.

        level = mean + spread * sqrt(variance + FLOOR) + threshold + growth * log n      over the n visible scores

    Like softmax it ignores what all scores of a row have in common, so no row lies below its threshold as a whole; with
    a spread, what weighs nothing is decided by the row's own contrast (and a row dies only if a few slots score so
    far below the rest that the rest no longer rises above the level). Mean and variance follow from the query and from
    plain sums over the keys that it sees, so no second look at the scores is needed (`kernels/moments.py`).
    """

    FLOOR: ClassVar[float] = 0.01
    """Keeps the root smooth where all scores are equal."""
    LOW: ClassVar[float] = 4.0
    """So far below the mean a score weighs next to nothing in softmax, too."""
    threshold: float = 0.0
    """How far above mean and spread a score must lie to weigh anything."""
    spread: float = 0.0
    """How many standard deviations above the mean."""
    growth: float = 0.0
    """How much the threshold rises with log n: the more slots, the smaller the share of them that a row reads."""

    @property
    @abstractmethod
    def core(self) -> RowNormalized:
        """The rule for scores less their level."""

    def eased(self, progress: float) -> Self:
        """The same rule with a level between one that hides next to nothing (0), as softmax, and its own (1).

        A slot without weight learns nothing, so zeros are best taken once a model knows what it looks for.
        """
        threshold = progress * self.threshold - (1 - progress) * self.LOW
        return replace(self, threshold=threshold, spread=progress * self.spread, growth=progress * self.growth)

    def level(self, mean: Tensor, variance: Tensor | None, n: Tensor) -> Tensor:
        """What is taken off the scores of a row; without a spread no variance is asked for."""
        moved = mean + (self.threshold + self.growth * torch.log(n) if self.growth else self.threshold)
        return moved if variance is None else moved + self.spread * torch.sqrt(variance + self.FLOOR)

    def weights(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        mean = _seen(scores, visible).sum(-1, keepdim=True) / n
        centred = scores - mean
        variance = _seen(centred, visible).square().sum(-1, keepdim=True) / n if self.spread else None
        return self.core.weights(centred - self.level(torch.zeros_like(mean), variance, n), n, visible)


def _seen(scores: Tensor, visible: Tensor | None) -> Tensor:
    return scores if visible is None else scores.masked_fill(~visible, 0)


def positive(rule: Rule, **options: float) -> None:
    for option, value in options.items():
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise ArgumentError(f"rule '{rule.name}': {option} must be a positive number, got {value!r}")
