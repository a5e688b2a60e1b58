"""The decoder's step in torch, for any rule and any device.

`TorchStepper.step` computes what `ReLUFormer.step` computes and is tested against it. It is
faster for two reasons:

* Beams never move. The slots of all beams of a source lie in one cache, and each beam sees
  those of its own ancestors. Choosing beams permutes a small table of what is visible, and
  the beams of a source read their cache in one matrix product. Most beams soon have no
  descendants; their slots are dropped, so a cache is about as long as a single prefix.
* Constants are computed once: one matrix for query, key and value, the scale and gamma in
  the query weights, row scales and padding in the values of the source.

benchmarks/steppers.py measures the gain. For the preset `tiny`, 16 sources and 4 beams it is
1.2 to 1.3 times for 32 target tokens, and 1.6 to 1.9 times for 128.

Shapes: B sources, K beams of each, R = B * K rows, H heads, d head width, D width, N slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reluformer.layers import Attention, FeedForward, Rotation, Sublayer, TokenSlots, rotate, rotation, sinusoids
from reluformer.models.blocks import Block
from reluformer.models.encoder_decoder import Encoded, ReLUFormer
from reluformer.rules import Formula, Rule, formula_of
from reluformer.translation.stepper import ModelStepper

Map = Callable[[Tensor], Tensor]


class Visible(NamedTuple):
    """The slots that each query sees and their number, as far as the reader needs them."""

    table: Tensor | None
    n: Tensor | None


class Source(NamedTuple):
    """The slots of the encoded sources, (B, H, N, d) each, in the form that their reader takes."""

    keys: Tensor
    values: Tensor
    visible: Visible

    def select(self, sources: Tensor) -> Source:
        """Keeps these of the B sources."""
        keys, values = self.keys.index_select(0, sources), self.values.index_select(0, sources)
        kept = (None if part is None else part.index_select(0, sources) for part in self.visible)
        return Source(keys, values, Visible(*kept))


class Reader:
    """The reader of any rule: it calls the rule itself."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def table(self, visible: Tensor) -> Tensor:
        """Returns boolean visibility in the form that `read` takes."""
        return visible

    def seen(self, table: Tensor) -> Tensor:
        """Returns boolean visibility from the form of `table`."""
        return table

    def visible(self, table: Tensor | None, n: Tensor) -> Visible:
        """Returns what all layers of a step share; `table` broadcasts to (B, H, K, N), n to (B, H, K, 1)."""
        return Visible(table, n)

    def source(self, slots: TokenSlots) -> Source:
        """Prepares the encoded source for the reads of all steps."""
        table = None if slots.mask is None else self.table(slots.mask[:, None, None])
        visible = self.visible(table, _visible_counts(slots))
        return Source(slots.keys.contiguous(), slots.values.contiguous(), visible)

    def read(self, q: Tensor, keys: Tensor, values: Tensor, visible: Visible, offset: Tensor | None = None) -> Tensor:
        """Reads keys and values (B, H, N, d) with queries (B, H, K, d); `offset` (1, H, 1, 1) is added to scores."""
        scores = _products(q, keys.transpose(-1, -2))
        weights = self.weights(scores if offset is None else scores.add_(offset), visible)
        return _products(weights.to(values.dtype), values)

    def weights(self, scores: Tensor, visible: Visible) -> Tensor:
        """Returns the weights of scores (B, H, K, N), which may be overwritten."""
        assert visible.n is not None
        return self.rule.weights(scores.to(visible.n.dtype), visible.n, visible.table)


class ReluReader(Reader):
    """The reader of ReLU times a row factor. The table, or the values of a source, hold the factor."""

    def __init__(self, rule: Rule, formula: Formula) -> None:
        super().__init__(rule)
        self.formula = formula

    def table(self, visible: Tensor) -> Tensor:
        return visible.float()

    def seen(self, table: Tensor) -> Tensor:
        return table != 0

    def visible(self, table: Tensor | None, n: Tensor) -> Visible:
        scale = None if self.formula.factor == 1 and self.formula.exponent == 0 else self.formula.row_factor(n)
        return Visible(scale if table is None else table if scale is None else table * scale, None)

    def source(self, slots: TokenSlots) -> Source:
        scale = self.visible(None, _visible_counts(slots)).table
        values = slots.values if slots.mask is None else slots.values * slots.mask[:, None, :, None]
        values = values if scale is None else values * scale.to(values.dtype)
        return Source(slots.keys.contiguous(), values.contiguous(), Visible(None, None))

    def weights(self, scores: Tensor, visible: Visible) -> Tensor:
        weights = scores.relu_()
        return weights if visible.table is None else weights.mul_(visible.table)


