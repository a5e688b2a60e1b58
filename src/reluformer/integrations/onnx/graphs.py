"""A model as two functions of tensors alone, which is what ONNX can hold.

    encoder   source, mask -> the slots of the source, for the cross attention of each layer
    decoder   tokens, parents, mask, those slots, the slots so far -> logits, all slots

Both run the model's own code. `parents` chooses rows of the slots so far, so that one call
follows the beams and appends to them; a prefix of many tokens is read in one call, too.

Shapes: B sources, K beams of each, T new tokens, S source tokens, P tokens before, R rows before,
H heads, d head width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reluformer.layers import SlotCache, TokenSlots
from reluformer.models.encoder_decoder import DecoderState, ReLUFormer

Slots = tuple[Tensor, Tensor]
Axes = dict[int, str]


class EncoderGraph(nn.Module):
    """The encoder: source (B, S), mask (B, S) -> keys and values (B, H, S, d) of each decoder layer."""

    inputs = ("source", "mask")

    def __init__(self, model: ReLUFormer) -> None:
        super().__init__()
        self.model = model
        self.outputs = _names("cross", model.config.decoder_layers)
        self.eval()

    def forward(self, source: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        slots = self.model.start(self.model.encode(source, mask)).source
        return tuple(part for layer in slots for part in (layer.keys, layer.values))

    def example(self) -> tuple[Tensor, ...]:
        """Returns inputs to trace with, in which every axis that varies has a length of its own."""
        return torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool)

    def axes(self) -> tuple[Axes, ...]:
        """Returns the names of the axes that vary."""
        return ({0: "batch", 1: "source"},) * 2


class DecoderGraph(nn.Module):
    """The decoder: tokens (B, K, T), parents (B, K), mask, slots -> logits (B, K, V) of the next token, all slots."""

    def __init__(self, model: ReLUFormer) -> None:
        super().__init__()
        self.model = model
        layers = model.config.decoder_layers
        self.inputs = ("tokens", "parents", "mask", *_names("cross", layers), *_names("past", layers))
        self.outputs = ("logits", *_names("present", layers))
        self.eval()

    def forward(
        self, tokens: Tensor, parents: Tensor, mask: Tensor, cross: Sequence[Slots], past: Sequence[Slots]
    ) -> tuple[Tensor, ...]:
        rows = parents.flatten()
        state = DecoderState([TokenSlots(keys, values, mask) for keys, values in cross])
        caches = [AppendedSlots(keys.index_select(0, rows), values.index_select(0, rows)) for keys, values in past]
        state.caches = [*caches]
        state.length = past[0][0].size(2)
        last = self.model.step(tokens.flatten(0, 1), state)[:, -1]
        logits = self.model.logits(last).view(*tokens.shape[:2], -1)
        return logits, *(part for cache in caches for part in cache.parts)

    def example(self) -> tuple[Tensor | list[Slots], ...]:
        """Returns inputs to trace with, in which every axis that varies has a length of its own."""
        config = self.model.config
        sources, beams, new, source, rows, before = 2, 3, 4, 5, 7, 8

        def slots(batch: int, length: int) -> list[Slots]:
            shape = (batch, config.heads, length, config.width // config.heads)
            # each its own tensor: torch takes inputs that are one object for one input
            return [(torch.zeros(shape), torch.zeros(shape)) for _ in range(config.decoder_layers)]

        tokens = torch.zeros(sources, beams, new, dtype=torch.long)
        parents, mask = torch.zeros(sources, beams, dtype=torch.long), torch.ones(sources, source, dtype=torch.bool)
        return tokens, parents, mask, slots(sources, source), slots(rows, before)

    def axes(self) -> tuple[Axes | list[tuple[Axes, Axes]], ...]:
        """Returns the names of the axes that vary."""
        layers = self.model.config.decoder_layers
        cross: Axes = {0: "batch", 2: "source"}
        past: Axes = {0: "rows", 2: "past"}
        return (
            {0: "batch", 1: "beams", 2: "new"},
            {0: "batch", 1: "beams"},
            {0: "batch", 1: "source"},
            [(cross, cross)] * layers,
            [(past, past)] * layers,
        )


class AppendedSlots(SlotCache):
    """A cache that makes new tensors, because a graph has no buffers to write to."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.parts = (keys, values)

    def append(self, new: TokenSlots) -> TokenSlots:
        keys, values = self.parts
        self.parts = (torch.cat([keys, new.keys], 2), torch.cat([values, new.values], 2))
        return TokenSlots(*self.parts)


def _names(kind: str, layers: int) -> tuple[str, ...]:
    return tuple(f"{kind}_{part}_{layer}" for layer in range(layers) for part in ("key", "value"))
