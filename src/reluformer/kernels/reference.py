"""The specification: dense scores, the rule, one product. Any device, any dtype, any rule.

    s = scale * q k^T + bias;  w = rule(s) on visible slots, 0 elsewhere;  out = w v

A gate adds c_i - c_j to the scores, or multiplies the weights by exp(c_i - c_j), as `GateOn` says.

Every other implementation is compared to this one in float64. It is also made not to be
slower than the obvious four lines: the scale is applied to q and the row scale of a
pointwise rule to the read, both far smaller than the scores, and no copy of the scores
is kept for the backward pass.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from reluformer.kernels.operands import (
    Bias,
    Gate,
    GateOn,
    RowKeyBias,
    Visibility,
    dense_bias,
    grouped_product,
    with_gate,
    with_rows,
)
from reluformer.rules import Pointwise, Rule

BLOCK = 512
"""Rows of a block, where a window or packed sequences bound the slots that rows see."""


def read(
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
    gate_on: GateOn = "scores",
) -> tuple[Tensor, RowStats | None]:
    """Read (B,H,Tq,d), (B,Hk,Tk,d), (B,Hk,Tk,dv) -> (B,H,Tq,dv), with the row statistics if `stats`.

    `gate` is for weights and for rules of centred scores, and `sink` for softmax; see `memory.read`.
    """
    if visibility.ranged and visibility.queries > BLOCK and not torch.compiler.is_compiling():
        return _by_blocks(q, k, v, rule, visibility, bias, scale, stats, gate, sink, gate_on)
    if stats:
        dense, statistics = weights(q, k, rule, visibility, bias, scale, gate, sink, gate_on)
        return grouped_product(dense.to(v.dtype), v), statistics
    if gate is not None or sink is not None or not isinstance(rule, Pointwise):
        scores, n = _scores(q, k, bias, scale, rule), _counts(visibility, q)
        return grouped_product(_weights(rule, scores, n, visibility, gate, sink, gate_on).to(v.dtype), v), None
    if visibility.everything and not torch.compiler.is_dynamo_compiling():  # a number from a tensor breaks its graph
        n, row_scale, folds = _uniform(type(rule), rule, visibility.slots)
        if folds and bias is None and row_scale is not None:
            scale, row_scale = scale * row_scale, None  # c ReLU(s) = ReLU(c s)
        out = grouped_product(rule.activate(_scores(q, k, bias, scale, rule), n).to(v.dtype), v)
        return (out if row_scale is None else out * row_scale), None
    n = _counts(visibility, q)
    activations = rule.activations(_scores(q, k, bias, scale, rule), n, visibility.dense())
    out = grouped_product(activations.to(v.dtype), v)
    row_factor = rule.row_scale(n)
    return (out if row_factor is None else out * row_factor.to(out.dtype)), None


def _by_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rule: Rule,
    visibility: Visibility,
    bias: Bias | None,
    scale: float,
    stats: bool,
    gate: Gate | None,
    sink: Tensor | None,
    gate_on: GateOn,
) -> tuple[Tensor, RowStats | None]:
    """Read block after block of rows, each against the range of slots that its rows see, and no others."""
    added = dense_bias(bias) if isinstance(bias, Tensor) else None
    moved = None if gate is None else with_gate(None, gate, visibility.queries)
    found = []
    for block, slots, inside in visibility.blocks(BLOCK):
        own: Bias | None = bias if added is None else _part(added, block, slots, visibility)
        if isinstance(bias, RowKeyBias):
            own = _terms(bias, block, slots)
        gated = _terms(moved, block, slots) if isinstance(moved, RowKeyBias) else None
        part = (q[:, :, block], k[:, :, slots], v[:, :, slots])
        found.append(read(*part, rule, inside, own, scale, stats, gated, sink, gate_on))
    out = torch.cat([out for out, _ in found], dim=2)
    if not stats:
        return out, None
    rows = zip(*(row for _, row in found if row is not None), strict=True)
    return out, RowStats(*(torch.cat(row, dim=2) for row in rows))


def _part(x: Tensor, rows: slice, slots: slice, visibility: Visibility) -> Tensor:
    """Returns the part of a dense bias that belongs to some rows and slots."""
    x = with_rows(x)
    return x.expand(*x.shape[:-2], visibility.queries, visibility.slots)[..., rows, slots]


def _terms(bias: RowKeyBias, rows: slice, slots: slice) -> RowKeyBias:
    """Returns the terms of some rows and slots; a single term stands for all."""
    return RowKeyBias(
        bias.rows if bias.rows.size(-1) == 1 else bias.rows[..., rows],
        bias.keys if bias.keys.size(-1) == 1 else bias.keys[..., slots],
    )


def _weights(
    rule: Rule,
    scores: Tensor,
    n: Tensor,
    visibility: Visibility,
    gate: Gate | None,
    sink: Tensor | None,
    gate_on: GateOn = "scores",
) -> Tensor:
    """Returns the weights of dense scores (B, H, Tq, Tk), with a gate or a sink where there is one."""
    visible = visibility.dense()
    if gate is not None and gate_on == "weights":
        moved = dense_bias(with_gate(None, gate, scores.size(-2)))
        assert moved is not None
        if visible is not None:  # what a later slot adds may have no exponential
            moved = moved.masked_fill(~visible, 0)
        return _weights(rule, scores, n, visibility, None, sink) * torch.exp(moved).to(scores.dtype)
    if sink is not None:  # one more slot, which every query sees, which counts for nothing and has no value
        column = sink.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        hidden = scores if visible is None else scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        found = torch.softmax(torch.cat([hidden, column], dim=-1), dim=-1)[..., :-1]
        return found if visible is None else found.masked_fill(~visible, 0)
    if gate is not None:
        moved = dense_bias(with_gate(None, gate, scores.size(-2)))
        assert moved is not None
        return rule.gated_weights(scores, moved.to(scores.dtype), n, visible)
    return rule.weights(scores, n, visible)


@lru_cache(maxsize=1024)
def _uniform(kind: type[Pointwise], rule: Pointwise, slots: int) -> tuple[Tensor, float | None, bool]:
    """Returns what a read of all slots needs: n, the row scale, and whether the scale of the scores may take it.

    n is a scalar tensor, which decides no dtype. `kind` is the class of the rule: equal hashes of rules without
    options would be compared one by one.
    """
    n = torch.tensor(float(max(slots, 1)), dtype=torch.float64, device="cpu")
    row_scale = rule.row_scale(n)
    return n, None if row_scale is None else float(row_scale), rule.homogeneity == 1


def weights(
    q: Tensor,
    k: Tensor,
    rule: Rule,
    visibility: Visibility,
    bias: Bias | None,
    scale: float,
    gate: Gate | None = None,
    sink: Tensor | None = None,
    gate_on: GateOn = "scores",
) -> tuple[Tensor, RowStats]:
    """Returns the weights themselves, (B, H, Tq, Tk), and their statistics."""
    scores, n, visible = _scores(q, k, bias, scale, rule), _counts(visibility, q), visibility.dense()
    dense = _weights(rule, scores, n, visibility, gate, sink, gate_on)
    return dense, row_stats(dense, visible, visibility.counts(), rule.unread(scores.detach(), n, visible))


def _scores(q: Tensor, k: Tensor, bias: Bias | None, scale: float, rule: Rule) -> Tensor:
    """Returns scale * q k^T + bias, at least in float32; for rules of centred scores the products are, too."""
    if rule.wide_scores:
        with without_autocast(q):
            scores = grouped_product(widened(q) * scale, widened(k).transpose(-1, -2))
    else:
        scores = widened(grouped_product(q * scale, k.transpose(-1, -2)))
    added = dense_bias(bias)
    return scores if added is None else scores + added


def _counts(visibility: Visibility, q: Tensor) -> Tensor:
    """Returns n_i as rules take it: at least 1, floating point, (..., Tq, 1)."""
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    return visibility.counts().clamp_min(1).unsqueeze(-1).to(exact)


def widened(x: Tensor) -> Tensor:
    """Returns `x` at least in float32: rules divide by n, which bfloat16 cannot count."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Returns a context in which products of widened tensors stay wide; autocast would round them back."""
    kind = x.device.type
    autocasts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if autocasts else nullcontext()


