"""What a rule is: pointwise, row-wise, divided by its own row sum, of centred scores, or given by a formula."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from reluformer.errors import ArgumentError
from reluformer.rules.formula import Formula, Level, sample, visible_only

OutputNorm = Literal["layer_norm", "gated_rms_norm", "learned_scale"]


@dataclass(frozen=True)
class Rule(ABC):
    """From scores to weights. Subclass one of the classes below, not this one."""

    name: ClassVar[str] = ""
    formula_holds_for: ClassVar[type[Rule] | None] = None
    """The class whose formula was found to give its weights. A subclass inherits this entry, but is another class."""
    output_norm: ClassVar[OutputNorm | None] = None
    """The name of the norm that a layer applies to what was read; the layer owns its parameters."""
    shift_invariant: ClassVar[bool] = False
    """Whether a number that is added to all scores of a row changes nothing."""
    signed: ClassVar[bool] = False
    """Whether weights may be negative; then the entropy of a row has no meaning."""
    wide_scores: ClassVar[bool] = False
    """Whether scores must be products in float32, even where autocast would round them."""

    @abstractmethod
    def weights(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        """Turn scores into weights.

        Args:
            scores: (..., Tq, Tk).
            n: visible slots of each row, at least 1; broadcasts to (..., Tq, 1).
            visible: boolean, broadcasts to scores; None where every slot is visible.

        Returns:
            Weights of the shape of scores, exactly 0 where a slot is hidden.
        """

    def unread(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor | None:
        """Returns which slots have no weight of their own, of the shape of scores; None where their weight is zero.

        Only a rule with a rest has such slots: each gets the same share of it, so their scores need not be known.
        """
        return None

    def gated_weights(self, scores: Tensor, gate: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        """Turn scores into weights under a forget gate, which is added to the scores.

        A rule that is `centred` adds it after its level.

        Args:
            scores: (..., Tq, Tk), without the gate.
            gate: c_i - c_j, broadcasts to scores; c the cumulative sum of log forget gates.
            n: as in `weights`.
            visible: as in `weights`.
        """
        return self.weights(scores + gate, n, visible)

    def formula(self) -> Formula | None:
        """Returns the description that kernels match on, or None if only the reference can read this rule.

        Kernels ask `rules.formula_of`, which compares it with `weights` first.
        """
        return None

    @property
    def centred(self) -> bool:
        """Whether the level of a row moves with its scores, so that a forget gate is added once the level is known."""
        formula = self.formula()
        return formula is not None and formula.centred

    @property
    def homogeneity(self) -> int | None:
        """k where the activation of c s is c^k times that of s for all c > 0; None where there is no such k.

        A layer can then fold a learned gamma into its queries.
        """
        formula = formula_of(self)
        return None if formula is None or formula.level is not None else _HOMOGENEITY.get(formula.activation)

    def eased(self, progress: float) -> Self:
        """Returns the rule as training uses it at `progress` (0 to 1) of its warm-up; most rules stay as they are."""
        return self


_HOMOGENEITY = {"relu": 1, "relu_squared": 2}


def formula_of(rule: Rule) -> Formula | None:
    """Returns the formula of `rule` after comparing it with the weights that the rule computes.

    The comparison is made once for each rule, on a small sample with hidden slots. A subclass that changes the
    weights but inherits a formula loses it: only the reference reads it. While torch.compile or torch.export
    traces, nothing can be compared; then a formula counts only if a rule of the same class has passed before.

    Args:
        rule: any rule.

    Returns:
        The formula, or None where the reference alone can read the rule.

    Raises:
        ArgumentError: the class of the rule defines `formula` itself, and it disagrees with `weights`.

    Example:
        >>> from reluformer import rules
        >>> rules.formula_of(rules.get("relu_seqlen")) == rules.Formula("relu", exponent=1.0)
        True
        >>> rules.formula_of(rules.get("sparsemax")) is None
        True
    """
    if torch.compiler.is_compiling():
        return rule.formula() if type(rule).formula_holds_for is type(rule) else None
    return _compared(type(rule), rule)


@lru_cache(maxsize=1024)
def _compared(kind: type[Rule], rule: Rule) -> Formula | None:
    """Compare once; `kind` tells rules without options apart, whose hashes are equal."""
    formula = rule.formula()
    if formula is None:
        return None
    scores, n, visible = sample()
    with torch.no_grad():
        expected, got = rule.weights(scores, n, visible), formula.weights(scores, n, visible)
    if torch.allclose(got, expected, rtol=1e-9, atol=1e-12):
        type(rule).formula_holds_for = type(rule)
        return formula
    if "formula" in vars(type(rule)):
        raise ArgumentError(
            f"rule '{rule.name or type(rule).__name__}': its formula {formula} gives other weights than its method "
            "weights(); fix formula(), or let it return None"
        )
    return None


@dataclass(frozen=True)
class Pointwise(Rule):
    """weight_j = activate(s_j, n) * row_scale(n), so partial reads simply add up.

    Without a `formula` of its own such a rule is read by the reference and over several processes; with one, by
    every kernel that knows its activation.
    """

    turning: ClassVar[tuple[float, ...] | None] = None
    """The scores at which the weights turn from falling to rising or back, () if there are none; None if unknown."""

    @abstractmethod
    def activate(self, scores: Tensor, n: Tensor) -> Tensor:
        """Returns the activation of each score on its own."""

    def row_scale(self, n: Tensor) -> Tensor | None:
        """Returns the factor common to a row or None, applied to the read instead of every weight."""
        return None

    def formula(self) -> Formula | None:
        return Formula("other", function=self._terms)

    def _terms(self, scores: Tensor, n: Tensor) -> Tensor:
        activations, scale = self.activate(scores, n), self.row_scale(n)
        return activations if scale is None else activations * scale

    def weights(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        weights = self.activations(scores, n, visible)
        scale = self.row_scale(n)
        return weights if scale is None else weights * scale

    def activations(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        """Returns the weights short of `row_scale`."""
        activations = self.activate(scores, n)
        return activations if visible is None else activations.masked_fill(~visible, 0)

    def moments(self, n: int) -> tuple[float, float]:
        """Returns E[w] and E[w^2] of one weight for a score ~ N(0, 1), by quadrature."""
        score = torch.linspace(-12, 12, 48001, dtype=torch.float64, device="cpu").unsqueeze(0)
        density = torch.exp(-(score**2) / 2) / math.sqrt(2 * math.pi) * (24 / 48000)
        weight = self.weights(score, torch.tensor([[float(n)]], dtype=torch.float64, device="cpu"), None)
        return float((weight * density).sum()), float((weight**2 * density).sum())

    def read_variance(self, n: int, correlation: float = 0.0) -> float:
        """Returns the variance of sum_j w_j v_j for scores ~ N(0, 1) and values of variance one.

        n E[w^2] + n (n - 1) E[w]^2 rho, with rho the correlation between two values.
        """
        mean, square = self.moments(n)
        return n * square + n * (n - 1) * mean**2 * correlation


@dataclass(frozen=True)
class Rowwise(Rule):
    """The weights of a row depend on each other; hidden slots must not take part."""

    shift_invariant: ClassVar[bool] = True

    @abstractmethod
    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        """Returns weights over the visible slots; those for hidden slots are dropped."""

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

    def formula(self) -> Formula | None:
        inner = self.inner.formula()
        if inner is None or inner.delta is not None:
            return None
        return replace(inner, delta=self.delta)

    def weights(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        weights = self.inner.weights(scores, n, visible)
        return weights / (self.delta + weights.sum(-1, keepdim=True))


@dataclass(frozen=True)
class RowCentered(Rule):
    """The weights of `core` for scores less a level that moves with their row.

        level = mean + deviations * sqrt(variance + FLOOR) + threshold + growth * log n
        deviations = spread + chance * sqrt(2 log n)
        level = min(level, best score - cap)                      where there is a cap

    Mean, variance and best score are those of the n visible slots.

    Like softmax it ignores what all scores of a row have in common, so no row lies below its threshold as a whole; with
    a spread, what weighs nothing is decided by the row's own contrast (and a row dies only if a few slots score so
    far below the rest that the rest no longer rises above the level). Mean and variance follow from the query and from
    plain sums over the keys that it sees, so no second look at the scores is needed (`kernels/moments.py`).
    """

    shift_invariant: ClassVar[bool] = True
    wide_scores: ClassVar[bool] = True
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
    cap: float | None = None
    """How far below the best score of the row the level lies at least, so that no row dies; None for no limit."""
    chance: float = 0.0
    """How many times sqrt(2 log n) deviations above the mean, which is what the best of n chance scores reaches."""

    def __post_init__(self) -> None:
        if self.cap is not None:
            positive(self, cap=self.cap)

    @property
    @abstractmethod
    def core(self) -> RowNormalized:
        """The rule for scores less their level."""

    def eased(self, progress: float) -> Self:
        """Returns the rule with a level between one that hides next to nothing (0), as softmax, and its own (1).

        A slot without weight learns nothing, so zeros are best taken once a model knows what it looks for.
        """
        threshold = progress * self.threshold - (1 - progress) * self.LOW
        return replace(
            self,
            threshold=threshold,
            spread=progress * self.spread,
            growth=progress * self.growth,
            chance=progress * self.chance,
        )

    @property
    def level(self) -> Level:
        """What is taken off the scores of a row."""
        return Level(self.threshold, self.growth, True, self.spread, self.FLOOR, self.cap, self.chance)

    def formula(self) -> Formula | None:
        core = self.core.formula()
        if core is None or core.level is not None:
            return None
        return replace(core, level=self.level)

    def weights(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        return self._above_level(scores, None, n, visible)

    def gated_weights(self, scores: Tensor, gate: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        """Turn scores into weights under a gate that is added to them after their level (`Level.of_scores`)."""
        return self._above_level(scores, gate, n, visible)

    def _above_level(self, scores: Tensor, gate: Tensor | None, n: Tensor, visible: Tensor | None) -> Tensor:
        mean = visible_only(scores, visible).sum(-1, keepdim=True) / n
        centred = scores - mean
        variance = visible_only(centred, visible).square().sum(-1, keepdim=True) / n
        level = self.level.of(n, torch.zeros_like(mean), variance)
        gated = centred if gate is None else centred + gate
        return self.core.weights(gated - self.level.capped(level, gated, visible), n, visible)


@dataclass(frozen=True)
class Formulated(Rule):
    """A rule that is given by its `formula` alone; every kernel that knows the activation reads it.

    Example:
        >>> from reluformer import rules
        >>> @dataclass(frozen=True)
        ... class Damped(rules.Formulated):
        ...     def formula(self):
        ...         return rules.Formula("relu", factor=1 / 3, exponent=0.7)
        >>> Damped().weights(torch.tensor([[3.0, -1.0]]), torch.tensor([[1.0]]), None)
        tensor([[1., 0.]])
    """

    @abstractmethod
    def formula(self) -> Formula:
        """Returns the formula that defines the weights."""

    def weights(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        return self.formula().weights(scores, n, visible)

    def gated_weights(self, scores: Tensor, gate: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        return self.formula().weights(scores, n, visible, gate)

    def unread(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor | None:
        return self.formula().unread(scores, n, visible)


def positive(rule: Rule, **options: float) -> None:
    """Raise an error unless each of these options of `rule` is a positive number."""
    for option, value in options.items():
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise ArgumentError(f"rule '{rule.name}': {option} must be a positive number, got {value!r}")
