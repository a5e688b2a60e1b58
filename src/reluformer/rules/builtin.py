"""The rules of the literature, and ours."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from reluformer.errors import ArgumentError, nearest
from reluformer.rules.base import Formulated, OutputNorm, Pointwise, RowCentered, RowNormalized, Rowwise, positive
from reluformer.rules.formula import HIGHEST, SOFTMAX, SOFTMAX1, Activation, Formula, Level, visible_only
from reluformer.rules.projections import hide, project
from reluformer.rules.registry import register

# ------------------------------------------------------------------ pointwise rules


@register("relu_plain")
@dataclass(frozen=True)
class ReluPlain(Pointwise):
    """ReLU(s): the plain feed-forward layer. In attention its variance grows with n."""

    def activate(self, scores: Tensor, n: Tensor) -> Tensor:
        return torch.relu(scores)

    def formula(self) -> Formula | None:
        return Formula("relu")


@register("relu")
@dataclass(frozen=True)
class Relu(ReluPlain):
    """ReLU(s) / (gamma sqrt(n/2)): the paper's rule, a read of variance one at any n."""

    gamma: float = 1.0
    learn_gamma: bool = False
    """The layer learns a factor on gamma for each head, started at 1."""

    def __post_init__(self) -> None:
        positive(self, gamma=self.gamma)

    def row_scale(self, n: Tensor) -> Tensor:
        return torch.rsqrt(n / 2) / self.gamma

    def formula(self) -> Formula | None:
        return Formula("relu", math.sqrt(2) / self.gamma, 0.5)


@register("relu_seqlen")
@dataclass(frozen=True)
class ReluSeqlen(ReluPlain):
    """ReLU(s) / n^alpha (Wortsman et al., 2023)."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        positive(self, alpha=self.alpha)

    def row_scale(self, n: Tensor) -> Tensor:
        return n**-self.alpha

    def formula(self) -> Formula | None:
        return Formula("relu", exponent=self.alpha)


SeqlenActivation = Literal["relu", "relu2", "gelu", "softplus", "identity", "relu6", "sigmoid"]
"""The activations h that were tried in vision transformers."""
GELU_TURN = -0.7517915246935645
"""Where GELU is least."""
SOFTPLUS_ENDS = 40.0
"""From here on softplus is the identity in float64. PyTorch's own threshold of 20 makes a step of 2e-9 downward."""
_SEQLEN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "relu2": lambda scores: torch.relu(scores).square(),
    "gelu": F.gelu,
    "softplus": lambda scores: F.softplus(scores, threshold=SOFTPLUS_ENDS),
    "identity": lambda scores: scores,
    "relu6": lambda scores: scores.clamp(0, 6),
    "sigmoid": torch.sigmoid,
}
_SEQLEN_FORMULAS: dict[str, Activation] = {"relu": "relu", "relu2": "relu_squared", "sigmoid": "sigmoid"}


@register("pointwise_seqlen")
@dataclass(frozen=True)
class PointwiseSeqlen(Pointwise):
    """h(s) / n^alpha, the family that was tried in vision transformers (Wortsman et al., 2023).

    With `relu` it is `relu_seqlen`, which takes no alpha of 0. Weights of `gelu` and `identity` may be negative.
    """

    h: SeqlenActivation = "relu"
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if self.h not in _SEQLEN:
            raise ArgumentError(f"rule 'pointwise_seqlen': h is {self.h!r}; {nearest(str(self.h), _SEQLEN)}")
        if not self.alpha >= 0:
            raise ArgumentError(f"rule 'pointwise_seqlen': alpha must not be negative, got {self.alpha}; 1 is usual")

    @property
    def signed(self) -> bool:  # type: ignore[override]
        return self.h in ("gelu", "identity")

    @property
    def turning(self) -> tuple[float, ...]:  # type: ignore[override]
        return (GELU_TURN,) if self.h == "gelu" else ()

    def activate(self, scores: Tensor, n: Tensor) -> Tensor:
        return _SEQLEN[self.h](scores)

    def row_scale(self, n: Tensor) -> Tensor | None:
        return None if self.alpha == 0 else n**-self.alpha

    def formula(self) -> Formula | None:
        known = _SEQLEN_FORMULAS.get(self.h)
        return super().formula() if known is None else Formula(known, exponent=self.alpha)


@register("relu2")
@dataclass(frozen=True)
class Relu2(Pointwise):
    """ReLU(s)^2 / (gamma sqrt(3n/2)): variance one like `relu`, as E[ReLU(s)^4] = 3/2."""

    gamma: float = 1.0
    learn_gamma: bool = False
    """The layer learns a factor on gamma for each head, started at 1."""

    def __post_init__(self) -> None:
        positive(self, gamma=self.gamma)

    def activate(self, scores: Tensor, n: Tensor) -> Tensor:
        return torch.relu(scores).square()

    def row_scale(self, n: Tensor) -> Tensor:
        return torch.rsqrt(1.5 * n) / self.gamma

    def formula(self) -> Formula | None:
        return Formula("relu_squared", math.sqrt(2 / 3) / self.gamma, 0.5)