# ------------------------------------------------------------------ statistics of a row


class RowStats(NamedTuple):
    """Four numbers about each row of weights, (B, H, Tq) each. The first two are differentiable.

    Example:
        >>> weights = torch.tensor([[[[1.0, 3.0, 0.0, 0.0]]]])
        >>> stats = row_stats(weights, None, torch.tensor([4]))
        >>> stats.row_sum.item(), stats.zero_fraction.item(), stats.n_visible.item()
        (4.0, 0.5, 4)
    """

    row_sum: Tensor
    """R, the sum of the weights."""
    entropy: Tensor
    """H = log R - (sum w log w) / R, the entropy of the weights over their sum; 0 where R = 0."""
    zero_fraction: Tensor
    """The share of the visible slots whose weight is exactly 0, or who have none but their share of the rest; 0 where
    nothing is visible."""
    n_visible: Tensor
    """The number of visible slots, int64."""

    @property
    def dead(self) -> Tensor:
        """Whether a row reads nothing; boolean, (B, H, Tq)."""
        return self.row_sum == 0


def w_log_w(weights: Tensor) -> Tensor:
    """Returns w log w, with value and gradient 0 where w <= 0, and for weights whose 1/w^2 would overflow."""
    positive = weights > math.sqrt(torch.finfo(weights.dtype).tiny)
    safe = torch.where(positive, weights, torch.ones_like(weights))
    return safe * safe.log()


def entropy_of(row_sum: Tensor, sum_w_log_w: Tensor) -> Tensor:
    """Returns log R - (sum w log w) / R; 0, with gradient 0, where R <= 0."""
    live = row_sum > 0
    safe = torch.where(live, row_sum, torch.ones_like(row_sum))
    return torch.where(live, safe.log() - sum_w_log_w / safe, torch.zeros_like(row_sum))


def row_stats(weights: Tensor, visible: Tensor | None, n_visible: Tensor, unread: Tensor | None = None) -> RowStats:
    """Returns the statistics of dense weights.

    Args:
        weights: (B, H, Tq, Tk), 0 at hidden slots.
        visible: boolean, broadcasts to weights; None where every slot is visible.
        n_visible: number of visible slots, broadcasts to (B, H, Tq).
        unread: which slots count as zeros, of the shape of weights; None for those whose weight is 0.
    """
    row_sum = weights.sum(-1)
    zeros = weights.detach() == 0 if unread is None else unread
    if visible is not None:
        zeros = zeros & visible
    n_visible = n_visible.expand(row_sum.shape)
    return RowStats(
        row_sum=row_sum,
        entropy=entropy_of(row_sum, w_log_w(weights).sum(-1)),
        zero_fraction=zeros.sum(-1) / n_visible.clamp_min(1),
        n_visible=n_visible,
    )
