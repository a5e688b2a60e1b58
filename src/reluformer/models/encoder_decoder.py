"""ReLUFormer: an encoder-decoder whose every layer reads a key-value memory.

The rule is chosen separately for the feed-forward layers, the encoder's attention, the
decoder's attention and cross attention, so the same class is the paper's full-ReLU model
and the plain Transformer. Sequences are padded on the right only.

Shapes: B batch, S source tokens, T target tokens, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from reluformer.errors import ArgumentError
from reluformer.kernels.products import linear
from reluformer.layers import Rotation, SlotCache, TokenSlots, rotation, sinusoids
from reluformer.memory import RowStats
from reluformer.models.blocks import Block, TokenModel
from reluformer.models.blocks import Output as Output
from reluformer.models.config import ModelConfig


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
        self.sentences: Tensor | None = None  # (B): separators so far, None = none yet

    def reorder(self, rows: Tensor) -> None:
        """Keeps these rows of the decoded batch; the slots of the source stay as they are."""
        if self.sentences is not None:
            self.sentences = self.sentences.index_select(0, rows)
        for cache in self.caches:
            cache.reorder(rows)


class ReLUFormer(TokenModel):
    """An encoder-decoder with a rule for each kind of memory; see `ModelConfig`.

    Calling the model takes source tokens (B, S) and target tokens (B, T), and computes logits (B, T, V).

    Args:
        config: The sizes and rules of the model.

    Example:
        >>> from reluformer.models.config import ModelConfig
        >>> model = ReLUFormer(ModelConfig(vocab_size=50, width=16, heads=2, slots=32))
        >>> source, target = torch.randint(50, (2, 5)), torch.randint(50, (2, 3))
        >>> model(source, target).logits.shape
        torch.Size([2, 3, 50])
    """

    schema = ModelConfig
    config: ModelConfig

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)

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
        return linear(states, self.output_embedding.weight)

    def start(self, encoded: Encoded) -> DecoderState:
        """Starts to decode step by step."""
        return DecoderState([block.source_slots(encoded.states, encoded.mask) for block in self._decoder_blocks()])

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Appends tokens (B * beams, T) to `state` and returns the states (B * beams, T, D) of the new positions.

        The rows of one source stand together. The result is equal to that of `decode` on the whole prefix.
        """
        x, turn = self._embed(self.target_embedding, tokens, first=state.length, sentences=state.sentences)
        if self.config.separator is not None:
            state.sentences = self._sentences(tokens, state.sentences)[:, -1]
        for block, cache, source in zip(self._decoder_blocks(), state.caches, state.source, strict=True):
            x, _ = block(x, source=source, cache=cache, rotation=turn)
        state.length += tokens.size(1)
        states: Tensor = self.decoder_norm(x)
        return states

    def _decoder_blocks(self) -> Iterator[Block]:
        for block in self.decoder:
            assert isinstance(block, Block)
            yield block

    def _sentences(self, tokens: Tensor, before: Tensor | None) -> Tensor:
        """Returns the number (B, T) of each token's sentence, after `before` (B); a separator opens the next one."""
        assert self.config.separator is not None
        numbers = tokens.eq(self.config.separator).cumsum(1)
        return numbers if before is None else numbers + before[:, None]

    def _embed(
        self, table: nn.Embedding, tokens: Tensor, first: int, sentences: Tensor | None = None
    ) -> tuple[Tensor, Rotation | None]:
        """Returns embeddings of variance one with their positions, and the rotation of queries and keys, if any."""
        width, length = self.config.width, tokens.size(1)
        x = table(tokens) * math.sqrt(width)
        if self.config.positions != "rotary":
            x = x + sinusoids(first, length, width, x.device).to(x.dtype)
        if self.config.separator is not None:
            numbers = self._sentences(tokens, sentences)  # at most one for each token so far
            x = x + sinusoids(0, first + length + 1, width, x.device).to(x.dtype)[numbers]
        if self.config.positions == "sinusoidal":
            return self.dropout(x), None
        return self.dropout(x), rotation(first, length, width // self.config.heads, x.device)


def _named(block: str, row_stats: list[RowStats]) -> dict[str, RowStats]:
    return {f"{block}.{kind}": stats for kind, stats in zip(("attention", "cross"), row_stats, strict=False)}