@register("rela")
@dataclass(frozen=True)
class Rela(ReluPlain):
    """Rectified linear attention (Zhang, Titov, Sennrich, 2021): the norm does the scaling."""

    output_norm: ClassVar[OutputNorm | None] = "gated_rms_norm"


@register("sigmoid")
@dataclass(frozen=True)
class Sigmoid(Pointwise):
    """sigmoid(s - log n) (Ramapuram et al., 2024): about 1/n a slot at the start."""

    def activate(self, scores: Tensor, n: Tensor) -> Tensor:
        return torch.sigmoid(scores - torch.log(n))

    def formula(self) -> Formula | None:
        return Formula("sigmoid", level=Level(growth=1.0))


# ------------------------------------------------------------------ row-wise rules


@register("softmax")
@dataclass(frozen=True)
class Softmax(Rowwise):
    """exp(s) over its sum."""

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        if visible.ndim:  # the lowest finite number: a row without a visible slot stays finite
            scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        return torch.softmax(scores, dim=-1)

    def formula(self) -> Formula | None:
        return SOFTMAX


@register("softmax_ln")
@dataclass(frozen=True)
class SoftmaxLN(Softmax):
    """softmax, then a LayerNorm on what was read: the paper's cure for softmax in the FFN."""

    output_norm: ClassVar[OutputNorm | None] = "layer_norm"


@register("scalable_softmax")
@dataclass(frozen=True)
class ScalableSoftmax(Softmax):
    """softmax(c log n s): scores grow with the number of slots, so that long rows stay sharp (Nakanishi, 2025)."""

    c: float = 0.43
    """What the paper's heads learn on average; here it is fixed."""

    def __post_init__(self) -> None:
        positive(self, c=self.c)

    def weights(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        return super().weights(scores * (self.c * torch.log(n)), n, visible)

    def formula(self) -> Formula | None:
        return Formula("exp", delta=0.0, log_factor=self.c)


@register("softpick")
@dataclass(frozen=True)
class Softpick(Rowwise):
    """ReLU(e^s - 1) / (epsilon + sum |e^s - 1|): a row sum of at most one, no attention sink (Zuhri et al., 2025)."""

    shift_invariant: ClassVar[bool] = False
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        positive(self, epsilon=self.epsilon)

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        hidden_first = scores.masked_fill(~visible, 0) if visible.ndim else scores
        best = hidden_first.detach().amax(-1, keepdim=True).clamp_min(0)  # both sides are divided by e^best
        away = visible_only(torch.exp(hidden_first - best) - torch.exp(-best), visible if visible.ndim else None)
        return torch.relu(away) / (self.epsilon * torch.exp(-best) + away.abs().sum(-1, keepdim=True))


@register("relu_norm")
@dataclass(frozen=True)
class ReluNorm(RowNormalized):
    """ReLU(s) / (delta + sum ReLU(s)): as sparse as ReLU, with a row sum below one at any n."""

    inner: ClassVar[Pointwise] = ReluPlain()


@dataclass(frozen=True)
class RectifiedExp(Pointwise):
    """ReLU(e^s - 1); scores above 60 count as 60, so that no sum overflows."""

    def activate(self, scores: Tensor, n: Tensor) -> Tensor:
        return torch.relu(torch.expm1(scores.clamp(max=HIGHEST)))

    def formula(self) -> Formula | None:
        return Formula("rectified_exp")


@dataclass(frozen=True)
class RectifiedExpNorm(RowNormalized):
    """ReLU(e^s - 1) / (delta + sum ReLU(e^s - 1)): what `relu_exp` does with centred scores."""

    inner: ClassVar[Pointwise] = RectifiedExp()


@register("relu_exp")
@dataclass(frozen=True)
class ReluExp(RowCentered):
    """ReLU(e^x - 1) / (delta + sum ReLU(e^x - 1)), x the score less the level of its row: ours.

    A single hit among n slots has to outweigh n chance scores: ReLU needs a score that grows with n for that, an
    exponential one that grows with log n, as softmax. Slots below the level weigh exactly nothing. It lies below the
    mean while a row has little contrast, so that all slots learn, and rises with the contrast, which is when softmax
    has little left for most of them.
    """

    delta: float = 0.1
    threshold: float = -1.55
    spread: float = 1.0
    growth: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, delta=self.delta)

    @property
    def core(self) -> RowNormalized:
        return RectifiedExpNorm(self.delta)


@register("relu_chance")
@dataclass(frozen=True)
class ReluChance(ReluExp):
    """`relu_exp` with the level at what chance would reach: ours, for long rows with few nonzero weights.

        level = min(mean + chance sqrt(2 log n) deviation, best score - cap)

    The best of n scores that mean nothing lies about sqrt(2 log n) deviations above their mean. A slot counts if it
    reaches `chance` of that: 0.3 leaves about 14 % of the slots of a long row, 0.5 about 4 %. Without the cap a row of
    one slot, or one whose scores are skewed, would read nothing.
    """

    threshold: float = 0.0
    spread: float = 0.0
    growth: float = 0.0
    cap: float | None = 0.5
    chance: float = 0.3


