"""NaN and infinity in slots that a row does not see: they reach neither its read nor its gradients.

An implementation multiplies the weight 0 of a hidden slot with its value, or a gradient of 0 with its key, and 0 * NaN
is NaN. Leaving hidden slots out of every product would slow down all reads for the sake of a few. So a read is made as
it is, and then looked at. Where it is not finite, or where gradients are asked for and a key is not finite, it is made
once more with zeros in the slots that are not finite. Rows that see none of those slots take the second read.

A row that sees such a slot keeps its first read, which mostly is NaN, and has the gradients of the second one.

Shapes: B batch, H heads, Hk heads of keys, Tq queries, Tk slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from reluformer.kernels import derivatives
from reluformer.kernels.operands import Visibility, with_rows
from reluformer.kernels.reference import RowStats


def isolated(
    read: Callable[[Tensor, Tensor], tuple[Tensor, RowStats | None]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visibility: Visibility,
    exact: bool,
) -> tuple[Tensor, RowStats | None]:
    """Returns `read(k, v)` such that no row depends on what stands in the slots hidden from it.

    Numbers cannot be looked at while a compiler traces or under a transform of torch.func, and to look at them on
    another device would wait for it. There only the slots that a mask hides from all queries are set to zero.

    Args:
        read: the read of q with some implementation, from keys and values.
        q: (B, H, Tq, d).
        k: (B, Hk, Tk, d).
        v: (B, Hk, Tk, dv).
        visibility: which slots each query sees; some are hidden.
        exact: whether the implementation itself leaves out hidden slots as long as it computes no gradient.
    """
    if not _may_look(q):
        return read(_without_hidden(k, visibility), _without_hidden(v, visibility))
    trains = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if exact and not trains:
        return read(k, v)
    first = read(k, v)
    if _surely_finite(first[0]) and not (trains and not _surely_finite(k)):
        return first
    stray = ~(torch.isfinite(k).all(-1) & torch.isfinite(v).all(-1))  # (B, Hk, Tk)
    spoilt = _rows_that_see(stray.repeat_interleave(q.size(1) // k.size(1), 1), visibility)  # (B, H, Tq)
    if not bool(stray.any()) or bool(spoilt.all()):
        return first
    hidden = stray.unsqueeze(-1)
    second = read(k.masked_fill(hidden, 0), v.masked_fill(hidden, 0))
    out = _replaced(second[0], first[0], spoilt.unsqueeze(-1))
    if first[1] is None or second[1] is None:
        return out, None
    return out, RowStats(*(_replaced(new, old, spoilt) for new, old in zip(second[1], first[1], strict=True)))


def _may_look(x: Tensor) -> bool:
    """Returns whether Python may decide by the numbers of a tensor, and cheaply."""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    return not traced and x.is_cpu and derivatives.unsupported() is None


def _surely_finite(x: Tensor) -> bool:
    """Returns whether the sum is finite; one that overflows only costs a closer look."""
    return math.isfinite((x.detach() if x.requires_grad else x).sum().item())


def _without_hidden(slots: Tensor, visibility: Visibility) -> Tensor:
    """Returns keys or values (B, H, Tk, d) with zeros at the slots that a mask hides from all queries."""
    if visibility.key_mask is not None:
        slots = slots.masked_fill(~visibility.key_mask[:, None, :, None], 0)
    if visibility.mask is not None:
        seen = with_rows(visibility.mask).any(-2)
        if seen.ndim > 1 and seen.size(-2) not in (1, slots.size(1)):  # seen by any of the heads that share the slot
            seen = seen.reshape(*seen.shape[:-2], slots.size(1), -1, seen.size(-1)).any(-2)
        slots = slots.masked_fill(~seen.unsqueeze(-1), 0)
    return slots


def _rows_that_see(slots: Tensor, visibility: Visibility) -> Tensor:
    """Returns which rows see one of `slots`, both boolean: (B, H, Tk) -> (B, H, Tq)."""
    if visibility.mask is not None:
        visible = visibility.dense()
        assert visible is not None
        return (visible & slots.unsqueeze(-2)).any(-1).expand(*slots.shape[:2], visibility.queries)
    if visibility.key_mask is not None:
        slots = slots & visibility.key_mask[:, None]
    if visibility.ranged:
        before = F.pad(slots.cumsum(-1), (1, 0))
        begin, end = visibility.ranges()
        return before[..., end] > before[..., begin]
    if visibility.hides_future:
        return (slots.cumsum(-1) > 0)[..., visibility.first_position :]
    return slots.any(-1, keepdim=True).expand(*slots.shape[:2], visibility.queries)


def _replaced(new: Tensor, old: Tensor, rows: Tensor) -> Tensor:
    """Returns the values of `old` in `rows` and of `new` elsewhere, with the gradients of `new`."""
    mixed = new.clone()
    mixed.detach().copy_(torch.where(rows, old.detach(), new.detach()))
    return mixed
