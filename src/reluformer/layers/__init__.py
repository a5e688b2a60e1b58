"""The two memories of a Transformer, their place in the residual stream, and positions.

feed_forward  reads slots that were learned
attention     reads slots made from tokens, and the cache of a growing prefix
positions     sinusoids and rotations
norms         what a rule may ask for after its read

Both memories take any rule. The parameters that a rule asks for live here: its output norm, a learned gamma, a learned
sink, and the offset that a head may learn to add to its scores.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from reluformer.layers.attention import (
    LONGEST_MEMORY,
    SHORTEST_MEMORY,
    Attention,
    AttentionOptions,
    ForgetGate,
    SlotCache,
    TokenRead,
    TokenSlots,
)
from reluformer.layers.feed_forward import FeedForward
from reluformer.layers.norms import AffineNorm, GatedRMSNorm, LearnedScale
from reluformer.layers.positions import Rotation, rotate, rotation, sinusoids
from reluformer.memory import RowStats

__all__ = [
    "LONGEST_MEMORY",
    "SHORTEST_MEMORY",
    "AffineNorm",
    "Attention",
    "AttentionOptions",
    "FeedForward",
    "ForgetGate",
    "GatedRMSNorm",
    "LearnedScale",
    "Rotation",
    "SlotCache",
    "Sublayer",
    "TokenRead",
    "TokenSlots",
    "rotate",
    "rotation",
    "sinusoids",
]


class Sublayer(nn.Module):
    """A memory in the residual stream: x + f(norm(x)), or norm(x + f(x))."""

    def __init__(
        self, width: int, layer: FeedForward | Attention, pre_norm: bool, dropout: float, divide: bool = True
    ) -> None:
        """Puts `layer` into the residual stream; `divide` says whether the norm divides by the deviation."""
        super().__init__()
        self.norm = nn.LayerNorm(width) if divide else AffineNorm(width)
        self.layer = layer
        self.dropout = nn.Dropout(dropout)
        self.pre_norm = pre_norm

    def forward(self, x: Tensor, **options: Any) -> tuple[Tensor, RowStats | None]:
        """Add what the layer reads to x (B, T, D); `options` go to the layer."""
        out, stats = self.layer(self.norm(x) if self.pre_norm else x, **options)
        x = x + self.dropout(out)
        return (x if self.pre_norm else self.norm(x)), stats
