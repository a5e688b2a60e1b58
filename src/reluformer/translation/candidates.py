"""The best next tokens of each row, without sorting the vocabulary.

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GROUPS = 128


def best(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k greatest of each row (R, V) in falling order, and their places; (R, k) each.

    `topk` looks at one number after the other. So the vocabulary is dealt out into groups,
    whose maxima are found with vector instructions; the k best numbers are in the k groups
    with the best maxima.
    """
    rows, size = logits.shape
    depth = size // _GROUPS
    if depth < 8 or k * 4 > _GROUPS:
        return logits.topk(min(k, size), dim=1)
    dealt = logits[:, : depth * _GROUPS].view(rows, depth, _GROUPS)
    groups = dealt.amax(1).topk(k, dim=1).indices
    places = torch.arange(0, depth * _GROUPS, _GROUPS, device=logits.device)[:, None] + groups[:, None]
    rest = torch.arange(depth * _GROUPS, size, device=logits.device).expand(rows, -1)
    places = torch.cat([places.flatten(1), rest], 1)
    values, order = logits.gather(1, places).topk(k, dim=1)
    return values, places.gather(1, order)
