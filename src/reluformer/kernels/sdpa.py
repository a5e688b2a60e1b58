"""Softmax through PyTorch's own fused attention, whenever nobody asks for statistics."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from reluformer.kernels.bias import Bias, dense_bias
from reluformer.kernels.visibility import Visibility
from reluformer.rules import Rule, Softmax


def reads(rule: Rule) -> bool:
    """Whether `rule` is softmax, with whatever output norm; a subclass with weights of its own is not."""
    return isinstance(rule, Softmax) and type(rule).normalize is Softmax.normalize


def read(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, bias: Bias | None, scale: float) -> Tensor:
    """(B,H,Tq,d), (B,H,Tk,d), (B,H,Tk,dv) -> (B,H,Tq,dv)."""
    square_causal = visibility.hides_future and visibility.queries == visibility.slots
    if square_causal and visibility.key_mask is None and visibility.mask is None and bias is None:
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    mask = visibility.dense()
    added = dense_bias(bias)
    if added is not None:
        added = added.to(q.dtype)
        mask = added if mask is None else torch.where(mask, added, float("-inf"))
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
