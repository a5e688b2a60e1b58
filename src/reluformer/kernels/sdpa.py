"""Softmax through PyTorch's own fused attention, whenever nobody asks for statistics."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from reluformer.kernels.operands import Bias, Visibility, dense_bias
from reluformer.rules import Formula


def refusal(formula: Formula | None, stats: bool) -> str | None:
    """Return why fused attention cannot do a read, or None if it can."""
    softmax = formula is not None and formula.is_softmax
    return None if softmax and not stats else "it reads only softmax rules, and without statistics"


def read(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, bias: Bias | None, scale: float) -> Tensor:
    """Read (B,H,Tq,d), (B,H,Tk,d), (B,H,Tk,dv) -> (B,H,Tq,dv)."""
    square_causal = visibility.hides_future and visibility.queries == visibility.slots
    if square_causal and visibility.key_mask is None and visibility.mask is None and bias is None:
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    mask = visibility.dense()
    added = dense_bias(bias)
    if added is not None:
        added = added.to(q.dtype)
        mask = added if mask is None else torch.where(mask, added, float("-inf"))
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
