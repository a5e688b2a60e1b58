"""One read over many processes: each holds all queries and a piece of the slots.

For a rule with a `rules.Formula` the read is a sum over slots, so each process reads its own slots and
the results are added up:

    out = sum over processes of (sum over own slots j of u_ij v_j)      (one all_reduce)

A rule that is divided by its row sum sends that sum along as one more column. n_i counts the visible slots of all
processes, so the weights are those of a single process. A rule of centred scores needs the mean and the
variance of a row first: two all_reduces of a number a row.

The result is the same on every process, and so must be the loss that is made from it. Then the gradients of k and v are
the process's own, and that of q is summed over the processes: all are what one process with all slots would get.

    shards = agree(k.size(2), key_mask, k.device)     # once a batch
    out = sharded_read(q, k, v, rule="relu", causal=True, shards=shards)

docs/distributed.md has a complete example. Shapes: B batch, H heads, Tq queries, T slots of all processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from reluformer import kernels, rules
from reluformer.errors import ArgumentError
from reluformer.kernels import Visibility
from reluformer.kernels.moments import row_moments
from reluformer.memory import RuleSpec
from reluformer.rules import Formula, Formulated, Level, Rule
from reluformer.rules.formula import divisor

__all__ = ["Shards", "agree", "gather_rows", "own_rows", "sharded_read"]


@dataclass(frozen=True)
class Shards:
    """How the slots lie on the processes: consecutive pieces of one sequence, of any lengths."""

    lengths: tuple[int, ...]
    """Slots of each process."""
    rank: int
    key_mask: Tensor | None
    """(B, T) of all processes; None = all visible."""
    group: dist.ProcessGroup | None

    @property
    def first(self) -> int:
        """Position of the first own slot in the whole sequence."""
        return sum(self.lengths[: self.rank])

    @property
    def own(self) -> slice:
        """The positions of the own slots."""
        return slice(self.first, self.first + self.lengths[self.rank])

    @property
    def total(self) -> int:
        """The number of slots of all processes."""
        return sum(self.lengths)


def agree(slots: int, key_mask: Tensor | None, device: torch.device, group: dist.ProcessGroup | None = None) -> Shards:
    """Tell the other processes how many slots there are here, and which of them are visible.

    Every process must call it. Do it once a batch and pass the result to all reads of the batch.

    Args:
        slots: number of own slots.
        key_mask: boolean (B, slots), True where a slot is visible; None on all processes or on none.
        device: where the slots are.
        group: the process group; the default is the whole world.

    Raises:
        ArgumentError: there is no process group, or the masks of the processes do not fit together.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise ArgumentError(
            "context parallelism needs a process group: start the processes with torchrun and call "
            "torch.distributed.init_process_group() first"
        )
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    told = torch.zeros(world, 2, dtype=torch.int64, device=device)
    told[rank] = torch.tensor([slots, key_mask is not None])
    dist.all_reduce(told, group=group)
    lengths = tuple(int(length) for length in told[:, 0])
    if not bool(told[:, 1].any()):
        return Shards(lengths, rank, None, group)
    if not bool(told[:, 1].all()):
        raise ArgumentError(
            "key_mask is given on some processes and not on others; where all slots are visible, pass one of True"
        )
    assert key_mask is not None
    if key_mask.dtype != torch.bool or key_mask.ndim != 2 or key_mask.size(1) != slots:
        raise ArgumentError(f"key_mask must be boolean (B, {slots}), got {key_mask.dtype} {tuple(key_mask.shape)}")
    shards = Shards(lengths, rank, None, group)
    everywhere = F.pad(key_mask.to(torch.uint8), (shards.first, shards.total - shards.own.stop))
    dist.all_reduce(everywhere, group=group)
    return Shards(lengths, rank, everywhere.bool(), group)


def gather_rows(own: Tensor, shards: Shards) -> Tensor:
    """Returns all rows (B, H, T, d) from each process's own rows, for queries that are sharded like the slots."""
    before, after = shards.first, shards.total - shards.own.stop
    return summed(F.pad(own, (0, 0, before, after)), shards.group)


