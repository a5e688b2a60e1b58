"""The decoder's step as one call of the compiled library, for float32 on a CPU.

A step has no operation of torch. Threads divide the sources among themselves and never wait
for each other within a position. The values of slots without weight are not loaded. The
rules are ReLU with any row scale, `relu_exp` and softmax.

Each beam knows the slot of every position before: its ancestors. Slots never move, and
those that the beams of a source have in common are read once for all of them.

Shapes: B sources, K beams of each, R = B * K rows, H heads, d head width, N slots, T positions.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reluformer.kernels.cpu import unavailable
from reluformer.kernels.native import decoder as native
from reluformer.layers import Attention, FeedForward, Sublayer, TokenSlots, rotation, sinusoids
from reluformer.models.blocks import Block
from reluformer.models.encoder_decoder import Encoded, ReLUFormer
from reluformer.rules import Formula, Rule, formula_of
from reluformer.rules.formula import HIGHEST
from reluformer.translation.stepper import ModelStepper
from reluformer.translation.torch_stepper import TorchStepper, query_with_scale


class _LayerSlots(NamedTuple):
    """Keys and values that one layer reads: its own (B, H, capacity, d), and the source's (B, H, S, d)."""

    own_keys: Tensor
    own_values: Tensor
    source_keys: Tensor
    source_values: Tensor