class SoftmaxReader(Reader):
    """The reader of softmax. The table is a bias, so low that hidden slots get exactly 0."""

    def table(self, visible: Tensor) -> Tensor:
        return torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, -1e30)

    def seen(self, table: Tensor) -> Tensor:
        return table == 0

    def visible(self, table: Tensor | None, n: Tensor) -> Visible:
        return Visible(table, None)

    def weights(self, scores: Tensor, visible: Visible) -> Tensor:
        return torch.softmax(scores if visible.table is None else scores.add_(visible.table), -1)


def reader_of(rule: Rule) -> Reader:
    """Returns the reader for a rule; one whose formula has no reader of its own gets the general one."""
    formula = formula_of(rule)
    if formula is not None and formula.is_relu:
        return ReluReader(rule, formula)
    if formula is not None and formula.is_softmax:
        return SoftmaxReader(rule)
    return Reader(rule)


def _visible_counts(slots: TokenSlots) -> Tensor:
    """Returns the number of visible slots of each source, (B, 1, 1, 1)."""
    batch, _, length, _ = slots.keys.shape
    exact = torch.float64 if slots.keys.dtype == torch.float64 else torch.float32
    if slots.mask is None:
        return torch.full((batch, 1, 1, 1), float(length), dtype=exact, device=slots.keys.device)
    return slots.mask.sum(-1).clamp_min(1).to(exact).view(batch, 1, 1, 1)


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Multiplies the matrices of each source and head; `bmm` starts faster than `matmul`."""
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1)).view(*a.shape[:3], b.size(-1))


class TorchBeams:
    """The slots of all beams that have descendants, and which beam sees which slot."""

    def __init__(
        self, slots: list[Tensor], sources: list[Source], table: Tensor, length: int, sentences: Tensor | None
    ) -> None:
        self.slots = slots  # of each layer: keys and values, (2, B, H, capacity, d)
        self.sources = sources
        self.table = table  # (R, N), in the form of the reader
        self.length = length
        self.sentences = sentences  # (R): separators so far, None = not counted
        self.batch = table.size(0)
        # the largest tensors of a step and one that seldom changes, made once
        self.logits = self.log_probabilities = self.own_slots = table.new_empty(0, 0)

    def select(self, sources: Tensor) -> None:
        """Keeps these of the B sources, each with all of its beams."""
        used, beams = self.table.size(1), self.table.size(0) // self.batch
        rows = (sources[:, None] * beams + torch.arange(beams, device=sources.device)).flatten()
        self.slots = [slots[:, :, :, :used].index_select(1, sources) for slots in self.slots]
        self.sources = [source.select(sources) for source in self.sources]
        self.table = self.table.index_select(0, rows)
        if self.sentences is not None:
            self.sentences = self.sentences.index_select(0, rows)
        self.batch = sources.numel()

    def make_room(self, new: int, seen: Callable[[Tensor], Tensor]) -> None:
        """Makes room for `new` more slots of each source; slots that no beam sees are dropped first."""
        if not self.slots or self.table.size(1) + new <= self.slots[0].size(3):
            return
        by_source = seen(self.table).view(self.batch, -1, self.table.size(1)).any(1)
        kept = by_source.sum(1).max()
        order = by_source.int().argsort(dim=1, descending=True, stable=True)[:, :kept]
        needed, width = order.size(1) + new, self.table.size(0) // self.batch
        self.table = self.table.gather(1, order.repeat_interleave(width, 0))
        for i, old in enumerate(self.slots):
            two, batch, heads, capacity, size = old.shape
            first = torch.arange(0, two * batch * heads * capacity, capacity, device=old.device)
            rows = first.view(two, batch, heads, 1) + order[:, None]
            self.slots[i] = old.new_empty(two, batch, heads, needed + max(32, needed // 4), size)
            moved = old.reshape(-1, size).index_select(0, rows.flatten()).view(two, batch, heads, -1, size)
            self.slots[i][:, :, :, : order.size(1)] = moved


class _Layer(NamedTuple):
    """A decoder block as the functions that a step applies in turn."""

    query_key_value: Map
    attention_output: Map
    query: Map
    cross_output: Map
    feed_forward: Map
    norms: tuple[Map, Map, Map]
    offsets: tuple[Tensor | None, Tensor | None]
    """The offsets of the scores in self-attention and cross attention."""


class TorchStepper(ModelStepper[TorchBeams]):
    """The stepper for every rule and device."""

    def __init__(self, model: ReLUFormer) -> None:
        super().__init__(model)
        config = model.config
        self.pre_norm = config.norm == "pre"
        self.score_dtype = _exact(model.output_embedding.weight)
        self.reader = reader_of(config.decoder_attention)
        self.source_reader = reader_of(config.cross_attention)
        self._sinusoids: Tensor | None = None
        self._rotation: Rotation | None = None
        self._known_positions = 0
        with torch.inference_mode():
            self.layers = [_layer(block) for block in model.decoder if isinstance(block, Block)]
            self._output = model.output_embedding.weight.t().contiguous()

    @torch.inference_mode()
    def start(self, encoded: Encoded, prefix: Tensor) -> tuple[Tensor, TorchBeams]:
        begun = self.model.start(encoded)
        states = self.model.step(prefix, begun)[:, -1]
        slots = [torch.stack([cache.slots.keys, cache.slots.values]) for cache in begun.caches]
        sources = [self.source_reader.source(source) for source in begun.source]
        table = self.reader.table(torch.ones(prefix.shape, dtype=torch.bool, device=prefix.device))
        beams = TorchBeams(slots, sources, table, prefix.size(1), begun.sentences)
        return self._log_probabilities(states, beams), beams

    @torch.inference_mode()
    def step(self, tokens: Tensor, parents: Tensor, beams: TorchBeams) -> Tensor:
        batch, rows = beams.batch, tokens.size(0)
        width = rows // batch
        x = self.model.target_embedding.weight.index_select(0, tokens) * math.sqrt(self.model.config.width)
        added, turn = self._position(beams.length, x)
        if added is not None:
            x += added
        if beams.sentences is not None:
            beams.sentences = beams.sentences.index_select(0, parents) + (tokens == self.model.config.separator)
            assert self._sinusoids is not None
            x += self._sinusoids.index_select(0, beams.sentences)
        beams.table = beams.table.index_select(0, parents)
        beams.make_room(width, self.reader.seen)
        beams.table = torch.cat([beams.table, self._own_slots(batch, width, beams)], 1)
        beams.length += 1
        n = torch.full((1, 1, 1, 1), float(beams.length), dtype=_exact(x), device=x.device)
        only_path = beams.table.size(1) == beams.length
        visible = self.reader.visible(None if only_path else beams.table.view(batch, 1, width, -1), n)
        for i, layer in enumerate(self.layers):
            h = layer.norms[0](x) if self.pre_norm else x
            read = self._own_read(layer.query_key_value(h), i, beams, turn, visible, layer.offsets[0])
            x = x + layer.attention_output(read)
            x = x if self.pre_norm else layer.norms[0](x)
            h = layer.norms[1](x) if self.pre_norm else x
            x = x + layer.cross_output(self._source_read(layer.query(h), beams.sources[i], layer.offsets[1]))
            x = x if self.pre_norm else layer.norms[1](x)
            h = layer.norms[2](x) if self.pre_norm else x
            x = x + layer.feed_forward(h)
            x = x if self.pre_norm else layer.norms[2](x)
        return self._log_probabilities(self.model.decoder_norm(x), beams)

    def _log_probabilities(self, states: Tensor, beams: TorchBeams) -> Tensor:
        """Returns log-probabilities (R, V) of states (R, D), in memory that is allocated once."""
        if beams.logits.size(0) < states.size(0):
            beams.logits = states.new_empty(states.size(0), self._output.size(1))
            beams.log_probabilities = torch.empty_like(beams.logits, dtype=self.score_dtype)
        rows = slice(states.size(0))
        logits = torch.mm(states, self._output, out=beams.logits[rows])
        return torch.log_softmax(logits.to(self.score_dtype), 1, out=beams.log_probabilities[rows])

    def _own_read(
        self,
        query_key_value: Tensor,
        layer: int,
        beams: TorchBeams,
        turn: Rotation | None,
        visible: Visible,
        offset: Tensor | None,
    ) -> Tensor:
        """Writes the new slots and reads those of all beams of the source; (R, 3D) -> (R, D)."""
        batch, heads, used = beams.batch, self.model.config.heads, beams.table.size(1)
        parts = query_key_value.view(batch, -1, 3, heads, query_key_value.size(1) // (3 * heads))
        parts = parts.permute(2, 0, 3, 1, 4)  # (3, B, H, K, d)
        q, new = parts[0], parts[1:]
        if turn is not None:
            q = rotate(q, turn)
            new = torch.stack([rotate(parts[1], turn), parts[2]])
        slots = beams.slots[layer]
        slots[:, :, :, used - new.size(3) : used] = new
        keys, values = slots[0, :, :, :used], slots[1, :, :, :used]
        return _joined(self.reader.read(q, keys, values, visible, offset))

    def _source_read(self, query: Tensor, source: Source, offset: Tensor | None) -> Tensor:
        """Reads the slots of the source; (R, D) -> (R, D)."""
        batch, heads, _, width = source.keys.shape
        q = query.view(batch, -1, heads, width).transpose(1, 2)
        return _joined(self.source_reader.read(q, *source, offset))

    def _own_slots(self, batch: int, width: int, beams: TorchBeams) -> Tensor:
        """Returns the visibility (R, K) of the K newest slots of a source: each row sees its own."""
        if beams.own_slots.shape != (batch * width, width):
            diagonal = torch.eye(width, dtype=torch.bool, device=beams.table.device)
            beams.own_slots = self.reader.table(diagonal).repeat(batch, 1)
        return beams.own_slots

    def _position(self, position: int, x: Tensor) -> tuple[Tensor | None, Rotation | None]:
        """Returns what is added to the embeddings at a position, and the rotation of queries and keys there."""
        config = self.model.config
        if position + 1 >= self._known_positions:
            length = max(256, 2 * position)
            if config.positions != "rotary" or config.separator is not None:
                self._sinusoids = sinusoids(0, length, config.width, x.device).to(x.dtype)
            if config.positions != "sinusoidal":
                self._rotation = rotation(0, length, config.width // config.heads, x.device)
            self._known_positions = length
        row, added, turn = slice(position, position + 1), self._sinusoids, self._rotation
        return (
            None if added is None or config.positions == "rotary" else added[row],
            None if turn is None else Rotation(turn.cos[row], turn.sin[row]),
        )


def _joined(read: Tensor) -> Tensor:
    """Joins the heads; (B, H, K, d) -> (R, D)."""
    batch, heads, beams, width = read.shape
    return read.transpose(1, 2).reshape(batch * beams, heads * width)


def _exact(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _layer(block: Block) -> _Layer:
    own, cross, ffn = block.attention, block.cross, block.ffn
    assert isinstance(own.layer, Attention) and isinstance(ffn.layer, FeedForward)
    assert isinstance(cross, Sublayer) and isinstance(cross.layer, Attention)
    query = query_with_scale(own.layer)
    key_value = own.layer.key_value
    joint = torch.cat([query[0], key_value.weight]), torch.cat([query[1], key_value.bias])
    return _Layer(
        _linear(*joint),
        _then(own.layer.norm, own.layer.output),
        _linear(*query_with_scale(cross.layer)),
        _then(cross.layer.norm, cross.layer.output),
        _feed_forward(ffn.layer),
        (_norm(own.norm), _norm(cross.norm), _norm(ffn.norm)),
        (own.layer.read.bias, cross.layer.read.bias),
    )


def _linear(weight: Tensor, bias: Tensor | None) -> Map:
    """Returns x -> x weight^T + bias. For few rows the product is faster with the weight stored as (in, out)."""
    turned = weight.t().contiguous()
    if bias is None:
        return lambda x: torch.mm(x, turned)
    return lambda x: torch.addmm(bias, x, turned)


def _norm(norm: nn.LayerNorm) -> Map:
    return lambda x: F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _then(norm: nn.Module, output: nn.Linear) -> Map:
    linear = _linear(output.weight, output.bias)
    return linear if isinstance(norm, nn.Identity) else lambda x: linear(norm(x))


def query_with_scale(attention: Attention) -> tuple[Tensor, Tensor]:
    """Returns the weight and bias of the query, multiplied by 1 / sqrt(d) and gamma."""
    weight, bias = attention.query.weight, attention.query.bias
    width = weight.size(0) // attention.heads
    factor = weight.new_full((attention.heads, 1, 1), 1 / math.sqrt(width))
    if attention.log_gamma is not None:
        factor = factor * attention.inverse_gamma()
    by_row = factor.expand(-1, width, 1).reshape(-1, 1)
    return weight * by_row, bias * by_row.squeeze(1)


def _feed_forward(layer: FeedForward) -> Map:
    """Returns the plain feed-forward layer without module calls; for other rules, the layer itself."""
    if layer.rule.output_norm is not None or formula_of(layer.rule) != Formula("relu"):
        return lambda x: layer(x)[0]
    keys, values = (_linear(part.weight, part.bias) for part in (layer.keys, layer.values))
    return lambda x: values(keys(x).relu_())
