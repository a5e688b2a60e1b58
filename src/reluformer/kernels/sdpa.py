"""Softmax through PyTorch's own fused attention, whenever nobody asks for statistics."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from reluformer.kernels import derivatives
from reluformer.kernels.operands import Bias, Visibility, dense_bias, with_rows
from reluformer.rules import Formula


def refusal(formula: Formula | None, stats: bool) -> str | None:
    """Return why fused attention cannot do a read, or None if it can."""
    if formula is None or not formula.is_softmax or stats:
        return "it reads only softmax rules, and without statistics"
    return derivatives.unsupported()


def read(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, bias: Bias | None, scale: float) -> Tensor:
    """Read (B,H,Tq,d), (B,H,Tk,d), (B,H,Tk,dv) -> (B,H,Tq,dv)."""
    out = _attend(q, k, v, visibility, bias, scale)
    if out.requires_grad and not torch.compiler.is_compiling():
        derivatives.explain_missing_second_derivative(out)
    return out


def _attend(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, bias: Bias | None, scale: float) -> Tensor:
    if visibility.everything and bias is None:
        return scaled_dot_product_attention(q, k, v, scale=scale)
    square_causal = visibility.hides_future and visibility.queries == visibility.slots
    if square_causal and visibility.key_mask is None and visibility.mask is None and bias is None:
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    mask = visibility.dense()
    added = dense_bias(bias)
    if added is not None:
        added = added.to(q.dtype)
        mask = added if mask is None else torch.where(mask, added, float("-inf"))
    rows = None if mask is None else with_rows(mask)  # it takes no mask of slots alone
    return scaled_dot_product_attention(q, k, v, attn_mask=rows, scale=scale)
