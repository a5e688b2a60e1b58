"""Scores in full precision: rules divide by n, which bfloat16 cannot count, and centred scores are small."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    """`x` at least in float32."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Where products of widened tensors stay wide; autocast would round them back."""
    kind = x.device.type
    autocasts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if autocasts else nullcontext()
