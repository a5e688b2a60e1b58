"""Implementations of one read, and the choice among them.

`run` reads any memory and `read_learned` one whose slots were learned. Both match on the `rules.Formula` of the rule:
what has none, or one that an implementation does not know, is read by the reference.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from reluformer.errors import ArgumentError, UnknownNameError, nearest
from reluformer.kernels import cpu, derivatives, nonfinite, parts, reference, sdpa, triton
from reluformer.kernels.moments import level_bias
from reluformer.kernels.native.library import LOG_N
from reluformer.kernels.operands import Bias, Gate, GateOn, RowKeyBias, Visibility, Window, with_gate
from reluformer.kernels.products import linear
from reluformer.kernels.reference import RowStats
from reluformer.rules import Formula, Pointwise, Rule, formula_of

__all__ = [
    "IMPLEMENTATIONS",
    "Bias",
    "GateOn",
    "RowKeyBias",
    "RowStats",
    "Visibility",
    "Window",
    "availability",
    "fastest",
    "learning_pays",
    "read_learned",
    "refusal",
    "run",
    "skipped_share",
]

IMPLEMENTATIONS = ("auto", "reference", "sdpa", "cpu", "cpu_dense", "cpu_sparse", "triton")
"""`cpu` reads rows with few nonzero weights sparsely; `cpu_dense` and `cpu_sparse` force one way for all rows."""


def run(
    impl: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rule: Rule,
    visibility: Visibility,
    bias: Bias | None,
    scale: float,
    stats: bool,
    gate: Gate | None = None,
    sink: Tensor | None = None,
    approximate: bool = False,
    gate_on: GateOn = "scores",
) -> tuple[Tensor, RowStats | None]:
    """Read with `impl`.

    Args:
        impl: one of `IMPLEMENTATIONS`; "auto" takes the fastest that can do the read.
        q: (B, H, Tq, d).
        k: (B, Hk, Tk, d); Hk divides H.
        v: (B, Hk, Tk, dv).
        rule: the rule.
        visibility: which slots each query sees.
        bias: a bias of the scores.
        scale: the factor of the scores.
        stats: whether row statistics are asked for.
        gate: cumulative sums of log forget gates, broadcasts to (B, H, Tk).
        sink: (H,), the score of a slot without value that every query sees; for softmax.
        approximate: whether fused softmax may leave out slots whose weights together are below e^-10.
        gate_on: whether the gate is added to the scores or multiplies the weights; only the reference does that.

    Returns:
        The read (B, H, Tq, dv), and its row statistics or None.

    Raises:
        UnknownNameError: there is no such implementation.
        ArgumentError: the implementation cannot do this read.
    """
    if impl not in IMPLEMENTATIONS:
        raise UnknownNameError(f"unknown impl '{impl}'; {nearest(impl, IMPLEMENTATIONS)}")
    formula = formula_of(rule)
    multiplies = gate is not None and gate_on == "weights"
    if gate is not None and not multiplies and not rule.centred:
        bias, gate = with_gate(bias, gate, visibility.queries), None
    if multiplies and impl not in ("auto", "reference"):
        raise ArgumentError(
            f"impl='{impl}' takes no gate on the weights; use impl='auto', which takes the reference, or "
            "gate_on='scores'"
        )
    if impl == "auto":
        chosen = "reference" if multiplies else _fastest(q, k, v, formula, visibility, bias, stats, gate)
    elif reason := refusal(impl, q, k, v, rule, visibility, bias, stats, gate):
        raise ArgumentError(f"impl='{impl}' cannot read rule '{rule.name}' here: {reason}; use impl='auto'")
    else:
        chosen = impl
    if visibility.everything:
        return _read(chosen, q, k, v, rule, formula, visibility, bias, scale, stats, gate, sink, approximate, gate_on)
    return nonfinite.isolated(
        lambda k, v: _read(
            chosen, q, k, v, rule, formula, visibility, bias, scale, stats, gate, sink, approximate, gate_on
        ),
        q,
        k,
        v,
        visibility,
        exact=chosen in cpu.MODES and (formula is None or not formula.centred),
    )


def _read(
    chosen: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rule: Rule,
    formula: Formula | None,
    visibility: Visibility,
    bias: Bias | None,
    scale: float,
    stats: bool,
    gate: Gate | None,
    sink: Tensor | None,
    approximate: bool,
    gate_on: GateOn,
) -> tuple[Tensor, RowStats | None]:
    """Read with an implementation that can do it; the arguments are those of `run`."""
    if chosen == "reference":
        return reference.read(q, k, v, rule, visibility, bias, scale, stats, gate, sink, gate_on)
    assert formula is not None
    if chosen == "sdpa":
        return sdpa.read(q, k, v, formula, visibility, bias, scale, sink, approximate), None
    if chosen == "triton":
        if formula.level is not None and formula.level != LOG_N:
            bias = level_bias(q, k, formula.level, visibility, bias, scale)
            formula = formula.without_level()
        return triton.read(q, k, v, formula, visibility, bias, scale, stats)
    return parts.read(q, k, v, formula, visibility, bias, scale, stats, chosen, gate)


def skipped_share(q: Tensor, k: Tensor, rule: Rule, visibility: Visibility, gate: Gate, scale: float) -> float:
    """Returns the share of the pairs of a causal read that the CPU kernel proves to have no weight; see `memory`."""
    formula = formula_of(rule)
    if formula is None or refusal("cpu", q, k, k, rule, visibility, None, False):
        return 0.0
    return parts.skipped_share(q, k, formula, visibility, gate, scale)


def refusal(
    impl: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rule: Rule,
    visibility: Visibility,
    bias: Bias | None,
    stats: bool,
    gate: Gate | None = None,
) -> str | None:
    """Returns why `impl` cannot do this read, or None if it can. The arguments are those of `run`."""
    formula = formula_of(rule)
    if gate is not None and not rule.centred:
        gate = None  # it is a bias of rows and keys
    if impl != "reference" and 0 in (q.size(-1), v.size(-1)):
        return "the heads have width 0"
    if impl == "sdpa":
        return sdpa.refusal(formula, stats)
    if impl in cpu.MODES:
        return _beyond_kernel(q, formula, visibility, gate) or cpu.refusal(q, formula, visibility, bias, impl, stats)
    if impl == "triton":
        return _beyond_triton(q, k, visibility, gate) or triton.refusal(q, k, v, formula, visibility, bias)
    return None


def _beyond_kernel(q: Tensor, formula: Formula | None, visibility: Visibility, gate: Gate | None) -> str | None:
    """Returns what of the operands of language models the CPU kernel cannot take in parts, or None."""
    if visibility.window is not None and visibility.window != (None, None):
        return "it takes no window"
    if gate is not None and formula is not None and formula.rest:
        return "it takes no gate beside the rest of a row"
    traced = not derivatives.eager(q) and visibility.offsets is not None
    return "it takes no offsets where a compiler traces" if traced else None


def _beyond_triton(q: Tensor, k: Tensor, visibility: Visibility, gate: Gate | None) -> str | None:
    """Returns which of the operands of language models the Triton kernel does not take, or None."""
    if q.size(1) != k.size(1):
        return "it takes as many heads of keys as of queries"
    if visibility.ranged:
        return "it takes no window and no offsets"
    return None if gate is None else "it takes no gate beside the level of centred rules"


def fastest(q: Tensor, k: Tensor, v: Tensor, rule: Rule, visibility: Visibility, bias: Bias | None, stats: bool) -> str:
    """Returns the name of the fastest implementation that can do this read.

    Operators that ONNX does not have stay out of its graphs, and Triton is never chosen: nobody has run it on a GPU.
    Where a derivative is asked for that compiled operators do not have (derivatives.py), it is the reference.
    """
    return _fastest(q, k, v, formula_of(rule), visibility, bias, stats, None)


def _fastest(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    formula: Formula | None,
    visibility: Visibility,
    bias: Bias | None,
    stats: bool,
    gate: Gate | None,
) -> str:
    if formula is None or 0 in (q.size(-1), v.size(-1)):
        return "reference"
    fused = sdpa.knows(formula) and not stats
    if not fused and not cpu.pays(q, k, v, formula, visibility, stats):  # first, as a small read notices each question
        return "reference"
    if derivatives.unsupported() or (_traced() and torch.onnx.is_in_onnx_export()):
        return "reference"
    if fused:
        return "sdpa"
    if _beyond_kernel(q, formula, visibility, gate) or cpu.refusal(q, formula, visibility, bias, stats=stats):
        return "reference"
    return "cpu"


def learning_pays(x: Tensor, keys: Tensor, rule: Rule, bias: Tensor | None = None) -> bool:
    """Returns whether training a read of learned slots is faster through `run` with impl="cpu" than `read_learned` is.

    Args:
        x: the tokens, (..., width).
        keys: the learned keys, (slots, width).
        rule: the rule.
        bias: (slots,), added to the scores.
    """
    formula = formula_of(rule)
    return formula is not None and cpu.learning_pays(x, keys, formula, bias)


def read_learned(
    scores: Tensor,
    values: Tensor,
    rule: Rule,
    bias: Tensor | None = None,
    value_rows: Callable[[], Tensor] | None = None,
) -> Tensor:
    """Read learned slots, all of them visible to every query: rule(scores) V^T + bias.

    With every slot visible two dense products are faster than any tiled read. For a few rows with many zeros only the
    values of slots that fired are read; that path has no gradient.

    Args:
        scores: (..., slots), against the learned keys.
        values: (width, slots), as `nn.Linear` stores them.
        rule: the rule.
        bias: (width,), added to what was read.
        value_rows: returns `values` as contiguous rows (slots, width); pass it where no gradient is needed.

    Returns:
        (..., width).
    """
    exact = torch.float64 if scores.dtype == torch.float64 else torch.float32
    n = torch.as_tensor(scores.size(-1), dtype=exact)  # a scalar, so that it decides no dtype
    if isinstance(rule, Pointwise):
        activations, row_scale = rule.activations(scores, n, None), rule.row_scale(n)
    else:
        activations, row_scale = rule.weights(scores, n, None), None
    if row_scale is not None:
        read = linear(activations, values) * row_scale
        return read if bias is None else read + bias
    formula = formula_of(rule)
    gathers = value_rows is not None and formula is not None and formula.is_relu and not _traced()
    if not gathers or derivatives.unsupported() or not cpu.gathering_pays(activations, values.size(0)):
        return linear(activations, values, bias)
    assert value_rows is not None
    read = cpu.gather_values(activations, value_rows())
    return read if bias is None else read + bias


def _traced() -> bool:
    """Returns whether a tracer records this call, so that nothing may depend on the numbers."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]


def availability() -> dict[str, str]:
    """Returns for each implementation what it is on this machine, or why it cannot be used."""
    return {
        "reference": "available: any rule, device and dtype",
        "sdpa": "available: softmax without statistics",
        "cpu": cpu.description(),
        "cpu_dense": cpu.description(", every row densely"),
        "cpu_sparse": cpu.description(", every row sparsely"),
        "triton": f"not available: {reason}" if (reason := triton.unavailable()) else "available",
    }
