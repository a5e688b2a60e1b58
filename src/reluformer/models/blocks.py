"""The block of a model, its memories one after the other in the residual stream, and what all models have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from reluformer.errors import ArgumentError
from reluformer.layers import Attention, AttentionOptions, FeedForward, Rotation, SlotCache, Sublayer, TokenSlots
from reluformer.memory import RowStats
from reluformer.models import storage
from reluformer.models.config import AnyConfig, ImageConfig
from reluformer.rules import Rule


class Output(NamedTuple):
    """The logits (B, T, V), and the row statistics of each attention by name, if they were asked for."""

    logits: Tensor
    reads: dict[str, RowStats]


class TokenModel(nn.Module):
    """What all models have in common: a configuration, their place on disk, and checks of token ids."""

    schema: ClassVar[type[AnyConfig]]
    """The class of the configuration."""
    config: AnyConfig

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def parameter_count(self) -> int:
        """Returns the number of trainable values; shared ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def save(self, directory: str | Path) -> None:
        """Writes config.json and model.safetensors into `directory`."""
        storage.save(Path(directory), self.config, self.state_dict())

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """Returns the model saved in `directory`, exactly.

        Raises:
            StorageError: The directory holds no model, one of another kind, or a damaged one.
        """
        config = storage.load_config(Path(directory), cls.schema)
        with storage.without_memory():  # the sizes of a damaged configuration could take all memory
            storage.check_weights(Path(directory), cls(config))
        with storage.without_initialisation():  # the saved weights fill every parameter
            model = cls(config)
        storage.load_weights(Path(directory), model)
        return model

    def _run(self, block: nn.Module, x: Tensor, **options: Any) -> tuple[Tensor, list[RowStats]]:
        if self.config.checkpoint_activations and torch.is_grad_enabled():
            result = checkpoint(block, x, use_reentrant=False, **options)
        else:
            result = block(x, **options)
        states, row_stats = result
        return states, row_stats

    def _check_tokens(self, name: str, tokens: Tensor) -> None:
        if tokens.ndim != 2 or tokens.is_floating_point():
            raise ArgumentError(
                f"{name} must be token ids of shape (batch, length), got {tokens.dtype} of shape {tuple(tokens.shape)}"
            )
        assert not isinstance(self.config, ImageConfig)
        if tokens.is_cpu and tokens.numel() and not torch.compiler.is_compiling():
            lowest, highest = tokens.aminmax()
            if lowest < 0 or highest >= self.config.vocab_size:
                raise ArgumentError(
                    f"{name} holds token id {int(lowest if lowest < 0 else highest)}, the vocabulary has ids 0 to "
                    f"{self.config.vocab_size - 1}; use the tokenizer that the model was trained with"
                )


class Block(nn.Module):
    """Self-attention, attention to a source where there is one, feed-forward."""

    def __init__(
        self,
        config: AnyConfig,
        attention: Rule,
        cross: Rule | None = None,
        options: AttentionOptions = AttentionOptions(),  # noqa: B008
        causal: bool = False,
    ) -> None:
        """Makes the block of an encoder; with `cross`, or if it is `causal`, of a decoder."""
        super().__init__()
        divide = not (isinstance(config, ImageConfig) and config.norm == "affine")

        def sublayer(layer: FeedForward | Attention) -> Sublayer:
            return Sublayer(config.width, layer, config.norm != "post", config.dropout, divide)

        def attend(rule: Rule, causal: bool, own: AttentionOptions = AttentionOptions()) -> Sublayer:  # noqa: B008
            return sublayer(Attention(config.width, config.heads, rule, causal, config.learn_offset, own))

        self.attention = attend(attention, causal or cross is not None, options)
        self.cross = None if cross is None else attend(cross, causal=False)
        self.ffn = sublayer(FeedForward(config.width, config.slots, config.ffn, config.ffn_bias, config.ffn_value_std))

    def forward(
        self,
        x: Tensor,
        source: TokenSlots | None = None,
        mask: Tensor | None = None,
        cache: SlotCache | None = None,
        rotation: Rotation | None = None,
        offsets: Tensor | None = None,
        stats: bool = False,
    ) -> tuple[Tensor, list[RowStats]]:
        """Apply the block to x (B, T, D); with `stats` also return the row statistics of each attention, in order."""
        x, own = self.attention(x, mask=mask, cache=cache, rotation=rotation, offsets=offsets, stats=stats)
        reads = [own]
        if self.cross is not None:
            x, cross = self.cross(x, slots=source, stats=stats)
            reads.append(cross)
        x, _ = self.ffn(x)
        return x, [row_stats for row_stats in reads if row_stats is not None]

    def source_slots(self, encoded: Tensor, mask: Tensor | None) -> TokenSlots:
        """Returns the slots that cross attention reads, made once from the encoded source."""
        assert self.cross is not None and isinstance(self.cross.layer, Attention)
        return self.cross.layer.slots(encoded, mask)
