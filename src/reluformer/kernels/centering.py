"""Rules of centred scores, for implementations that never see a whole row of scores.

    s_ij - mean_l s_il + shift_i  =  scale q_i . k_j + rows_i + keys_j

with rows_i = shift_i - scale q_i . (mean of the keys that i sees) - (mean of their biases): a bias of the row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reluformer.kernels.bias import Bias, RowKeyBias, parts
from reluformer.kernels.visibility import Visibility
from reluformer.rules import RowCentered


def centring_bias(
    q: Tensor, k: Tensor, rule: RowCentered, visibility: Visibility, bias: Bias | None, scale: float
) -> RowKeyBias | None:
    """The bias with which `rule.core` reads as `rule` does; None where a dense mask or bias asks for dense scores."""
    split = parts(bias, visibility.slots)
    if visibility.mask is not None or split is None:
        return None
    exact = torch.float64 if q.dtype == torch.float64 else torch.float32
    n = visibility.counts().clamp_min(1).to(exact)  # broadcasts to (B, H, Tq)
    means = _means(k.to(exact), visibility, n.unsqueeze(-1))  # (B, H, Tq or 1, d)
    rows = rule.shift(n) - scale * (q.to(exact) * means).sum(-1)
    keys = split[1]
    if keys is None:
        return RowKeyBias(rows, rows.new_zeros(1))
    wide = keys.expand(*keys.shape[:-1], visibility.slots).to(exact)
    wide = wide.expand(k.shape[:3]).unsqueeze(-1)
    return RowKeyBias(rows - _means(wide, visibility, n.unsqueeze(-1)).squeeze(-1), keys)


def _means(x: Tensor, visibility: Visibility, n: Tensor) -> Tensor:
    """Of x (B, H, Tk, c) over the slots that each query sees, (B, H, Tq or 1, c)."""
    if visibility.key_mask is not None:
        x = x * visibility.key_mask[:, None, :, None].to(x.dtype)
    if visibility.hides_future:
        return x.cumsum(2)[:, :, visibility.first_position :] / n
    return x.sum(2, keepdim=True) / n
