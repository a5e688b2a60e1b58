"""Softmax through PyTorch's own fused attention, whenever nobody asks for statistics."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from reluformer.kernels.visibility import Visibility


def read(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, bias: Tensor | None, scale: float) -> Tensor:
    """(B,H,Tq,d), (B,H,Tk,d), (B,H,Tk,dv) -> (B,H,Tq,dv)."""
    square_causal = visibility.hides_future and visibility.queries == visibility.slots
    if square_causal and visibility.key_mask is None and visibility.mask is None and bias is None:
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    mask = visibility.dense()
    if bias is not None:
        bias = bias.to(q.dtype)
        mask = bias if mask is None else torch.where(mask, bias, float("-inf"))
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
