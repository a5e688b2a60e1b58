"""Rules: how the scores of one query become weights over the slots it may see.

A rule is frozen data. A *pointwise* rule looks at one score at a time (and at n, the
number of visible slots); a *row-wise* rule looks at the whole row.

    rule          weight of slot j                        output norm
    softmax       exp(s_j) / sum_l exp(s_l)
    softmax_ln    as softmax                              LayerNorm
    relu          ReLU(s_j) / (gamma * sqrt(n / 2))
    relu_plain    ReLU(s_j)
    relu_seqlen   ReLU(s_j) / n^alpha
    relu2         ReLU(s_j)^2 / (gamma * sqrt(3 n / 2))
    rela          as relu_plain                           gated RMS norm
    sigmoid       sigmoid(s_j - log n)
    relu_norm     ReLU(s_j) / (delta + sum_l ReLU(s_l))
    sparsemax     Euclidean projection of s onto the simplex
    entmax15      1.5-entmax of s

The output norm is only a name here: the layer owns its parameters and applies it over
the concatenated heads. A rule of your own is one function:

    @rules.register("gelu_mean")
    def gelu_mean(scores, n):
        return torch.nn.functional.gelu(scores) / n
"""

from __future__ import annotations

import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, cast

import torch
from torch import Tensor

from reluformer.errors import ArgumentError, ReluformerError, UnknownNameError, nearest

