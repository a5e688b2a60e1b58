"""The read itself: what the own slots give, added up over the processes."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

from reluformer import memory, rules
from reluformer.context_parallel.shards import Shards, agree
from reluformer.context_parallel.sums import exact, replicated, summed
from reluformer.errors import ArgumentError
from reluformer.kernels import Visibility
from reluformer.kernels.additive import Additive, divisor, taken_apart
from reluformer.kernels.moments import row_moments
from reluformer.rules import Pointwise, RectifiedExp, Relu2, ReluPlain, RowCentered, Rule

_IGNORES_N = (ReluPlain.activate, Relu2.activate, RectifiedExp.activate)


def sharded_read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rule: str | Rule = "relu",
    causal: bool = False,
    key_mask: Tensor | None = None,
    scale: float | None = None,
    group: dist.ProcessGroup | None = None,
    shards: Shards | None = None,
) -> Tensor:
    """`reluformer.read` of slots that lie on several processes: (B,H,Tq,d) -> (B,H,Tq,dv), the same on all.

    q: all queries; k, v, key_mask: the own slots, whose number may differ and may be 0. With
    causal=True the shards are consecutive pieces of the sequence in the order of the ranks,
    and the queries its last Tq positions. `shards` takes the place of key_mask and group and
    saves their exchange. Every process must call it with the same rule and options.
    """
    rule = rules.get(rule)
    additive = _additive(rule)
    if additive is None:
        raise ArgumentError(
            f"rule '{rule.name}' weighs the slots of a row against each other, so its read cannot be summed over "
            f"processes; additive rules: {', '.join(_additive_names())}"
        )
    if shards is None:
        shards = agree(k.size(2), key_mask, q.device, group)
    elif key_mask is not None or group is not None:
        raise ArgumentError("shards knows key_mask and group already; pass either it or them")
    if shards.lengths[shards.rank] != k.size(2):
        raise ArgumentError(f"k has {k.size(2)} slots, but shards was agreed on for {shards.lengths[shards.rank]}")
    if causal and q.size(2) > shards.total:
        raise ArgumentError(f"causal=True with {q.size(2)} queries and {shards.total} slots on all processes")
    visibility = Visibility(q.size(2), shards.total, q.device, causal, shards.key_mask)
    n = visibility.counts().clamp_min(1).unsqueeze(-1).to(exact(q))
    n = n.expand(*n.shape[:-2], q.size(2), 1)
    scale = 1 / math.sqrt(max(q.size(-1), 1)) if scale is None else scale
    q = replicated(q, shards.group)
    pieces = _pieces(visibility, shards)
    bias = -_level(q, k, rule, pieces, n, scale, shards).unsqueeze(-1) if isinstance(rule, RowCentered) else None
    partial = _partial(q, k, v, additive.terms, pieces, n, bias, scale, additive.delta is not None)
    out = summed(partial, shards.group)
    if additive.delta is not None:
        out = out[..., :-1] / divisor(out[..., -1:], additive.delta)
    return out.to(v.dtype)


def _additive(rule: Rule) -> Additive | None:
    """Taken apart, once the level of its rows is known."""
    if isinstance(rule, RowCentered) and type(rule).weights is RowCentered.weights:
        return taken_apart(rule.core)
    return taken_apart(rule)


def _additive_names() -> list[str]:
    return [name for name in rules.names() if _additive(rules.get(name)) is not None]


# ------------------------------------------------------------------ the own part

Piece = tuple[slice, Visibility]
"""Rows, and what they see of the own slots."""


def _pieces(visibility: Visibility, shards: Shards) -> list[Piece]:
    """The rows that may see own slots, in order; the rows before them see none.

    In a causal read the rows before the shard see nothing of it and those after it everything;
    between them lies a causal read of the shard alone. So no mask of rows and slots is needed.
    """
    keys, slots = None if shards.key_mask is None else shards.key_mask[:, shards.own], shards.lengths[shards.rank]
    begin, at_end, end = 0, 0, visibility.queries
    if visibility.causal:
        begin = min(max(shards.own.start - visibility.first_position, 0), end)
        at_end = min(max(shards.own.stop - visibility.first_position, begin), end)
    pieces = [(slice(begin, at_end), True), (slice(at_end, end), False)]
    return [
        (rows, Visibility(rows.stop - rows.start, slots, visibility.device, causal, keys))
        for rows, causal in pieces
        if rows.start < rows.stop
    ]


def _blind(pieces: list[Piece], width: int, q: Tensor, *others: Tensor | None) -> Tensor:
    """Zeros (B, H, rows, width) for the rows before the pieces."""
    rows = pieces[0][0].start if pieces else q.size(2)
    zeros = q.new_zeros((*q.shape[:2], rows, width), dtype=exact(q))
    if pieces:
        return zeros
    # no row sees the shard; the other processes still wait for its part in the exchange of gradients
    return zeros + sum(tensor[..., :0].sum() for tensor in (q, *others) if tensor is not None)


def _level(
    q: Tensor, k: Tensor, rule: RowCentered, pieces: list[Piece], n: Tensor, scale: float, shards: Shards
) -> Tensor:
    """Of every row over the slots of all processes, (B, H, Tq).

    From the number of own slots, their mean and their variance: the squares about the mean of all are those about the
    own mean and, for each own slot, the square of the distance of the two means.
    """
    found = [_blind(pieces, 3 if rule.spread else 2, q, k)]
    for rows, seen in pieces:
        mean, variance = row_moments(q[:, :, rows], k, None, seen, scale, rule.spread != 0)
        counts = seen.counts().to(mean.dtype).expand_as(mean)
        found.append(torch.stack([counts, mean] if variance is None else [counts, mean, variance], dim=-1))
    own_n, own_mean, *own_variance = torch.cat(found, dim=2).unbind(-1)
    mean, variance = _over_all(own_n * own_mean, n, shards), None
    if own_variance:
        variance = _over_all(own_n * (own_variance[0] + (own_mean - mean).square()), n, shards)
    return rule.level(mean, variance, n.squeeze(-1))


def _over_all(own: Tensor, n: Tensor, shards: Shards) -> Tensor:
    """The sum over the processes divided by n, for further use by the own slots: gradients come from all of them."""
    return replicated(summed(own, shards.group) / n.squeeze(-1), shards.group)


def _partial(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Pointwise,
    pieces: list[Piece],
    n: Tensor,
    bias: Tensor | None,
    scale: float,
    with_sum: bool,
) -> Tensor:
    """What the own slots add to every row, at least in float32; with_sum: and their sum, as the last column."""
    reads = [_blind(pieces, v.size(-1) + with_sum, q, k, v, bias)]
    read = _by_kernel if type(terms).activate in _IGNORES_N else _dense
    for rows, seen in pieces:
        own_bias = None if bias is None else bias[:, :, rows]
        out, row_sum = read(q[:, :, rows], k, v, terms, seen, n[..., rows, :], own_bias, scale, with_sum)
        out = out.to(exact(q))
        reads.append(out if row_sum is None else torch.cat([out, row_sum], dim=-1))
    return torch.cat(reads, dim=2)


def _by_kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Pointwise,
    seen: Visibility,
    n: Tensor,
    bias: Tensor | None,
    scale: float,
    with_sum: bool,
) -> tuple[Tensor, Tensor | None]:
    """Through `memory.read`, which counts the own slots only: corrected by the ratio of the row scales."""
    options = dict(rule=terms, causal=seen.causal, key_mask=seen.key_mask, bias=bias, scale=scale)
    row_sum = None
    if with_sum:
        out, stats = memory.read(q, k, v, **options, return_stats=True)  # type: ignore[call-overload]
        row_sum = stats.row_sum.unsqueeze(-1)
    else:
        out = memory.read(q, k, v, **options)  # type: ignore[call-overload]
    own_n = seen.counts().clamp_min(1).unsqueeze(-1).to(n.dtype)
    own_scale, row_scale = terms.row_scale(own_n), terms.row_scale(n)
    if own_scale is None or row_scale is None:
        return out, row_sum
    ratio = row_scale / own_scale
    return out.to(n.dtype) * ratio, None if row_sum is None else row_sum * ratio


def _dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Pointwise,
    seen: Visibility,
    n: Tensor,
    bias: Tensor | None,
    scale: float,
    with_sum: bool,
) -> tuple[Tensor, Tensor | None]:
    """With the scores in memory: for an activation that needs n itself."""
    scores = torch.matmul(q * scale, k.transpose(-1, -2)).to(n.dtype)
    scores = scores if bias is None else scores + bias
    weights = terms.weights(scores, n, seen.dense())
    return torch.matmul(weights.to(v.dtype), v), weights.sum(-1, keepdim=True) if with_sum else None