def own_rows(read: Tensor, shards: Shards) -> Tensor:
    """Returns the own rows of what `sharded_read` returned; losses may then differ between processes and add up."""
    return replicated(read, shards.group)[:, :, shards.own]


# ------------------------------------------------------------------ the read


def sharded_read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rule: RuleSpec = "relu",
    *,
    causal: bool = False,
    key_mask: Tensor | None = None,
    scale: float | None = None,
    group: dist.ProcessGroup | None = None,
    shards: Shards | None = None,
) -> Tensor:
    """Read slots that lie on several processes, as `reluformer.read` reads them on one.

    Every process must call it with the same rule and options.

    Args:
        q: all queries, (B, H, Tq, d).
        k: the keys of the own slots, (B, H, own, d); their number may differ between processes and may be 0.
        v: the values of the own slots, (B, H, own, dv).
        rule: a name, a mapping or a rule that has a formula.
        causal: the shards are consecutive pieces of the sequence in the order of the ranks, and the queries its last
            Tq positions.
        key_mask: boolean (B, own), True where a slot is visible.
        scale: the factor of the scores; the default is 1 / sqrt(d).
        group: the process group; the default is the whole world.
        shards: what `agree` returned; it takes the place of key_mask and group and saves their exchange.

    Returns:
        What was read, (B, H, Tq, dv), the same on all processes.

    Raises:
        ArgumentError: the rule weighs the slots of a row against each other, or the arguments contradict each other.
    """
    rule = rules.get(rule)
    formula = _summable(rule)
    if formula is None:
        raise ArgumentError(
            f"rule '{rule.name}' weighs the slots of a row against each other, so its read cannot be summed over "
            f"processes; additive rules: {', '.join(_summable_names())}"
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
    bias = None
    if formula.level is not None:
        bias = -_levels(q, k, formula.level, pieces, n, scale, shards)
    out = summed(_partial(q, k, v, formula, pieces, n, bias, scale), shards.group)
    if formula.delta is not None:
        out = out[..., :-1] / divisor(out[..., -1:], formula.delta)
    return out.to(v.dtype)


def _summable(rule: Rule) -> Formula | None:
    """Returns the formula of `rule` if its terms can be summed.

    Activation exp and the cap of a level need the row's best score. Scores times log n are left to the reference.
    """
    formula = rules.formula_of(rule)
    if (
        formula is None
        or formula.rest
        or formula.activation == "exp"
        or formula.log_factor is not None
        or (formula.level is not None and formula.level.cap is not None)
    ):
        return None
    return formula


def _summable_names() -> list[str]:
    return [name for name in rules.names() if _summable(rules.get(name)) is not None]


# ------------------------------------------------------------------ the own part

Piece = tuple[slice, Visibility]
"""Some rows, and what they see of the own slots."""


def _pieces(visibility: Visibility, shards: Shards) -> list[Piece]:
    """Returns the rows that may see own slots, in order; the rows before them see none.

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
    """Returns zeros (B, H, rows, width) for the rows before the pieces."""
    rows = pieces[0][0].start if pieces else q.size(2)
    zeros = q.new_zeros((*q.shape[:2], rows, width), dtype=exact(q))
    if pieces:
        return zeros
    # no row sees the shard; the other processes still wait for its part in the exchange of gradients
    return zeros + sum(tensor[..., :0].sum() for tensor in (q, *others) if tensor is not None)


def _levels(q: Tensor, k: Tensor, level: Level, pieces: list[Piece], n: Tensor, scale: float, shards: Shards) -> Tensor:
    """Returns the level of every row over the slots of all processes; it broadcasts to (B, H, Tq, 1).

    It comes from the number of own slots, their mean and their variance: the squares about the mean of all are those
    about the own mean and, for each own slot, the square of the distance of the two means.
    """
    if not level.centred:
        return level.of(n)
    found = [_blind(pieces, 3 if level.needs_variance else 2, q, k)]
    for rows, seen in pieces:
        mean, variance = row_moments(q[:, :, rows], k, None, seen, scale, level.needs_variance)
        counts = seen.counts().to(mean.dtype).expand_as(mean)
        found.append(torch.stack([counts, mean] if variance is None else [counts, mean, variance], dim=-1))
    own_n, own_mean, *own_variance = torch.cat(found, dim=2).unbind(-1)
    mean, variance = _over_all(own_n * own_mean, n, shards), None
    if own_variance:
        variance = _over_all(own_n * (own_variance[0] + (own_mean - mean).square()), n, shards)
    return level.of(n.squeeze(-1), mean, variance).unsqueeze(-1)


def _over_all(own: Tensor, n: Tensor, shards: Shards) -> Tensor:
    """Returns the sum over the processes divided by n; own slots use it further, so gradients come from all."""
    return replicated(summed(own, shards.group) / n.squeeze(-1), shards.group)


@dataclass(frozen=True)
class _Terms(Formulated):
    """The terms of a formula as a rule of their own."""

    description: Formula

    def formula(self) -> Formula:
        return self.description


def _partial(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    formula: Formula,
    pieces: list[Piece],
    n: Tensor,
    bias: Tensor | None,
    scale: float,
) -> Tensor:
    """Returns what the own slots add to every row, at least in float32.

    Where the formula divides, the sum of the terms follows as the last column.
    """
    terms, with_sum = formula.terms(), formula.delta is not None
    reads = [_blind(pieces, v.size(-1) + with_sum, q, k, v, bias)]
    read = _dense if terms.activation == "other" else _by_kernel
    for rows, seen in pieces:
        own_bias = None if bias is None else bias[..., rows, :]
        out, row_sum = read(q[:, :, rows], k, v, terms, seen, n[..., rows, :], own_bias, scale, with_sum)
        out = out.to(exact(q))
        reads.append(out if row_sum is None else torch.cat([out, row_sum], dim=-1))
    return torch.cat(reads, dim=2)


def _by_kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Formula,
    seen: Visibility,
    n: Tensor,
    bias: Tensor | None,
    scale: float,
    with_sum: bool,
) -> tuple[Tensor, Tensor | None]:
    """Read through the kernels, which count the own slots only, and correct by the ratio of the row factors."""
    out, stats = kernels.run("auto", q, k, v, _Terms(terms), seen, bias, scale, with_sum)
    row_sum = None if stats is None else stats.row_sum.unsqueeze(-1)
    if not terms.exponent:
        return out, row_sum
    own_n = seen.counts().clamp_min(1).unsqueeze(-1).to(n.dtype)
    ratio = (n / own_n) ** -terms.exponent
    return out.to(n.dtype) * ratio, None if row_sum is None else row_sum * ratio


def _dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Formula,
    seen: Visibility,
    n: Tensor,
    bias: Tensor | None,
    scale: float,
    with_sum: bool,
) -> tuple[Tensor, Tensor | None]:
    """Read with the scores in memory: for an activation that no kernel knows."""
    scores = torch.matmul(q * scale, k.transpose(-1, -2)).to(n.dtype)
    scores = scores if bias is None else scores + bias
    weights = terms.weights(scores, n, seen.dense())
    return torch.matmul(weights.to(v.dtype), v), weights.sum(-1, keepdim=True) if with_sum else None


# ------------------------------------------------------------------ sums over processes that gradients pass through


def summed(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Returns the sum over processes; its gradient is known to all of them."""
    total: Tensor = _Summed.apply(x, group)  # type: ignore[no-untyped-call]
    return total


def replicated(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Returns `x`, which is the same on all processes; its gradient is the sum of theirs."""
    same: Tensor = _Replicated.apply(x, group)  # type: ignore[no-untyped-call]
    return same


def exact(x: Tensor) -> torch.dtype:
    """Returns the dtype in which sums are made: at least float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


# A process without a visible slot would take no part in the exchange of second derivatives, and the others would wait.


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        total = x.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Replicated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.to(exact(gradient), copy=True).contiguous()
        dist.all_reduce(total, group=ctx.group)
        return total.to(gradient.dtype), None
