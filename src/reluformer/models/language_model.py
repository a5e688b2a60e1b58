"""LanguageModel: a decoder alone, in which every token reads the tokens before it.

The rule of attention and that of the feed-forward memory are chosen separately. Order comes from
rotary positions, from a forget gate, or from the causal read alone. FoX and its Pro block, and the
Transformer with rotary positions, are configurations of this class (`LanguageConfig.preset`).

Shapes: B batch, T tokens, D width, V vocabulary, S packed sequences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from reluformer.errors import ArgumentError
from reluformer.kernels.products import linear
from reluformer.layers import AttentionOptions, Rotation, SlotCache, rotation
from reluformer.memory import RowStats
from reluformer.models.blocks import Block, Output, TokenModel
from reluformer.models.config import LanguageConfig


class LanguageState:
    """The state of step-by-step reading: the cached slots of each layer, which are visible, and how many there are.

    Slots do not show how they were made, so a state keeps the configuration of the model that began it.
    """

    def __init__(self, config: LanguageConfig) -> None:
        self.config = config
        self.caches = [SlotCache() for _ in range(config.layers)]
        self.length = 0
        self.mask: Tensor | None = None
        """(B, length), False at padding; None if there is none."""

    def check(self, config: LanguageConfig) -> None:
        """Raises an error unless a model of this configuration began the state."""
        if config is self.config:
            return
        if differences := config.differences(self.config):
            raise ArgumentError(f"state was begun by another model: {differences}; begin a new one with start()")
        self.config = config

    def reorder(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, in this order."""
        for cache in self.caches:
            cache.reorder(rows)
        if self.mask is not None:
            self.mask = self.mask.index_select(0, rows)

    def append_mask(self, mask: Tensor | None, tokens: Tensor) -> Tensor | None:
        """Adds the mask of new tokens (B, T), and returns that of all tokens so far; None if no token is hidden."""
        if mask is None and self.mask is None:
            return None
        if self.mask is not None and self.mask.size(0) != tokens.size(0):
            raise ArgumentError(
                f"state has a batch of {self.mask.size(0)} and tokens one of {tokens.size(0)}; it belongs to another "
                "batch, so begin a new one with start()"
            )
        before = tokens.new_ones(tokens.size(0), self.length, dtype=torch.bool) if self.mask is None else self.mask
        new = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        self.mask = torch.cat([before, new], dim=1)
        return self.mask


class LanguageModel(TokenModel):
    """A decoder-only model; see `LanguageConfig`.

    Calling the model takes tokens (B, T) and computes logits (B, T, V).

    Args:
        config: The sizes and the rules of the model.

    Example:
        >>> import torch
        >>> from reluformer.models.config import LanguageConfig
        >>> model = LanguageModel(LanguageConfig(vocab_size=50, width=16, heads=2, slots=32))
        >>> tokens = torch.randint(50, (2, 5))
        >>> model(tokens).logits.shape
        torch.Size([2, 5, 50])
        >>> state = model.start()
        >>> model.step(tokens[:, :3], state).shape, state.length
        (torch.Size([2, 3, 16]), 3)
    """

    schema = LanguageConfig
    config: LanguageConfig

    def __init__(self, config: LanguageConfig) -> None:
        super().__init__(config)
        options = AttentionOptions(
            key_heads=config.key_heads,
            window=None if config.window is None else (config.window - 1, 0),
            forget=config.forget if config.positions == "forget" else None,
            forget_on=config.forget_on,
            qk_norm=config.qk_norm,
            output_gate=config.output_gate,
            shift=config.shift,
        )
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.output_embedding = (
            self.embedding if config.tied_embeddings else nn.Embedding(config.vocab_size, config.width)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.decoder = nn.ModuleList(
            Block(config, config.attention, options=options, causal=True) for _ in range(config.layers)
        )
        self.decoder_norm = nn.LayerNorm(config.width) if config.norm == "pre" else nn.Identity()
        for embedding in dict.fromkeys((self.embedding, self.output_embedding)):
            nn.init.normal_(embedding.weight, std=config.width**-0.5)

    def forward(
        self, tokens: Tensor, offsets: Tensor | None = None, stats: bool = False, mask: Tensor | None = None
    ) -> Output:
        """Returns the logits of the token after each position.

        Args:
            tokens: (B, T) token ids. Padding on the right needs no mask: no earlier position can see it.
            offsets: (S + 1), where the sequences of a packed batch of one begin, from 0 to T.
            stats: Whether to return the row statistics of each attention.
            mask: (B, T), False at padding, which no token reads, counts or is forgotten by. A row that is padded on
                the left is read as without padding.

        Raises:
            ArgumentError: A shape or type does not fit, or a token id lies outside the vocabulary.
        """
        states, reads = self.states(tokens, offsets, stats, mask)
        return Output(self.logits(states), reads)

    def states(
        self, tokens: Tensor, offsets: Tensor | None = None, stats: bool = False, mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, RowStats]]:
        """Returns the states (B, T, D) that predict the next tokens, and row statistics; the arguments of `forward`."""
        self._check_tokens("tokens", tokens)
        _check_mask(mask, tokens)
        x, reads = self._embed(tokens), {}
        turn = self._rotation(0, tokens)
        for i, block in enumerate(self.decoder):
            x, row_stats = self._run(block, x, mask=mask, rotation=turn, offsets=offsets, stats=stats)
            reads.update({f"decoder.{i}.attention": row for row in row_stats})
        return self.decoder_norm(x), reads

    def logits(self, states: Tensor) -> Tensor:
        """Returns the logits (..., V) of states (..., D)."""
        return linear(states, self.output_embedding.weight)

    def start(self) -> LanguageState:
        """Starts to read step by step."""
        return LanguageState(self.config)

    def step(self, tokens: Tensor, state: LanguageState, mask: Tensor | None = None) -> Tensor:
        """Appends tokens (B, T) to `state` and returns the states (B, T, D) of the new positions.

        The result is equal to that of `states` on the whole prefix. `mask` (B, T) is that of the new tokens.

        Raises:
            ArgumentError: The state belongs to a model of another configuration, or to another batch.
        """
        self._check_tokens("tokens", tokens)
        _check_mask(mask, tokens)
        state.check(self.config)
        x, turn = self._embed(tokens), self._rotation(state.length, tokens)
        visible = state.append_mask(mask, tokens)
        for block, cache in zip(self._blocks(), state.caches, strict=True):
            x, _ = block(x, mask=visible, cache=cache, rotation=turn)
        state.length += tokens.size(1)
        states: Tensor = self.decoder_norm(x)
        return states

    def _blocks(self) -> Iterator[Block]:
        for block in self.decoder:
            assert isinstance(block, Block)
            yield block

    def _embed(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.embedding(tokens) * math.sqrt(self.config.width))
        return embedded

    def _rotation(self, first: int, tokens: Tensor) -> Rotation | None:
        if self.config.positions != "rotary":
            return None
        return rotation(first, tokens.size(1), self.config.width // self.config.heads, tokens.device)


def _check_mask(mask: Tensor | None, tokens: Tensor) -> None:
    """Raises an error unless the mask is boolean and has the shape of the tokens."""
    if mask is not None and (mask.dtype != torch.bool or mask.shape != tokens.shape):
        raise ArgumentError(
            f"mask is {mask.dtype} of shape {tuple(mask.shape)}; it must be boolean (batch, length) = "
            f"{tuple(tokens.shape)}, True at tokens and False at padding"
        )
