"""Reads of language models in parts that the CPU kernel knows: key heads, packed sequences, and blocks that may matter.

The kernel reads as many heads of keys as of queries, one sequence, and all slots up to a row's own position. So heads
that share their keys are one read for each head of keys, whose keys are repeated by a stride of zero and not by a copy.
Packed sequences are one read each.

**Lossless pruning.** A rule with exact zeros gives slot j no weight if scale q_i . k_j + rows_i + keys_j <= t_i, where
t_i = 0, or less if a cap keeps the row alive. No scale q_i . k_j exceeds U_i = |scale| |q_i| max |k|. So a slot with

    keys_j <= t_i - rows_i - U_i

needs no score. Under a forget gate the terms rows_i + keys_j = c_i - c_j fall with the distance, and a block of rows
begins to read at the first slot that any of its rows may weigh. Nothing is lost but products of zero. Each block takes
the terms of its newest slot off the keys and adds it to its rows, so that sums that reach -11,000 cost no digits.

Shapes: B batch, H heads, Hk heads of keys, Tq queries, Tk slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reluformer.kernels import cpu, derivatives
from reluformer.kernels.moments import level_bias
from reluformer.kernels.native.library import LOG_N
from reluformer.kernels.operands import Bias, Gate, RowKeyBias, Visibility, per_key_head, row_and_key_parts, with_gate
from reluformer.kernels.reference import RowStats
from reluformer.rules import Formula, Level

BLOCK, LONG_BLOCK = 256, 1024
"""Rows of a block that is pruned as one: the second where gates forget slowly, as each block costs a call."""
WORTHWHILE = 0.2
"""Blocks cost a call each, which pays from this share of pruned pairs on."""
LEAST_QUERIES = 1024
SPAN = 128.0
"""Key terms that lie further apart are read in blocks in any case, for the digits of the scores."""
ZERO_BELOW = ("relu", "relu_squared", "rectified_exp")
"""Activations that are exactly zero for scores up to zero."""

Result = tuple[Tensor, RowStats | None]


def read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    formula: Formula,
    visibility: Visibility,
    bias: Bias | None,
    scale: float,
    stats: bool,
    mode: str = "cpu",
    gate: Gate | None = None,
) -> Result:
    """Read (B,H,Tq,d), (B,Hk,Tk,d), (B,Hk,Tk,dv) -> (B,H,Tq,dv) with the CPU kernel.

    The arguments are those of `cpu.read`. `gate` is for rules of centred scores, whose level does not know it.
    """
    if visibility.offsets is not None:
        return _sequences(q, k, v, formula, visibility, bias, scale, stats, mode, gate)
    if q.size(1) != k.size(1):
        return _key_heads(q, k, v, formula, visibility, bias, scale, stats, mode, gate)
    formula, bias, level = _without_level(q, k, formula, visibility, bias, scale, gate)
    if not stats and isinstance(bias, RowKeyBias):
        blocks = plan(q, k, formula, visibility, bias, level, scale)
        if blocks is not None:
            return read_blocks(q, k, v, formula, visibility, bias, level, scale, mode, blocks), None
    if level is not None:
        assert isinstance(bias, RowKeyBias)
        bias = with_gate(level, bias, visibility.queries)
    return cpu.read(q, k, v, formula, visibility, bias, scale, stats, mode)


def _without_level(
    q: Tensor, k: Tensor, formula: Formula, visibility: Visibility, bias: Bias | None, scale: float, gate: Gate | None
) -> tuple[Formula, Bias | None, Bias | None]:
    """Returns the formula without a level that a gate does not know, the bias, and what takes the
    level off the rows.
    """
    if gate is not None:
        assert formula.level is not None
        level = level_bias(q, k, formula.level, visibility, bias, scale)
        return formula.without_level(), with_gate(None, gate, visibility.queries), level
    if not isinstance(bias, RowKeyBias) or formula.level is None or formula.level == LOG_N or formula.centred:
        return formula, bias, None
    level = level_bias(q, k, formula.level, visibility, None, scale)
    return formula.without_level(), bias, level


def _sequences(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    formula: Formula,
    visibility: Visibility,
    bias: Bias | None,
    scale: float,
    stats: bool,
    mode: str,
    gate: Gate | None,
) -> Result:
    """Read each packed sequence on its own."""
    assert visibility.offsets is not None
    lengths = visibility.offsets.diff().tolist()
    split = row_and_key_parts(bias, visibility.slots)
    assert split is not None
    moved = None if gate is None else with_gate(None, gate, visibility.queries)
    assert moved is None or isinstance(moved, RowKeyBias)
    parts = [torch.split(x, lengths, dim=2) for x in (q, k, v)]
    found, begin = [], 0
    for i, length in enumerate(lengths):
        if not length:
            continue
        inside = slice(begin, begin + length)
        rows, keys = (None if x is None else x if x.size(-1) == 1 else x[..., inside] for x in split)
        own = None if moved is None else RowKeyBias(moved.rows[..., inside], moved.keys[..., inside])
        mask = None if visibility.key_mask is None else visibility.key_mask[:, inside]
        seen = Visibility(length, length, visibility.device, visibility.causal, mask)
        given = (_joined(rows, keys, length), scale, stats, mode, own)
        found.append(read(parts[0][i], parts[1][i], parts[2][i], formula, seen, *given))
        begin += length
    return _concatenated(found, 2) if found else cpu.read(q, k, v, formula, visibility, bias, scale, stats, mode)


def _key_heads(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    formula: Formula,
    visibility: Visibility,
    bias: Bias | None,
    scale: float,
    stats: bool,
    mode: str,
    gate: Gate | None,
) -> Result:
    """Read the heads of queries that share a head of keys together, for each head of keys.

    Where all queries see the same slots, heads that share them are only more queries.
    """
    group = q.size(1) // k.size(1)
    if bias is None and gate is None and not visibility.hides_future and not stats:
        seen = replace(visibility, queries=group * visibility.queries, causal=False)
        out, _ = cpu.read(per_key_head(q, k.size(1)), k, v, formula, seen, None, scale, False, mode)
        return out.reshape(*q.shape[:3], v.size(-1)), None
    split = row_and_key_parts(bias, visibility.slots)
    assert split is not None
    moved = None if gate is None else with_gate(None, gate, visibility.queries)
    assert moved is None or isinstance(moved, RowKeyBias)
    found = []
    heads = zip(torch.split(q, group, 1), torch.split(k, 1, 1), torch.split(v, 1, 1), strict=True)
    for i, (queries, *slots) in enumerate(heads):
        inside = slice(i * group, (i + 1) * group)
        keys, values = (x.expand(-1, group, -1, -1) for x in slots)
        own_rows, own_keys = (_of_heads(x, inside) for x in split)
        moving = None if moved is None else RowKeyBias(*(_some_heads(x, inside) for x in moved))
        given = (_joined(own_rows, own_keys, visibility.slots), scale, stats, mode, moving)
        found.append(read(queries, keys, values, formula, visibility, *given))
    return _concatenated(found, 1)


def _of_heads(x: Tensor | None, heads: slice) -> Tensor | None:
    return None if x is None else _some_heads(x, heads)


def _some_heads(x: Tensor, heads: slice) -> Tensor:
    """Returns the terms (..., H, T) of some heads; what is common to all heads stays."""
    return x if x.ndim < 2 or x.size(-2) == 1 else x[..., heads, :]


def _joined(rows: Tensor | None, keys: Tensor | None, slots: int) -> Bias | None:
    """Returns row and key terms as a bias."""
    if rows is not None and keys is not None:
        return RowKeyBias(rows, keys)
    if rows is not None:
        return rows.unsqueeze(-1)
    return None if keys is None else keys.expand(*keys.shape[:-1], slots).unsqueeze(-2)


def _concatenated(parts: list[Result], dim: int) -> Result:
    out = torch.cat([out for out, _ in parts], dim)
    if parts[0][1] is None:
        return out, None
    rows = zip(*(stats for _, stats in parts if stats is not None), strict=True)
    return out, RowStats(*(torch.cat(row, dim) for row in rows))


# ------------------------------------------------------------------ pruning


class HeadBlock(NamedTuple):
    """Rows `begin` to `end` of one head, which read from slot `first` on."""

    head: int
    begin: int
    end: int
    first: int


def plan(
    q: Tensor,
    k: Tensor,
    formula: Formula,
    visibility: Visibility,
    bias: RowKeyBias,
    level: Bias | None,
    scale: float,
) -> list[HeadBlock] | None:
    """Returns the blocks of a causal read that may have a weight, or None where pruning is impossible or does not pay.

    Args:
        q: (B, H, Tq, d).
        k: (B, H, Tk, d).
        formula: without a level but for a cap.
        visibility: which slots each query sees.
        bias: row and key terms.
        level: what takes the level of the formula off the rows, if it had one.
        scale: the factor of the scores.
    """
    capped = None if formula.level is None else Level(cap=formula.level.cap)
    if formula.activation not in ZERO_BELOW or formula.level != capped:
        return None
    if visibility.key_mask is not None or visibility.mask is not None or not visibility.hides_future:
        return None
    factored = formula.exponent != 0 and formula.delta is not None
    if factored or visibility.queries <= BLOCK or not derivatives.eager(q):
        return None
    with torch.no_grad():
        lowest, highest = bias.keys.aminmax()
        spans = float(highest - lowest) > SPAN
        if visibility.queries < LEAST_QUERIES and not spans:
            return None
        blocks = _blocks(q.detach(), k.detach(), formula, visibility, bias, level, scale)
    return blocks if spans or share_of(blocks, visibility) >= WORTHWHILE else None


def _blocks(
    q: Tensor,
    k: Tensor,
    formula: Formula,
    visibility: Visibility,
    bias: RowKeyBias,
    level: Bias | None,
    scale: float,
) -> list[HeadBlock]:
    heads, queries, slots, start = q.size(1), visibility.queries, visibility.slots, visibility.first_position
    own_rows, own_keys = _terms(level, q, slots)
    rows = bias.rows.float().expand(*q.shape[:2], queries) + own_rows
    keys = bias.keys.float().expand(*q.shape[:2], slots) + own_keys
    bound = q.float().norm(dim=-1) * k.float().norm(dim=-1).amax(-1, keepdim=True) * abs(scale)
    lowest = -rows - bound * (1 + 1e-5) - 1e-5 * (1 + rows.abs())
    if formula.level is not None and formula.level.cap is not None:
        own = scale * (q.float() * k[:, :, start:].float()).sum(-1) + rows + keys[:, :, start:]
        lowest = lowest + (own - formula.level.cap - 1e-3).clamp_max(0)
    lowest = lowest.nan_to_num(-torch.inf, -torch.inf, -torch.inf)  # what is not finite is read
    found = []
    size = _block_size(keys, queries)
    for begin in range(0, queries, size):
        end = min(begin + size, queries)
        floor = lowest[:, :, begin:end].amin(-1, keepdim=True)
        needed = (keys[:, :, : start + end] <= floor).logical_not().any(0)  # (H, slots); NaN is read
        first = torch.where(needed.any(-1), needed.int().argmax(-1), start + begin)
        found += [HeadBlock(head, begin, end, min(int(first[head]), start + begin)) for head in range(heads)]
    return found


def _terms(bias: Bias | None, q: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """Returns the row terms (B, H, Tq) and the key terms (B, H, Tk) of a bias, zeros where it has none."""
    split = row_and_key_parts(bias, slots)
    assert split is not None
    zero = torch.zeros((), device=q.device)
    given = ((zero if x is None else x.float(), size) for x, size in zip(split, (q.size(2), slots), strict=True))
    rows, keys = (x.expand(*q.shape[:2], size) for x, size in given)
    return rows, keys


def _pairs(block: HeadBlock, visibility: Visibility) -> int:
    """Returns how many pairs of a causal block lie at or after its first slot."""
    count = block.end - block.begin
    widest = visibility.first_position + block.end - block.first
    return count * widest - count * (count - 1) // 2


def _block_size(keys: Tensor, queries: int) -> int:
    """Returns how many rows are pruned as one: many only if their key terms lie near each other."""
    if queries <= 4 * LONG_BLOCK or float((keys[..., LONG_BLOCK:] - keys[..., :-LONG_BLOCK]).abs().max()) > SPAN / 4:
        return BLOCK
    return LONG_BLOCK


def share_of(blocks: list[HeadBlock], visibility: Visibility) -> float:
    """Returns the share of visible pairs that blocks leave out."""
    visible = sum(_pairs(block._replace(first=0), visibility) for block in blocks)
    return 1 - sum(_pairs(block, visibility) for block in blocks) / max(visible, 1)


def skipped_share(q: Tensor, k: Tensor, formula: Formula, visibility: Visibility, gate: Gate, scale: float) -> float:
    """Returns the share of visible pairs of a gated causal read that are never multiplied; 0 where none is proven."""
    group = q.size(1) // k.size(1)
    keys = k.repeat_interleave(group, 1) if group > 1 else k
    given = (None, gate) if formula.centred else (with_gate(None, gate, visibility.queries), None)
    formula, bias, level = _without_level(q, keys, formula, visibility, given[0], scale, given[1])
    if not isinstance(bias, RowKeyBias):
        return 0.0
    blocks = plan(q, keys, formula, visibility, bias, level, scale)
    return 0.0 if blocks is None else share_of(blocks, visibility)


def read_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    formula: Formula,
    visibility: Visibility,
    bias: RowKeyBias,
    level: Bias | None,
    scale: float,
    mode: str,
    blocks: list[HeadBlock],
) -> Tensor:
    """Read block after block; what depends on n multiplies the read, as a block does not see all of its slots."""
    factor = None
    if formula.exponent or formula.factor != 1:
        if formula.delta is None:
            n = visibility.counts().clamp_min(1).to(torch.float32)
            factor = formula.row_factor(n).unsqueeze(-1)
            formula = replace(formula, factor=1.0, exponent=0.0)

    def one(q: Tensor, k: Tensor, v: Tensor, rows: Tensor, keys: Tensor, own_rows: Tensor, own_keys: Tensor) -> Tensor:
        seen = Visibility(q.size(2), k.size(2), visibility.device, causal=True)
        newest = keys.detach()[..., -1:]
        moved = RowKeyBias((rows + newest) + own_rows, (keys - newest) + own_keys)
        return cpu.read(q, k, v, formula, seen, moved, scale, False, mode)[0]

    rows = bias.rows.float().expand(*q.shape[:2], visibility.queries)
    keys = bias.keys.float().expand(*q.shape[:2], visibility.slots)
    operands = (q, k, v, rows, keys, *_terms(level, q, visibility.slots))
    out: Tensor = _Blocks.apply(one, blocks, *operands)  # type: ignore[no-untyped-call]
    return out if factor is None else out * factor.to(out.dtype)


class _Blocks(torch.autograd.Function):
    """Reads of blocks, each with a graph of its own, whose gradients are added where its slots are.

    The gradient of a slice would be a tensor of all slots for every block. Only a gradient that is itself
    differentiated, asked for in a batch, or asked for once more goes that way.
    """

    @staticmethod
    def forward(ctx: Any, one: Callable[..., Tensor], blocks: list[HeadBlock], *operands: Tensor) -> Tensor:
        q, _, v = operands[:3]
        needs = any(ctx.needs_input_grad[2:])
        out = q.new_empty(q.size(0), q.size(2), q.size(1), v.size(-1), dtype=v.dtype).transpose(1, 2)
        kept = []
        for block in blocks:
            places = _places(block, q.size(2), v.size(2))
            leaves = [
                x[place].detach().requires_grad_(wanted)
                for x, place, wanted in zip(operands, places, ctx.needs_input_grad[2:], strict=True)
            ]
            with torch.set_grad_enabled(needs):
                part = one(*leaves)
            out[places[0]] = part.detach()
            if needs:
                kept.append((part, leaves, places))
        ctx.save_for_backward(*operands)
        ctx.one, ctx.blocks, ctx.kept = one, blocks, kept
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        operands = ctx.saved_tensors
        if ctx.kept is None or derivatives.recomputes() or not derivatives.eager(d_out):
            found = derivatives.gradients(partial(_sliced, ctx.one, ctx.blocks), operands, [d_out])
            return None, None, *found
        gradients = [
            torch.zeros_like(x) if asked else None for x, asked in zip(operands, ctx.needs_input_grad[2:], strict=True)
        ]
        for part, leaves, places in ctx.kept:
            parts = iter(torch.autograd.grad(part, [x for x in leaves if x.requires_grad], d_out[places[0]]))
            for gradient, place in zip(gradients, places, strict=True):
                if gradient is not None:
                    gradient[place] += next(parts)
        ctx.kept = None
        return None, None, *gradients


def _sliced(one: Callable[..., Tensor], blocks: list[HeadBlock], *operands: Tensor) -> list[Tensor]:
    """Returns the same read, made of slices that PyTorch differentiates."""
    queries, slots = operands[0].size(2), operands[2].size(2)
    rows: dict[int, list[Tensor]] = {}
    for block in blocks:  # in the order of rows, and of heads for the same rows
        places = _places(block, queries, slots)
        rows.setdefault(block.begin, []).append(one(*(x[place] for x, place in zip(operands, places, strict=True))))
    return [torch.cat([torch.cat(heads, 1) for heads in rows.values()], 2)]


def _places(block: HeadBlock, queries: int, slots: int) -> tuple[tuple[slice, ...], ...]:
    """Returns where q, k, v, row terms and key terms of a block lie."""
    everything, head = slice(None), slice(block.head, block.head + 1)
    rows = (everything, head, slice(block.begin, block.end))
    seen = (everything, head, slice(block.first, slots - queries + block.end))
    return rows, seen, seen, rows, seen, rows, seen
