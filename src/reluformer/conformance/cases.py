"""The grid: rule x pattern x padding x dtype, and the tensors of each case.

Tolerances, once: errors are relative to the largest entry of the expected tensor. float32
may be off by 2e-5: sums of a few dozen products, each within 6e-8. bfloat16 is judged by
its Frobenius norm, 4e-2, since a score within rounding of zero may switch its slot. The
gradient of an entropy holds log w, so a weight of 1e-4 that is off by 1e-7 moves it by
1e-3: that is its tolerance.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import reluformer as rf
from reluformer import kernels
from reluformer.errors import ArgumentError, nearest
from reluformer.kernels import parts, sdpa
from reluformer.memory import RowStats
from reluformer.rules import Rule

Read = Callable[..., Any]

functions: dict[str, Read] = {}
"""Functions under test that were passed from Python, by "module:name"."""

PATTERNS = (
    *("self", "causal", "decode", "cross", "ffn", "long"),
    *("grouped", "window", "packed", "sink", "gated", "forgetting"),
)
LONG = ("long", "forgetting")
"""Patterns of several hundred slots, past the first tile of any kernel."""
RANGED = ("grouped", "window", "packed", "sink", "gated")
"""Patterns of language models, which are read in float32: a sink by softmax rules, the others by every rule."""
PADDINGS = ("full", "ragged", "empty_row")
DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}
ENTROPY_GRADIENT_TOLERANCE = 1e-3


VARIANTS = {"pointwise_seqlen": ("relu2", "gelu", "softplus", "identity", "relu6", "sigmoid")}
"""Values of the first option of a rule that make another activation of it, beside its default."""


def expanded(names: Sequence[str]) -> list[str | Rule]:
    """Returns rules by name, each followed by its variants.

    Example:
        >>> [label(rule) for rule in expanded(["relu", "pointwise_seqlen"])][:3]
        ['relu', 'pointwise_seqlen', 'pointwise_seqlen_relu2']
    """
    found: list[str | Rule] = []
    for name in names:
        found += [name, *(rf.rules.get({"name": name, "h": h}) for h in VARIANTS.get(name, ()))]
    return found


def label(rule: str | Rule) -> str:
    """Returns the name of a rule, with the activation of a variant."""
    return rule if isinstance(rule, str) else f"{rule.name}_{getattr(rule, 'h', '')}"


@dataclass(frozen=True)
class Case:
    """One read of the grid. Its id shows everything: relu-causal-ragged-float32-B3-H2-Q17-K17-D8."""

    rule: str | Rule
    pattern: str
    padding: str
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """B, H, Tq, Tk and d; they are odd, so that no tile fits."""
        queries, slots = {
            "self": (17, 17),
            "causal": (17, 17),
            "decode": (3, 19),
            "cross": (5, 23),
            "ffn": (7, 40),
            "long": (150, 300),
            "grouped": (13, 19),
            "window": (13, 19),
            "packed": (23, 23),
            "sink": (13, 19),
            "gated": (13, 19),
            "forgetting": (300, 300),
        }[self.pattern]
        return 1 if self.pattern == "packed" else 3, 2 * self.group, queries, slots, 9

    @property
    def group(self) -> int:
        """How many heads of queries share the keys of one head."""
        return 3 if self.pattern in ("grouped", "forgetting") else 1

    @property
    def prunes(self) -> bool:
        """Whether the gate is so steep that the CPU kernel proves slots away.

        The others keep to gentle gates: softmax would underflow in float32, and the exponentials of centred rules
        multiply the rounding of so large sums (tests/kernels/test_parts.py prunes these).
        """
        formula = rf.rules.formula_of(rf.rules.get(self.rule)) if self.pattern == "forgetting" else None
        return formula is not None and formula.activation in parts.ZERO_BELOW and not formula.centred

    def __str__(self) -> str:
        b, h, q, k, d = self.shape
        return f"{label(self.rule)}-{self.pattern}-{self.padding}-{str(self.dtype)[6:]}-B{b}-H{h}-Q{q}-K{k}-D{d}"

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns the differentiable inputs, rounded to the dtype of the case, and the options of `read`."""
        # Among the 270,000 scores of a long case some lie so near to zero that float32 cannot tell their logarithm;
        # with this seed the nearest is 2e-5. Large sums of gates round the scores; with the seed of a steep gate the
        # nearest to zero is 20 times further away than that.
        seed = 20230216 if self.pattern == "long" else 20230219 if self.prunes else 20230213
        generator = torch.Generator().manual_seed(seed)
        b, h, q, k, d = self.shape

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(self.dtype)

        shared = h // self.group
        inputs = {"q": draw(b, h, q, d), "k": draw(b, shared, k, d), "v": draw(b, shared, k, d)}
        options: dict[str, Any] = {"rule": self.rule, "causal": self.pattern not in ("self", "cross", "ffn", "window")}
        if self.pattern == "window":
            options["window"] = (5, 2)
        elif self.pattern == "packed":
            options["offsets"] = torch.tensor([0, 6, 6, 17, 23])
        elif self.pattern == "sink":
            inputs["sink"] = draw(h)
        elif self.pattern in ("gated", "forgetting"):  # memories of a few slots to a few hundred
            rate = torch.logspace(-2.5, -0.35 if self.prunes else -1.1, h)[:, None]
            inputs["gate"] = torch.cumsum(-rate * (1 + 0.3 * draw(b, h, k).float().abs()), dim=-1).to(self.dtype)
        if self.pattern == "ffn":  # learned slots: one scale-free score and a key bias
            inputs["bias"] = draw(1, 1, 1, k)
            options["scale"] = d**-0.25
        if self.pattern == "packed" and self.padding != "full":  # some slots of each sequence
            options["key_mask"] = torch.arange(k)[None] % 5 > 0
        elif self.padding != "full":
            lengths = [k, k - 4, 0 if self.padding == "empty_row" else 2]
            options["key_mask"] = torch.arange(k) < torch.tensor(lengths)[:, None]
        return inputs, options


