"""The block of an encoder or a decoder: its memories, one after the other, in the residual stream."""

from __future__ import annotations

from torch import Tensor, nn

from reluformer.layers import Attention, FeedForward, Rotation, SlotCache, Sublayer, TokenSlots
from reluformer.memory import RowStats
from reluformer.models.config import ModelConfig
from reluformer.rules import Rule


class Block(nn.Module):
    """Self-attention, attention to a source where there is one, feed-forward."""

    def __init__(self, config: ModelConfig, attention: Rule, cross: Rule | None = None) -> None:
        super().__init__()

        def sublayer(layer: FeedForward | Attention) -> Sublayer:
            return Sublayer(config.width, layer, config.norm == "pre", config.dropout)

        def attend(rule: Rule, causal: bool) -> Sublayer:
            return sublayer(Attention(config.width, config.heads, rule, causal, config.learn_offset))

        self.attention = attend(attention, causal=cross is not None)
        self.cross = None if cross is None else attend(cross, causal=False)
        self.ffn = sublayer(FeedForward(config.width, config.slots, config.ffn, config.ffn_bias, config.ffn_value_std))

    def forward(
        self,
        x: Tensor,
        source: TokenSlots | None = None,
        mask: Tensor | None = None,
        cache: SlotCache | None = None,
        rotation: Rotation | None = None,
        stats: bool = False,
    ) -> tuple[Tensor, list[RowStats]]:
        """x: (B, T, D); with `stats` also the row statistics of each attention, in order."""
        x, own = self.attention(x, mask=mask, cache=cache, rotation=rotation, stats=stats)
        reads = [own]
        if self.cross is not None:
            x, cross = self.cross(x, slots=source, stats=stats)
            reads.append(cross)
        x, _ = self.ffn(x)
        return x, [row_stats for row_stats in reads if row_stats is not None]

    def source_slots(self, encoded: Tensor, mask: Tensor | None) -> TokenSlots:
        """The slots that cross attention reads, made once from the encoded source."""
        assert self.cross is not None and isinstance(self.cross.layer, Attention)
        return self.cross.layer.slots(encoded, mask)