@register("relu_rest")
@dataclass(frozen=True)
class ReluRest(Formulated, RowCentered):
    """Softmax in two parts, e^x = ReLU(e^x - 1) + min(e^x, 1): the first sparse, the second as a mean: ours.

        w = (ReLU(e^x - 1) + rest / n) / (rest + sum ReLU(e^x - 1))

    x is the score less a level far above the mean of its row, as in `relu_chance`, so few slots have a weight of their
    own. The rest is the sum of min(e^x, 1) over the row, estimated from mean and variance of its scores, and every
    visible slot gets an equal share of it. So a read needs the values of few slots and the mean value of all. A flat
    row reads the mean, as with softmax, and no row dies.
    """

    spread: float = -1.0
    chance: float = 0.6

    def __post_init__(self) -> None:
        if self.cap is not None:
            raise ArgumentError(f"rule '{self.name}': no cap is needed, as no row can die; drop the option `cap`")

    @property
    def core(self) -> RowNormalized:
        return RectifiedExpNorm()

    def formula(self) -> Formula:
        return Formula("rectified_exp", level=self.level, rest=True)


@register("sparsemax")
@dataclass(frozen=True)
class Sparsemax(Rowwise):
    """The point of the simplex nearest to s (Martins and Astudillo, 2016)."""

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        return project("sparsemax", hide(scores, visible))


@register("entmax15")
@dataclass(frozen=True)
class Entmax15(Rowwise):
    """1.5-entmax (Peters, Niculae, Martins, 2019): between softmax and sparsemax."""

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        return project("entmax15", hide(scores, visible))


# ------------------------------------------------------------------ sinks, thresholds and powers


@register("softmax1")
@dataclass(frozen=True)
class Softmax1(Rowwise):
    """e^s / (1 + sum e^s) (Miller, 2023): softmax with a slot without value, whose score is 0.

    A row whose scores are all low reads next to nothing. `sink` of `read` replaces the score 0 of that slot.
    """

    shift_invariant: ClassVar[bool] = False
    learn_sink: bool = False
    """The layer learns the score of the slot without value for each head, started at 0."""

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        if visible.ndim:
            scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        return torch.softmax(torch.cat([scores, torch.zeros_like(scores[..., :1])], dim=-1), dim=-1)[..., :-1]

    def formula(self) -> Formula | None:
        return SOFTMAX1


@register("tra")
@dataclass(frozen=True)
class ThresholdRectified(Pointwise):
    """ReLU(cos(q, k) - beta sqrt(2 ln n / d))^p, threshold rectified attention (arXiv 2601.12145).

    The scores of queries and keys of RMS 1 (`qk_norm` of a layer) are s = sqrt(d) cos(q, k), so the weight is
    ReLU(s - beta sqrt(2 ln n))^p / d^(p/2). The best of n scores that mean nothing lies near sqrt(2 ln n).
    """

    turning: ClassVar[tuple[float, ...] | None] = ()
    beta: float = 1.0
    p: int = 2
    width: int = 1
    """d, the width of a head, for weights as in the paper; it is a factor of the read."""

    def __post_init__(self) -> None:
        positive(self, p=self.p, width=self.width)

    def activate(self, scores: Tensor, n: Tensor) -> Tensor:
        return torch.relu(scores - self.beta * torch.sqrt(2 * torch.log(n))) ** self.p

    def row_scale(self, n: Tensor) -> Tensor | None:
        return None if self.width == 1 else torch.full_like(n, self.width ** (-self.p / 2))

    def formula(self) -> Formula | None:
        if self.p not in (1, 2):
            return super().formula()
        activation: Literal["relu", "relu_squared"] = "relu" if self.p == 1 else "relu_squared"
        return Formula(activation, self.width ** (-self.p / 2), level=Level(chance=self.beta))


@register("polynomial")
@dataclass(frozen=True)
class Polynomial(Pointwise):
    """s^p / sqrt(n), with its sign (arXiv 2410.18613): a read whose variance does not grow with n.

    Weights may be negative, so the entropy of a row, and whether it is dead, mean little.
    """

    signed: ClassVar[bool] = True
    p: int = 3
    """A whole number, as scores below zero have no other power."""

    def __post_init__(self) -> None:
        positive(self, p=self.p)
        if self.p != math.floor(self.p):
            raise ArgumentError(
                f"rule '{self.name}': p must be a whole number, got {self.p!r}, as scores below zero have no other "
                f"power; use {math.ceil(self.p)}"
            )

    @property
    def turning(self) -> tuple[float, ...]:  # type: ignore[override]
        return () if self.p % 2 else (0.0,)

    def activate(self, scores: Tensor, n: Tensor) -> Tensor:
        return scores**self.p

    def row_scale(self, n: Tensor) -> Tensor:
        return torch.rsqrt(n)