def grid(rules: Sequence[str] | None = None) -> list[Case]:
    """Returns all cases of some or all rules; of the larger patterns only what small ones do not cover."""
    cases = [Case(*choice) for choice in product(expanded(rules or rf.rules.names()), PATTERNS, PADDINGS, DTYPES)]
    return [case for case in cases if _worthwhile(case)]


def _worthwhile(case: Case) -> bool:
    if case.pattern == "sink" and not sdpa.knows(rf.rules.formula_of(rf.rules.get(case.rule))):
        return False
    if case.pattern in LONG or case.pattern in RANGED:
        return case.dtype is torch.float32 and case.padding in (
            ("full",) if case.pattern == "forgetting" else ("full", "ragged")
        )
    return True


def distinct(rules: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of rules without blanks and without repetition."""
    return tuple(dict.fromkeys(rule.strip() for rule in rules if rule.strip()))


def check_rules(impl: str, rules: Sequence[str]) -> None:
    """Raise an ArgumentError if a rule does not exist, none is named, or a built-in implementation reads none."""
    known = rf.rules.names()
    for rule in distinct(rules):
        if rule not in known:
            raise ArgumentError(f"--rules: unknown rule '{rule}'; {nearest(rule, known)}")
    refusals = [_refusal(impl, rule, False, False) for rule in distinct(rules)]
    if None not in refusals:
        raise ArgumentError(f"--rules: {'; '.join(str(reason) for reason in refusals) or 'name at least one rule'}")


def parameters(
    impl: str, item: str, rules: Sequence[str] | None = None, stats: bool = False, mask: bool = False
) -> list[Any]:
    """Returns the pairs (impl, case) or (impl, rule) that `impl` can read, as parameters of a test.

    What a function of another package can read is found out by calling it: the `read` fixture skips what it refuses.
    For a built-in implementation that this machine cannot run there is one parameter, skipped with the reason.

    Args:
        impl: a built-in implementation, or "package:function".
        item: "case" for the grid, "rule" for the names of rules.
        rules: the names of the rules to test; the default is every rule.
        stats: whether the test asks for row statistics; then bfloat16 is left out.
        mask: whether the test passes a dense mask.
    """
    items: list[Any] = expanded(rules or rf.rules.names())
    if item == "case":
        items = [case for case in grid(rules) if not stats or _has_statistics(case)]
    read = [each for each in items if _refusal(impl, each, stats, mask) is None]
    if not read and (state := kernels.availability().get(impl, "")).startswith("not available: "):
        skip = pytest.mark.skip(reason=f"{impl}: {state.removeprefix('not available: ')}")
        return [pytest.param(impl, items[0], id=impl, marks=skip)]
    return [pytest.param(impl, each, id=f"{impl}-{each if isinstance(each, Case) else label(each)}") for each in read]


def _has_statistics(case: Case) -> bool:
    """Returns whether float32 can tell the statistics: logarithms of row sums that cancel have no digits."""
    return case.dtype is torch.float32 and not rf.rules.get(case.rule).signed


def _refusal(impl: str, item: Case | Rule | str, stats: bool, mask: bool) -> str | None:
    """Returns why a built-in implementation cannot read a case or rule, or None if it can."""
    if ":" in impl:
        return None
    case = item if isinstance(item, Case) else Case(item, "self", "full", torch.float32)
    q, k = (torch.zeros(1, heads, 2, 8, dtype=case.dtype) for heads in (case.group, 1))
    dense = torch.ones(2, 2, dtype=torch.bool) if mask else None
    window = (1, 1) if case.pattern == "window" else None
    offsets = torch.tensor([0, 1, 2]) if case.pattern == "packed" else None
    visibility = kernels.Visibility(2, 2, q.device, mask=dense, window=window, offsets=offsets)
    rule, gate = rf.rules.get(case.rule), torch.zeros(2) if case.pattern in ("gated", "forgetting") else None
    return kernels.refusal(impl, q, k, k, rule, visibility, None, stats, gate)


def implementation(name: str) -> Read:
    """Returns `read` with a built-in implementation, or a function of a package or of the current folder."""
    if ":" not in name:
        if name not in kernels.IMPLEMENTATIONS:
            raise ArgumentError(f"--impl {name}: {nearest(name, kernels.IMPLEMENTATIONS)}, or PACKAGE:FUNCTION")
        return partial(rf.read, impl=name)
    if name in functions:
        return functions[name]
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:  # as `python -m pytest` has it, but not `pytest`
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ModuleNotFoundError as error:
        raise ArgumentError(f"--impl {name}: {error}; run pytest in the folder that holds it") from None
    except Exception as error:
        raise ArgumentError(f"--impl {name}: cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ArgumentError(f"--impl {name}: module '{module}' has no function '{function}'")
    return found  # type: ignore[no-any-return]


def run(read: Read, inputs: dict[str, Tensor], options: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the read, and the gradient of a fixed random functional of it for each input."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    out = read(*_given(leaves), **_named(leaves), **options)
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(7)).to(out.dtype)
    gradients = torch.autograd.grad((out * probe).sum(), list(leaves.values()))
    return out.detach(), dict(zip(leaves, gradients, strict=True))


def run_stats(read: Read, inputs: dict[str, Tensor], options: dict[str, Any]) -> tuple[RowStats, dict[str, Tensor]]:
    """Returns the row statistics, and the gradient of row sums and entropies."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    _, stats = read(*_given(leaves), **_named(leaves), return_stats=True, **options)
    probe = torch.linspace(0.5, 1.5, stats.row_sum.numel(), dtype=stats.row_sum.dtype).view_as(stats.row_sum)
    gradients = torch.autograd.grad(
        (probe * (stats.row_sum + stats.entropy)).sum(), list(leaves.values()), allow_unused=True
    )
    zeros = [torch.zeros_like(leaf) for leaf in leaves.values()]
    filled = [zero if gradient is None else gradient for gradient, zero in zip(gradients, zeros, strict=True)]
    return stats, dict(zip(leaves, filled, strict=True))


def _given(inputs: dict[str, Tensor]) -> list[Tensor]:
    return [inputs[name] for name in ("q", "k", "v")]


def _named(inputs: dict[str, Tensor]) -> dict[str, Tensor | None]:
    return {"bias": inputs.get("bias"), **{name: inputs[name] for name in ("gate", "sink") if name in inputs}}


def in_float64(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the inputs in float64."""
    return {name: tensor.double() for name, tensor in inputs.items()}


def error(got: Tensor, expected: Tensor, dtype: torch.dtype) -> float:
    """Returns the relative error as the module's docstring defines it; nan if anything is not finite."""
    difference = got.double() - expected
    if dtype is torch.bfloat16:
        return float(difference.norm() / expected.norm().clamp_min(1.0))
    return float(difference.abs().max() / expected.abs().max().clamp_min(1.0))