OutputNorm = Literal["layer_norm", "gated_rms_norm", "learned_scale"]
ENTRY_POINT_GROUP = "reluformer.rules"


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
        _positive(self, delta=self.delta)

    def weights(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        weights = self.inner.weights(scores, n, visible)
        return weights / (self.delta + weights.sum(-1, keepdim=True))


# ------------------------------------------------------------------ the registry

_registry: dict[str, Callable[..., Rule]] = {}
_defaults: dict[str, Rule] = {}
"""Rules that were asked for by name alone, made once."""
_state = {"entry_points_loaded": False}
R = TypeVar("R", bound=Callable[..., Any])


def register(
    name: str, *, kind: Literal["pointwise", "rowwise"] = "pointwise", output_norm: OutputNorm | None = None
) -> Callable[[R], R]:
    """Decorator that makes a rule known by `name` everywhere.

    On a function: `f(scores, n)` for a pointwise rule, `f(scores, visible)` for a
    row-wise one. On a frozen dataclass derived from `Pointwise` or `Rowwise`: as it is,
    its fields being the options of the rule.
    """

    def decorate(definition: R) -> R:
        if name in _registry and _registry[name] is not definition:
            raise ArgumentError(f"a rule named '{name}' is registered already; choose another name")
        _defaults.pop(name, None)
        if isinstance(definition, type):
            if not issubclass(definition, (Pointwise, Rowwise, RowNormalized)):
                raise ArgumentError(f"rule '{name}': the class must derive from rules.Pointwise or rules.Rowwise")
            definition.name = name
            _registry[name] = definition
        elif callable(definition):
            _registry[name] = _class_from_function(name, definition, kind, output_norm)
        else:
            raise ArgumentError(f"rule '{name}': expected a function or a class, got {type(definition).__name__}")
        return definition

    return decorate


def _class_from_function(
    name: str, function: Callable[..., Tensor], kind: str, output_norm: OutputNorm | None
) -> type[Rule]:
    if kind not in ("pointwise", "rowwise"):
        raise ArgumentError(f"rule '{name}': kind is {kind!r}; valid: pointwise, rowwise")
    base, method = (Pointwise, "activate") if kind == "pointwise" else (Rowwise, "normalize")
    body = {
        "__doc__": function.__doc__,
        "__module__": function.__module__,
        method: lambda self, scores, extra: function(scores, extra),
        "name": name,
        "output_norm": output_norm,
    }
    return dataclass(frozen=True)(type(name, (base,), body))


def names() -> tuple[str, ...]:
    """Every registered rule, those of installed entry points included."""
    _load_entry_points()
    return tuple(_registry)


def get(rule: str | Mapping[str, Any] | Rule) -> Rule:
    """A rule from its name, from `{"name": ..., option: ...}`, or as it is."""
    if isinstance(rule, Rule):
        return rule
    if isinstance(rule, str) and rule in _defaults:
        return _defaults[rule]
    if isinstance(rule, Mapping):
        options = dict(rule)
        name = options.pop("name", None)
    else:
        name, options = rule, {}
    if not isinstance(name, str):
        raise ArgumentError(
            f"rule: expected a name, a mapping with 'name', or a rule object, got {type(rule).__name__} {rule!r}"
        )
    if name not in _registry:
        _load_entry_points()
    if name not in _registry:
        raise UnknownNameError(
            f"unknown rule '{name}'; {nearest(name, _registry)}; --plugin FILE adds rules of your own"
        )
    factory = _registry[name]
    valid = [field.name for field in fields(cast(Any, factory))] if options else []
    for option in options:
        if option not in valid:
            raise ArgumentError(
                f"rule '{name}' has no option '{option}'; {nearest(option, valid) if valid else 'it takes none'}"
            )
    made = factory(**options)
    if not options:
        _defaults[name] = made
    return made


def spec(rule: Rule) -> str | dict[str, Any]:
    """What `get` turns back into an equal rule: the name, or a mapping where options differ."""
    options = {f.name: getattr(rule, f.name) for f in fields(rule) if getattr(rule, f.name) != f.default}
    return {"name": rule.name, **options} if options else rule.name


def load_plugin(path: str | Path) -> tuple[str, ...]:
    """Run a Python file of the user's that registers rules; the names it added."""
    path = Path(path)
    if not path.is_file():
        raise ArgumentError(f"--plugin {path}: no such file")
    before = set(_registry)
    module_spec = importlib.util.spec_from_file_location(f"reluformer_plugin_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise ArgumentError(f"--plugin {path}: not a Python file; its name must end in .py")
    try:
        module_spec.loader.exec_module(importlib.util.module_from_spec(module_spec))
    except ReluformerError:
        raise
    except Exception as error:
        raise ArgumentError(f"--plugin {path}: {type(error).__name__}: {error}") from error
    added = tuple(name for name in _registry if name not in before)
    if not added:
        raise ArgumentError(f"--plugin {path}: registers no rule; decorate a function with @reluformer.rules.register")
    return added


def _load_entry_points() -> None:
    """Rules of installed packages: an entry point of the group names a function, class or module."""
    if _state["entry_points_loaded"]:
        return
    _state["entry_points_loaded"] = True
    for entry in metadata.entry_points(group=ENTRY_POINT_GROUP):
        definition = entry.load()  # a module registers its rules while it is imported
        if callable(definition) and not any(known is definition for known in _registry.values()):
            if entry.name not in _registry:
                register(entry.name)(definition)


def _positive(rule: Rule, **options: float) -> None:
    for option, value in options.items():
        if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise ArgumentError(f"rule '{rule.name}': {option} must be a positive number, got {value!r}")


# ------------------------------------------------------------------ pointwise rules


@register("relu_plain")
@dataclass(frozen=True)
class ReluPlain(Pointwise):
    """ReLU(s): the plain feed-forward layer. In attention its variance grows with n."""

    homogeneity: ClassVar[int | None] = 1

    def activate(self, scores: Tensor, n: Tensor) -> Tensor:
        return torch.relu(scores)


@register("relu")
@dataclass(frozen=True)
class Relu(ReluPlain):
    """ReLU(s) / (gamma sqrt(n/2)): the paper's rule, a read of variance one at any n."""

    gamma: float = 1.0
    learn_gamma: bool = False
    """The layer learns a factor on gamma for each head, started at 1."""

    def __post_init__(self) -> None:
        _positive(self, gamma=self.gamma)

    def row_scale(self, n: Tensor) -> Tensor:
        return torch.rsqrt(n / 2) / self.gamma


@register("relu_seqlen")
@dataclass(frozen=True)
class ReluSeqlen(ReluPlain):
    """ReLU(s) / n^alpha (Wortsman et al., 2023)."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        _positive(self, alpha=self.alpha)

    def row_scale(self, n: Tensor) -> Tensor:
        return n**-self.alpha


@register("relu2")
@dataclass(frozen=True)
class Relu2(Pointwise):
    """ReLU(s)^2 / (gamma sqrt(3n/2)): variance one like `relu`, as E[ReLU(s)^4] = 3/2."""

    homogeneity: ClassVar[int | None] = 2
    gamma: float = 1.0
    learn_gamma: bool = False
    """The layer learns a factor on gamma for each head, started at 1."""

    def __post_init__(self) -> None:
        _positive(self, gamma=self.gamma)

    def activate(self, scores: Tensor, n: Tensor) -> Tensor:
        return torch.relu(scores).square()

    def row_scale(self, n: Tensor) -> Tensor:
        return torch.rsqrt(1.5 * n) / self.gamma


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


# ------------------------------------------------------------------ row-wise rules


@register("softmax")
@dataclass(frozen=True)
class Softmax(Rowwise):
    """exp(s) over its sum."""

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        if visible.ndim:  # the lowest finite number: a row without a visible slot stays finite
            scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        return torch.softmax(scores, dim=-1)


@register("softmax_ln")
@dataclass(frozen=True)
class SoftmaxLN(Softmax):
    """softmax, then a LayerNorm on what was read: the paper's cure for softmax in the FFN."""

    output_norm: ClassVar[OutputNorm | None] = "layer_norm"


@register("relu_norm")
@dataclass(frozen=True)
class ReluNorm(RowNormalized):
    """ReLU(s) / (delta + sum ReLU(s)): as sparse as ReLU, with a row sum below one at any n."""

    inner: ClassVar[Pointwise] = ReluPlain()


def _hide(scores: Tensor, visible: Tensor) -> Tensor:
    """Hidden slots 4 below the best visible one, where sparse rules give exactly 0.

    sparsemax cuts at most 1 below the maximum and 1.5-entmax at most 2, so the visible
    weights do not notice the hidden slots, and no infinity enters the sums.
    """
    if not visible.ndim:
        return scores
    lowest = torch.finfo(scores.dtype).min
    best = scores.detach().masked_fill(~visible, lowest).amax(-1, keepdim=True)
    floor = torch.where(best == lowest, torch.zeros_like(best), best - 4)
    return torch.where(visible, scores, floor)


@register("sparsemax")
@dataclass(frozen=True)
class Sparsemax(Rowwise):
    """The point of the simplex nearest to s (Martins and Astudillo, 2016)."""

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        from entmax import sparsemax

        return cast(Tensor, sparsemax(_hide(scores, visible), dim=-1))


@register("entmax15")
@dataclass(frozen=True)
class Entmax15(Rowwise):
    """1.5-entmax (Peters, Niculae, Martins, 2019): between softmax and sparsemax."""

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        from entmax import entmax15

        return cast(Tensor, entmax15(_hide(scores, visible), dim=-1))
