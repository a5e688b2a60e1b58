"""Softmax through PyTorch's own fused attention, whenever nobody asks for statistics.

Fused attention takes a dense bias only. A bias r_i + k_j needs none: row terms cancel, and the key terms are one more
dimension of queries and keys, q' = [scale q, 1] and k' = [k, k_j]. Where heads share their keys but not their biases,
each of them has a dimension of its own. A sink is one more slot, in front of all others, with its own dimension.

Numbers that grow along the sequence, as the sums of log forget gates do, would cost the scores their last digits. Where
the key terms span more than `SPAN` the queries are read in blocks. Each block takes off what its newest slot has, and
leaves out the slots before the first whose weight is not zero in the number format: the read is the same (`_reach`).
A window and packed sequences are read in the same blocks, so no mask is as large as all scores.

Shapes: B batch, H heads, Hk heads of keys, Tq queries, Tk slots.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention

from reluformer.kernels import derivatives
from reluformer.kernels.operands import Bias, Visibility, dense_bias, row_and_key_parts, with_rows
from reluformer.rules import Formula
from reluformer.rules.formula import SOFTMAX, SOFTMAX1

SPAN = 256.0
"""Up to this span of key terms, half of it on either side of zero, float32 adds them with an error of 8e-6 at most."""
BLOCK = 512
"""Queries that are read at once where not all of them are."""
UNDERFLOW = {torch.float64: 746.0}
"""exp(-x) is zero from here on; 104 in float32, which fused attention uses for the shorter types as well."""


def knows(formula: Formula | None) -> bool:
    """Returns whether the weights are exp(s) over their sum, or over one plus their sum."""
    return formula is not None and formula.activation == "exp" and formula in (SOFTMAX, SOFTMAX1)


def refusal(formula: Formula | None, stats: bool) -> str | None:
    """Returns why fused attention cannot do a read, or None if it can."""
    if not knows(formula) or stats:
        return "it reads only softmax rules, and without statistics"
    return derivatives.unsupported()


def read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    formula: Formula,
    visibility: Visibility,
    bias: Bias | None,
    scale: float,
    sink: Tensor | None = None,
    approximate: bool = False,
) -> Tensor:
    """Read (B,H,Tq,d), (B,Hk,Tk,d), (B,Hk,Tk,dv) -> (B,H,Tq,dv); `sink` (H) replaces the one of the formula, if any.

    With `approximate` slots are left out whose weights together are below e^-10.
    """
    if sink is None and formula.delta:
        sink = q.new_zeros(q.size(1))  # 1 = exp(0)
    return _attend(q, k, v, visibility, bias, scale, sink, approximate)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visibility: Visibility,
    bias: Bias | None,
    scale: float,
    sink: Tensor | None,
    approximate: bool,
) -> Tensor:
    split = row_and_key_parts(bias, visibility.slots)
    if split is None:  # a dense bias
        return _dense(q, k, v, visibility, bias, scale, sink)
    rows, keys = split
    if keys is None and sink is None and not visibility.ranged:
        return _dense(q, k, v, visibility, None, scale, None)
    keys = None if keys is None else _visible_terms(keys.to(q.dtype), visibility)
    eager = keys is not None and q.is_cpu and derivatives.eager(q)
    spans = keys is not None and eager and (approximate or _span(keys) > SPAN)
    if not visibility.ranged and not (spans and visibility.hides_future):
        return _dense(*_widened(q, k, v, rows, keys, scale, sink), visibility, None, 1.0, sink, v.size(-1))
    found = []
    for block, slots, inside in visibility.blocks(*_reach(q, k, keys, visibility, scale, spans, approximate)):
        part = _widened(
            q[:, :, block],
            k[:, :, slots],
            v[:, :, slots],
            None if rows is None else rows.expand(*rows.shape[:-1], visibility.queries)[..., block],
            None if keys is None else keys[..., slots],
            scale,
            sink,
        )
        found.append(_dense(*part, inside, None, 1.0, sink, v.size(-1)))
    return torch.cat(found, dim=2) if found else q.new_zeros(*q.shape[:3], v.size(-1))


def _dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visibility: Visibility,
    bias: Bias | None,
    scale: float,
    sink: Tensor | None,
    width: int | None = None,
) -> Tensor:
    """Call fused attention once, with a mask where the visibility asks for one.

    With a `sink` the operands have its slot in front already, unless there is a dense bias. `width` is that of the
    values before they were padded.
    """
    if sink is not None and width is None:  # next to a dense bias the score of the sink stands in the bias
        k, v = (F.pad(x, (0, 0, 1, 0)) for x in (k, v))
    grouped = q.size(1) != k.size(1)
    square_causal = visibility.hides_future and visibility.queries == visibility.slots
    masked = visibility.key_mask is not None or visibility.mask is not None or visibility.ranged
    if bias is None and not masked and (square_causal or not visibility.hides_future):
        if sink is not None and square_causal:  # one more query in front, so that each sees the sink and its own prefix
            return _fused(F.pad(q, (0, 0, 1, 0)), k, v, None, True, scale, grouped)[:, :, 1:, :width]
        out = _fused(q, k, v, None, square_causal, scale, grouped)
        return out if width is None else out[..., :width]
    mask = visibility.dense()
    added = dense_bias(bias)
    if added is not None:
        added = added.to(q.dtype)
        mask = added if mask is None else torch.where(mask, added, float("-inf"))
    if sink is not None:
        mask = _with_sink(mask, sink if added is not None else None, q, visibility.slots)
    rows = None if mask is None else with_rows(mask)  # it takes no mask of slots alone
    out = _fused(q, k, v, rows, False, scale, grouped)
    return out if width is None else out[..., :width]


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, grouped: bool) -> Tensor:
    """Call PyTorch's fused attention, whose second derivative is an error that says what to do."""
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped)
    if out.requires_grad and not torch.compiler.is_compiling():
        derivatives.explain_missing_second_derivative(out)
    return out


