"""ReLUFormer: an encoder-decoder whose every layer reads a key-value memory.

The rule is chosen separately for the feed-forward layers, the encoder's attention, the
decoder's attention and cross attention, so the same class is the paper's full-ReLU model
and the plain Transformer. Sequences are padded on the right only.

Shapes: B batch, S source tokens, T target tokens, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from reluformer.errors import ArgumentError
from reluformer.layers import Rotation, SlotCache, TokenSlots, rotation, sinusoids
from reluformer.memory import RowStats
from reluformer.models import storage
from reluformer.models.blocks import Block
from reluformer.models.config import ModelConfig


class Output(NamedTuple):
    """The logits (B, T, V), and the row statistics of each attention by name, if they were asked for."""

    logits: Tensor
    reads: dict[str, RowStats]


class Encoded(NamedTuple):
    """What the decoder needs to know about a source."""

    states: Tensor  # (B, S, D)
    mask: Tensor | None  # (B, S), None = no padding
    reads: dict[str, RowStats]


class DecoderState:
    """The state of step-by-step decoding: the cached slots of each layer, and the slots of the source."""

    def __init__(self, source: list[TokenSlots]) -> None:
        self.source = source
        self.caches = [SlotCache() for _ in source]
        self.length = 0

    def reorder(self, rows: Tensor) -> None:
        """Keeps these rows of the decoded batch; the slots of the source stay as they are."""
        for cache in self.caches:
            cache.reorder(rows)


class ReLUFormer(nn.Module):
    """An encoder-decoder with a rule for each kind of memory; see `ModelConfig`.

    Example:
        >>> from reluformer.models.config import ModelConfig
        >>> model = ReLUFormer(ModelConfig(vocab_size=50, width=16, heads=2, slots=32))
        >>> source, target = torch.randint(50, (2, 5)), torch.randint(50, (2, 3))
        >>> model(source, target).logits.shape
        torch.Size([2, 3, 50])
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

        def table() -> nn.Embedding:
            return nn.Embedding(config.vocab_size, config.width)

        def final_norm() -> nn.Module:  # post-norm blocks end in a norm already
            return nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity()

        self.source_embedding = table()
        self.target_embedding = self.source_embedding if config.tied_embeddings else table()
        self.output_embedding = self.source_embedding if config.tied_embeddings else table()
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = nn.ModuleList(Block(config, config.encoder_attention) for _ in range(config.encoder_layers))
        self.encoder_norm = final_norm()
        self.decoder = nn.ModuleList(
            Block(config, config.decoder_attention, config.cross_attention) for _ in range(config.decoder_layers)
        )
        self.decoder_norm = final_norm()
        for embedding in dict.fromkeys((self.source_embedding, self.target_embedding, self.output_embedding)):
            nn.init.normal_(embedding.weight, std=config.width**-0.5)

    def forward(self, source: Tensor, target: Tensor, source_mask: Tensor | None = None, stats: bool = False) -> Output:
        """Returns the logits of the token after each position of `target`.

        Args:
            source: (B, S) token ids.
            target: (B, T) token ids. Padding on the right needs no mask: no earlier position can see it.
            source_mask: (B, S), True at tokens; None = no padding.
            stats: Whether to return the row statistics of each attention.

        Raises:
            ArgumentError: A shape or type does not fit, or a token id lies outside the vocabulary.
        """
        encoded = self.encode(source, source_mask, stats)
        states, reads = self.decode(target, encoded, stats)
        return Output(self.logits(states), {**encoded.reads, **reads})

    def encode(self, source: Tensor, mask: Tensor | None = None, stats: bool = False) -> Encoded:
        """Encodes tokens (B, S) as states (B, S, D); `mask` (B, S) is True at tokens, None = no padding."""
        self._check_tokens("source", source)
        if mask is not None and (mask.dtype != torch.bool or mask.shape != source.shape):
            raise ArgumentError(
                f"source_mask must be boolean of shape {tuple(source.shape)}, True at tokens; got "
                f"{mask.dtype} of shape {tuple(mask.shape)}"
            )
        x, turn = self._embed(self.source_embedding, source, first=0)
        reads: dict[str, RowStats] = {}
        for i, block in enumerate(self.encoder):
            x, row_stats = self._run(block, x, mask=mask, rotation=turn, stats=stats)
            reads.update(_named(f"encoder.{i}", row_stats))
        return Encoded(self.encoder_norm(x), mask, reads)

    def decode(self, target: Tensor, encoded: Encoded, stats: bool = False) -> tuple[Tensor, dict[str, RowStats]]:
        """Decodes tokens (B, T) to states (B, T, D), each of which knows its own prefix and the source."""
        self._check_tokens("target", target)
        if target.size(0) != encoded.states.size(0):
            raise ArgumentError(f"target has {target.size(0)} rows, source has {encoded.states.size(0)}")
        x, turn = self._embed(self.target_embedding, target, first=0)
        reads: dict[str, RowStats] = {}
        for i, block in enumerate(self._decoder_blocks()):
            slots = block.source_slots(encoded.states, encoded.mask)
            x, row_stats = self._run(block, x, source=slots, rotation=turn, stats=stats)
            reads.update(_named(f"decoder.{i}", row_stats))
        return self.decoder_norm(x), reads

    def logits(self, states: Tensor) -> Tensor:
        """Returns the logits (..., V) of states (..., D)."""
        return F.linear(states, self.output_embedding.weight)

    def start(self, encoded: Encoded) -> DecoderState:
        """Starts to decode step by step."""
        return DecoderState([block.source_slots(encoded.states, encoded.mask) for block in self._decoder_blocks()])

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Appends tokens (B * beams, T) to `state` and returns the states (B * beams, T, D) of the new positions.

        The rows of one source stand together. The result is equal to that of `decode` on the whole prefix.
        """
        x, turn = self._embed(self.target_embedding, tokens, first=state.length)
        for block, cache, source in zip(self._decoder_blocks(), state.caches, state.source, strict=True):
            x, _ = block(x, source=source, cache=cache, rotation=turn)
        state.length += tokens.size(1)
        states: Tensor = self.decoder_norm(x)
        return states

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
            StorageError: The directory holds no model, or a damaged one.
        """
        config = storage.load_config(Path(directory))
        with storage.without_memory():  # the sizes of a damaged configuration could take all memory
            storage.check_weights(Path(directory), cls(config))
        model = cls(config)
        storage.load_weights(Path(directory), model)
        return model

    def _decoder_blocks(self) -> Iterator[Block]:
        for block in self.decoder:
            assert isinstance(block, Block)
            yield block

    def _embed(self, table: nn.Embedding, tokens: Tensor, first: int) -> tuple[Tensor, Rotation | None]:
        """Returns embeddings of variance one with their positions, and the rotation of queries and keys, if any."""
        width, length = self.config.width, tokens.size(1)
        x = table(tokens) * math.sqrt(width)
        if self.config.positions != "rotary":
            x = x + sinusoids(first, length, width, x.device).to(x.dtype)
        if self.config.positions == "sinusoidal":
            return self.dropout(x), None
        return self.dropout(x), rotation(first, length, width // self.config.heads, x.device)

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
        if tokens.is_cpu and tokens.numel() and not torch.compiler.is_compiling():
            lowest, highest = tokens.aminmax()
            if lowest < 0 or highest >= self.config.vocab_size:
                raise ArgumentError(
                    f"{name} holds token id {int(lowest if lowest < 0 else highest)}, the vocabulary has ids 0 to "
                    f"{self.config.vocab_size - 1}; use the tokenizer that the model was trained with"
                )


def _named(block: str, row_stats: list[RowStats]) -> dict[str, RowStats]:
    return {f"{block}.{kind}": stats for kind, stats in zip(("attention", "cross"), row_stats, strict=False)}