class NativeBeams:
    """The slots of all beams that have descendants, and the ancestors of each beam."""

    def __init__(self, slots: list[_LayerSlots], lengths: Tensor, scales: Tensor, length: int) -> None:
        self.batch = self.rows = lengths.size(0)
        self.length = self.used = length
        self.slots = slots
        self.source_lengths = lengths  # (B)
        self.source_scales = scales  # (B): the row scale of the rule, 1 without one
        self.ancestors = torch.arange(length, dtype=torch.int32).expand(self.batch, -1).contiguous()  # (R, >= T)
        self.spare = torch.empty(0, 0, dtype=torch.int32)
        self.log_probabilities = torch.empty(0)
        self._pointers: object = None

    def select(self, sources: Tensor) -> None:
        beams = self.rows // self.batch
        rows = (sources[:, None] * beams + torch.arange(beams)).flatten()
        self.ancestors = self.ancestors.index_select(0, rows)
        self.slots = [_LayerSlots(*(part.index_select(0, sources) for part in layer)) for layer in self.slots]
        self.source_lengths = self.source_lengths.index_select(0, sources)
        self.source_scales = self.source_scales.index_select(0, sources)
        self.batch, self.rows = sources.numel(), rows.numel()
        self._pointers = None

    @property
    def capacity(self) -> int:
        """The number of own slots that a source has room for."""
        return self.slots[0].own_keys.size(2) if self.slots else self.used + 1024

    def make_room(self, new: int) -> None:
        """Makes room for a position and `new` slots of each source; slots without descendants are dropped first."""
        if self.ancestors.size(1) <= self.length:
            longer = self.ancestors.new_zeros(self.rows, 2 * self.length + 32)
            longer[:, : self.length] = self.ancestors[:, : self.length]
            self.ancestors = longer
        if self.used + new <= self.capacity:
            return
        ancestors = self.ancestors[:, : self.length].reshape(self.batch, -1).long()
        seen = torch.zeros(self.batch, self.used, dtype=torch.bool).scatter_(1, ancestors, True)
        kept = int(seen.sum(1).max())
        order = seen.int().argsort(dim=1, descending=True, stable=True)[:, :kept]  # (B, kept): old slots
        moved_to = torch.empty_like(seen, dtype=torch.int32)
        moved_to.scatter_(1, order, torch.arange(kept, dtype=torch.int32).expand(self.batch, -1))
        moved = moved_to.gather(1, ancestors).view(self.rows, self.length)
        self.ancestors[:, : self.length] = moved
        self.used = kept
        capacity = kept + new + max(128, kept // 2)
        self.slots = [
            layer._replace(
                own_keys=_moved(layer.own_keys, order, capacity), own_values=_moved(layer.own_values, order, capacity)
            )
            for layer in self.slots
        ]
        self._pointers = None

    def pointers(self) -> object:
        """Returns the slots of all layers as the library takes them."""
        if self._pointers is None:
            layers = [native.LayerSlots(*(part.data_ptr() for part in layer)) for layer in self.slots]
            self._pointers = (native.LayerSlots * len(layers))(*layers)
        return self._pointers

    def swap(self, rows: int) -> tuple[Tensor, Tensor]:
        """Returns the ancestors so far, and the memory for those of the next `rows` rows."""
        old, stride = self.ancestors, self.ancestors.size(1)
        if self.spare.size(0) < rows or self.spare.size(1) != stride:
            self.spare = old.new_empty(rows, stride)
        self.ancestors, self.spare, self.rows = self.spare[:rows], old, rows
        return old, self.ancestors


def _moved(slots: Tensor, order: Tensor, capacity: int) -> Tensor:
    """Moves the slots `order` (B, kept) to the front; (B, H, N, d) -> (B, H, capacity, d)."""
    batch, heads, room, width = slots.shape
    first = torch.arange(0, batch * heads * room, room).view(batch, heads, 1)
    rows = (first + order[:, None]).flatten()
    new = slots.new_empty(batch, heads, capacity, width)
    new[:, :, : order.size(1)] = slots.view(-1, width).index_select(0, rows).view(batch, heads, -1, width)
    return new


class NativeStepper(ModelStepper[NativeBeams]):
    """The stepper of the compiled library, with the weights in its layout."""

    def __init__(self, model: ReLUFormer) -> None:
        super().__init__(model)
        config = model.config
        self._own, self._cross = config.decoder_attention, config.cross_attention
        self._weights = native.Weights()
        self._sinusoids = self._cosines = self._sines = torch.empty(0, 0)
        layers = [_layer(self._weights, block) for block in model.decoder if isinstance(block, Block)]
        self._decoder = native.Decoder(
            width=config.width,
            heads=config.heads,
            layers=len(layers),
            slots=config.slots,
            vocabulary=config.vocab_size,
            pre_norm=config.norm == "pre",
            path=self._weights.path,
            own_rule=_read_rule(self._own),
            cross_rule=_read_rule(self._cross),
            embedding_scale=math.sqrt(config.width),
            embedding=self._weights.pointer(model.target_embedding.weight),
            layer=self._weights.layers(layers),
            norm=self._weights.norm(model.decoder_norm),
            output=self._weights.linear(model.output_embedding.weight, None),
        )

    @staticmethod
    def refusal(model: ReLUFormer) -> str | None:
        """Returns why a model needs another stepper, or None if it does not."""
        weight, config = model.output_embedding.weight, model.config
        if unavailable() is not None:
            return unavailable()
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            return f"the library decodes float32 on the CPU, the model is {weight.dtype} on {weight.device}"
        for rule in (config.decoder_attention, config.cross_attention):
            if _read_rule(rule) is None:
                which = f"{rule.name} as {type(rule).__name__} defines it"
                return f"the library decodes with ReLU, relu_exp and softmax, not with {which}"
        if config.ffn.output_norm is not None or formula_of(config.ffn) != Formula("relu"):
            return f"the library decodes with relu_plain in the feed-forward layers, not with {config.ffn.name}"
        return None

    @torch.inference_mode()
    def start(self, encoded: Encoded, prefix: Tensor) -> tuple[Tensor, NativeBeams]:
        begun = self.model.start(encoded)
        states = self.model.step(prefix, begun)[:, -1]
        mask = encoded.mask
        slots = [
            _LayerSlots(cache.slots.keys.contiguous(), cache.slots.values.contiguous(), *_visible_first(source))
            for cache, source in zip(begun.caches, begun.source, strict=True)
        ]
        lengths = torch.full((prefix.size(0),), encoded.states.size(1)) if mask is None else mask.sum(1)
        scales = torch.tensor([_row_scale(self._cross, n) for n in lengths.tolist()], dtype=torch.float32)
        beams = NativeBeams(slots, lengths, scales, prefix.size(1))
        return torch.log_softmax(self.model.logits(states), -1), beams

    @torch.inference_mode()
    def step(self, tokens: Tensor, parents: Tensor, beams: NativeBeams) -> Tensor:
        rows = tokens.size(0)
        tokens, parents = tokens.contiguous(), parents.contiguous()
        beams.make_room(rows // beams.batch)
        old, new = beams.swap(rows)
        if beams.log_probabilities.size(0) < rows:
            beams.log_probabilities = torch.empty(rows, self.model.config.vocab_size)
        out = beams.log_probabilities[:rows]
        position = native.Position(
            batch=beams.batch,
            beams=rows // beams.batch,
            threads=torch.get_num_threads(),
            length=beams.length,
            used=beams.used,
            capacity=beams.capacity,
            source_capacity=beams.slots[0].source_keys.size(2) if beams.slots else 0,
            tokens=tokens.data_ptr(),
            parents=parents.data_ptr(),
            old_ancestors=old.data_ptr(),
            ancestors=new.data_ptr(),
            ancestor_stride=new.size(1),
            source_lengths=beams.source_lengths.data_ptr(),
            own_scale=_row_scale(self._own, beams.length + 1),
            source_scales=beams.source_scales.data_ptr(),
            slots=beams.pointers(),
            log_probabilities=out.data_ptr(),
        )
        self._place(position, beams.length)
        native.decode(self._decoder, position)
        beams.length += 1
        beams.used += rows // beams.batch
        return out

    def best(self, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
        return native.best(rows, min(k, rows.size(1)))

    def _place(self, position: native.Position, number: int) -> None:
        """Writes the encoding of the position's number."""
        config = self.model.config
        if config.positions != "sinusoidal":
            if number >= self._cosines.size(0):
                turns = rotation(0, max(256, 2 * number), config.width // config.heads, self.device)
                self._cosines, self._sines = turns.cos.float().contiguous(), turns.sin.float().contiguous()
            position.cosine, position.sine = self._cosines[number].data_ptr(), self._sines[number].data_ptr()
        if config.positions != "rotary":
            if number >= self._sinusoids.size(0):
                self._sinusoids = sinusoids(0, max(256, 2 * number), config.width, self.device).float().contiguous()
            position.sinusoid = self._sinusoids[number].data_ptr()


def _read_rule(rule: Rule) -> native.ReadRule | None:
    """Return `rule` as the library takes it, or None if its formula is none that the library knows."""
    formula = formula_of(rule)
    if formula is None or rule.output_norm is not None:
        return None
    if formula.is_softmax:
        return native.ReadRule(native.READ_SOFTMAX)
    if formula.is_relu:
        return native.ReadRule(native.READ_RELU)
    level, delta = formula.level, formula.delta
    if level is None or delta is None or not formula.centred or formula.terms() != Formula("rectified_exp"):
        return None
    return native.ReadRule(
        native.READ_RELU_EXP,
        threshold=level.threshold,
        growth=level.growth,
        spread=level.spread,
        floor=level.floor,
        delta=delta,
        highest=HIGHEST,
        chance=level.chance,
        cap=-1.0 if level.cap is None else level.cap,
    )


@lru_cache(maxsize=4096)
def _row_scale(rule: Rule, n: int) -> float:
    """Return the factor of a row's weights where n slots are visible; a divided row has none."""
    formula = formula_of(rule)
    assert formula is not None
    return float(formula.factor * max(n, 1) ** -formula.exponent)


def _layer(weights: native.Weights, block: Block) -> native.DecoderLayer:
    own, cross, ffn = block.attention, block.cross, block.ffn
    assert isinstance(own.layer, Attention) and isinstance(ffn.layer, FeedForward)
    assert isinstance(cross, Sublayer) and isinstance(cross.layer, Attention)
    query = query_with_scale(own.layer)
    key_value = own.layer.key_value

    def linear(layer: nn.Linear) -> native.Linear:
        return weights.linear(layer.weight, layer.bias)

    return native.DecoderLayer(
        own_norm=weights.norm(own.norm),
        cross_norm=weights.norm(cross.norm),
        ffn_norm=weights.norm(ffn.norm),
        query_key_value=weights.linear(torch.cat([query[0], key_value.weight]), torch.cat([query[1], key_value.bias])),
        own_output=linear(own.layer.output),
        cross_query=weights.linear(*query_with_scale(cross.layer)),
        cross_output=linear(cross.layer.output),
        ffn_keys=linear(ffn.layer.keys),
        ffn_values=linear(ffn.layer.values),
        own_offset=_offset(weights, own.layer),
        cross_offset=_offset(weights, cross.layer),
    )


def _offset(weights: native.Weights, attention: Attention) -> int | None:
    offset = attention.read.offset
    return None if offset is None else weights.pointer(offset)


def _visible_first(source: TokenSlots) -> tuple[Tensor, Tensor]:
    """Returns keys and values (B, H, S, d) of the source, the visible ones before the others."""
    keys, values = source.keys.contiguous(), source.values.contiguous()
    if source.mask is None:
        return keys, values
    order = source.mask.int().argsort(dim=1, descending=True, stable=True)[:, None, :, None].expand_as(keys)
    return keys.gather(2, order), values.gather(2, order)


def stepper_of(model: ReLUFormer) -> ModelStepper[Any]:
    """Returns the fastest stepper for the device, the dtype and the rules that a model has now."""
    return NativeStepper(model) if NativeStepper.refusal(model) is None else TorchStepper(model)