def _with_sink(mask: Tensor | None, sink: Tensor | None, q: Tensor, slots: int) -> Tensor:
    """Returns a mask or bias with a column for the sink in front: visible, or with its score."""
    if sink is None:
        mask = torch.ones(1, slots, dtype=torch.bool, device=q.device) if mask is None else with_rows(mask)
        mask = mask.expand(*mask.shape[:-1], slots)
        return torch.cat([torch.ones_like(mask[..., :1]), mask], dim=-1)
    assert mask is not None
    mask = mask.expand(*q.shape[:3], slots)
    return torch.cat([sink.to(q.dtype)[:, None, None].expand(*q.shape[:3], 1), mask], dim=-1)


def _widened(
    q: Tensor, k: Tensor, v: Tensor, rows: Tensor | None, keys: Tensor | None, scale: float, sink: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns queries, keys and values with the dimensions of biases and of a sink, for scores of scale 1.

    Args:
        q: (B, H, Tq, d).
        k: (B, Hk, Tk, d).
        v: (B, Hk, Tk, dv).
        rows: row terms, broadcasts to (B, H, Tq); they matter next to a sink only.
        keys: key terms, broadcasts to (B, H, Tk).
        scale: the factor of the scores.
        sink: (H), the score of the sink.
    """
    batch, heads, queries, _ = q.shape
    key_heads, slots = k.shape[1:3]
    base = None
    left, right = [q * scale], [k]
    if keys is not None and slots:
        lowest, highest = keys.detach().expand(*keys.shape[:-1], slots).aminmax(dim=-1, keepdim=True)
        base = highest - ((highest - lowest) / 2).clamp_max(SPAN / 2)
        moved = keys - base
        if moved.ndim < 2 or moved.size(-2) == 1 or heads == key_heads:
            left.append(q.new_ones(()).expand(batch, heads, queries, 1))
            right.append(moved.expand(batch, heads if heads == key_heads else key_heads, slots).unsqueeze(-1))
        else:
            group = heads // key_heads
            own = torch.eye(group, dtype=q.dtype, device=q.device).repeat(key_heads, 1)[:, None]
            left.append(own.expand(batch, heads, queries, group))
            right.append(moved.expand(batch, heads, slots).reshape(batch, key_heads, group, slots).transpose(-1, -2))
    if sink is not None:
        score = sink.to(q.dtype)[:, None]
        score = score if rows is None else score - rows
        score = score if base is None else score - base
        left.append(score.expand(batch, heads, queries).unsqueeze(-1))
        right.append(k.new_zeros(()).expand(batch, key_heads, slots, 1))
    width = max(sum(part.size(-1) for part in left), v.size(-1))
    q, k = (_padded(torch.cat(parts, dim=-1), width) for parts in (left, right))
    v = _padded(v, width)
    if sink is not None:
        place = torch.zeros(width, dtype=k.dtype, device=k.device)
        place[sum(part.size(-1) for part in left) - 1] = 1
        k = torch.cat([place.expand(batch, key_heads, 1, width), k], dim=2)
        v = F.pad(v, (0, 0, 1, 0))
    return q, k, v


def _padded(x: Tensor, width: int) -> Tensor:
    return x if x.size(-1) == width else F.pad(x, (0, width - x.size(-1)))


# ------------------------------------------------------------------ blocks of queries


def _visible_terms(keys: Tensor, visibility: Visibility) -> Tensor:
    """Returns key terms (..., Tk) whose largest is that of a visible slot, as far as the key mask says."""
    keys = keys.expand(*keys.shape[:-1], visibility.slots)
    if visibility.key_mask is None or not visibility.slots:
        return keys
    return torch.where(visibility.key_mask[:, None], keys, keys.detach().amin(-1, keepdim=True))


def _span(keys: Tensor) -> float:
    """Returns how far key terms lie apart."""
    if not keys.numel():
        return 0.0
    lowest, highest = keys.detach().aminmax()
    return float(highest - lowest)


def _reach(
    q: Tensor, k: Tensor, keys: Tensor | None, visibility: Visibility, scale: float, spans: bool, approximate: bool
) -> tuple[int, Tensor | None, Tensor | None]:
    """Returns the size of a block, key terms (B, H, Tk), and for each query how low they may be and still count.

    The best visible score of row i is at least keys_e - U, e its newest slot and U a bound of |scale q . k|. A slot
    whose keys_j + U lies `UNDERFLOW` below that has a weight of exactly zero. Where the read may be approximate,
    log n + 10 is enough: all slots that are left out have less than e^-10 together, as in FoX's adaptive pruning.
    """
    if not spans:
        return BLOCK, None, None
    assert keys is not None
    with torch.no_grad():
        _, end = visibility.ranges()
        keys = keys.expand(*q.shape[:2], visibility.slots)
        newest, size = keys[:, :, end - 1], BLOCK
        while size > 64 and size < newest.size(-1) and _span_of_blocks(newest, size) > SPAN / 2:
            size //= 2
        if visibility.key_mask is not None or visibility.mask is not None:
            return size, None, None
        length = k.norm(dim=-1).amax(-1).repeat_interleave(q.size(1) // k.size(1), 1)
        bound = q.norm(dim=-1).amax(-1) * length * abs(scale)  # (B, H)
        margin = math.log(visibility.slots) + 10 if approximate else UNDERFLOW.get(q.dtype, 104.0)
        return size, keys, newest - 2.01 * bound.unsqueeze(-1) - margin


def _span_of_blocks(newest: Tensor, size: int) -> float:
    """Returns how far the key terms of rows `size` apart lie from each other at most."""
    return float((newest[..., size:] - newest[..., :-size]).abs().max())
