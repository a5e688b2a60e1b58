"""Translation by the compiled library: a whole search in few calls, for models on a CPU.

The encoder, the decoder and beam search are C++ (kernels/native/search.cpp). Sentences are
decoded a few at a time, and the next one enters where one has finished. Threads divide the
sentences among themselves. Weights are float32, or int8 with a scale for each row. The values of
slots without weight are not loaded. The rules are ReLU with any row scale, `relu_exp` and softmax.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reluformer.errors import ArgumentError
from reluformer.kernels.native import decoder as native
from reluformer.kernels.native.library import unavailable
from reluformer.layers import Attention, FeedForward, Sublayer, rotation, sinusoids
from reluformer.models.blocks import Block
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.rules import Formula, Rule, formula_of
from reluformer.rules.formula import HIGHEST
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.search import NOT_FINITE, Hypothesis, Outline, Search, Settled
from reluformer.translation.stepper import ModelDecoder
from reluformer.translation.torch_stepper import TorchStepper, query_with_scale

MOMENT = 20_000
"""Microseconds after which a call of the library returns, so that the interpreter can be interrupted."""


class NativeDecoder(ModelDecoder):
    """The decoder of the compiled library, with the weights in its layout.

    Args:
        model: The model; see `refusal`.
        int8: Whether to round the weights to 8 bits.
    """

    def __init__(self, model: ReLUFormer, int8: bool = False) -> None:
        super().__init__(model)
        config = model.config
        self.int8 = int8
        self.weights = weights = native.Weights(int8)
        self._tables: list[Tensor] = []
        rules = (config.encoder_attention, config.decoder_attention, config.cross_attention)
        encoder, decoder = ([_layer(weights, block) for block in blocks] for blocks in (model.encoder, model.decoder))
        self.struct = native.Model(
            width=config.width,
            heads=config.heads,
            slots=config.slots,
            vocabulary=config.vocab_size,
            encoder_layers=len(encoder),
            decoder_layers=len(decoder),
            pre_norm=config.norm == "pre",
            path=weights.path,
            separator=-1 if config.separator is None else config.separator,
            adds_positions=config.positions != "rotary",
            **dict(zip(("encoder_rule", "own_rule", "cross_rule"), map(_read_rule, rules), strict=True)),
            embedding_scale=math.sqrt(config.width),
            source_embedding=weights.embedding(model.source_embedding.weight),
            target_embedding=weights.embedding(model.target_embedding.weight),
            encoder=weights.layers(encoder),
            decoder=weights.layers(decoder),
            encoder_norm=weights.norm(model.encoder_norm),
            decoder_norm=weights.norm(model.decoder_norm),
            output=weights.linear(model.output_embedding.weight, None),
        )
        self.make_positions(512)

    @staticmethod
    def refusal(model: ReLUFormer) -> str | None:
        """Returns why a model needs another decoder, or None if it does not."""
        weight, config = model.output_embedding.weight, model.config
        if unavailable() is not None:
            return unavailable()
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            return f"the library decodes float32 on the CPU, the model is {weight.dtype} on {weight.device}"
        for rule in (config.encoder_attention, config.decoder_attention, config.cross_attention):
            if _read_rule(rule) is None:
                which = f"{rule.name} as {type(rule).__name__} defines it"
                return f"the library decodes with ReLU, relu_exp and softmax, not with {which}"
        if config.ffn.output_norm is not None or formula_of(config.ffn) != Formula("relu"):
            return f"the library decodes with relu_plain in the feed-forward layers, not with {config.ffn.name}"
        return None

    def make_positions(self, count: int) -> None:
        """Makes the tables for so many positions and sentences, if they are not there yet."""
        config, struct = self.model.config, self.struct
        if struct.positions >= count:
            return
        count = max(count, 2 * struct.positions)
        if config.positions != "rotary" or config.separator is not None:
            struct.sinusoids = self._table(sinusoids(0, count, config.width, self.device))
        if config.positions != "sinusoidal":
            turns = rotation(0, count, config.width // config.heads, self.device)
            struct.cosines, struct.sines = self._table(turns.cos), self._table(turns.sin)
        struct.positions = count

    def _table(self, table: Tensor) -> int:
        table = table.float().contiguous()
        self._tables.append(table)  # a search that is running may still look at the one before
        return table.data_ptr()

    def search(self, config: DecodingConfig) -> NativeSearch:
        """Returns a search with this decoder."""
        return NativeSearch(self, config)


class NativeSearch(Search):
    """A search in the compiled library."""

    def __init__(self, decoder: NativeDecoder, config: DecodingConfig) -> None:
        super().__init__()
        self._decoder = decoder
        options = native.SearchOptions(
            beam=config.beam,
            n_best=config.n_best,
            min_length=config.min_length,
            stops_at_beam=config.stop == "beam",
            batch_tokens=config.batch_tokens,
            length_penalty=config.length_penalty,
        )
        self._search = native.CompiledSearch(decoder.struct, options)
        self._live: set[int] = set()

    def add(self, source: Sequence[int], outline: Outline, reads: bool = False) -> int:
        self._decoder.make_positions(max(len(source), len(outline.prefix) + outline.most_tokens) + 2)
        vocabulary = self._decoder.model.config.vocab_size
        for token in (*source, *outline.prefix):
            if not 0 <= token < vocabulary:
                raise ArgumentError(
                    f"source holds token id {token}, the vocabulary has ids 0 to {vocabulary - 1}; use the tokenizer "
                    "that the model was trained with"
                )
        number = self._search.add(source, outline.prefix, outline.limits, outline.aligned, reads)
        self._live.add(number)
        return number

    @property
    def done(self) -> bool:
        return not self._live

    def advance(self, positions: int = 1) -> None:
        self._advance(positions, 60 * 10**6)

    def run(self) -> list[int]:
        return [] if self.done else self._advance(2**62, MOMENT)

    def _advance(self, positions: int, microseconds: int) -> list[int]:
        status = self._search.run(positions, microseconds)
        if status == native.NO_MEMORY:
            raise MemoryError("no memory for one position of the decoder; translate smaller batches")
        if status == native.NOT_FINITE:
            raise ArgumentError(NOT_FINITE)
        new = self._search.finished()
        for number in new:
            found = self._search.hypotheses(number)
            self.found[number] = [Hypothesis(one.tokens, one.score, one.normalised, one.reads) for one in found]
            self._search.drop(number)
            self._live.discard(number)
        return new

    def settled(self, source: int) -> Settled:
        if source in self.found:
            return Settled(self.found[source][0].tokens, self.found[source][0].reads)
        found = self._search.settled(source)
        return Settled(found.tokens, found.reads)


def _read_rule(rule: Rule) -> native.ReadRule | None:
    """Returns `rule` as the library takes it, or None if its formula is none that the library knows."""
    formula = formula_of(rule)
    if formula is None or rule.output_norm is not None:
        return None
    if formula.is_softmax:
        return native.ReadRule(kind=native.READ_SOFTMAX)
    if formula.is_relu:
        return native.ReadRule(kind=native.READ_RELU, factor=formula.factor, exponent=formula.exponent)
    level, delta = formula.level, formula.delta
    if level is None or delta is None or not formula.centred or formula.terms() != Formula("rectified_exp"):
        return None
    return native.ReadRule(
        kind=native.READ_RELU_EXP,
        threshold=level.threshold,
        growth=level.growth,
        spread=level.spread,
        floor=level.floor,
        delta=delta,
        highest=HIGHEST,
        chance=level.chance,
        cap=-1.0 if level.cap is None else level.cap,
    )


def _layer(weights: native.Weights, block: nn.Module) -> native.Layer:
    assert isinstance(block, Block)
    own, cross, ffn = block.attention, block.cross, block.ffn
    assert isinstance(own.layer, Attention) and isinstance(ffn.layer, FeedForward)
    query, key_value = query_with_scale(own.layer), own.layer.key_value

    def linear(layer: nn.Linear, by_slot: bool = False) -> native.DecoderLinear:
        return weights.linear(layer.weight, layer.bias, by_slot)

    layer = native.Layer(
        own_norm=weights.norm(own.norm),
        ffn_norm=weights.norm(ffn.norm),
        query_key_value=weights.linear(torch.cat([query[0], key_value.weight]), torch.cat([query[1], key_value.bias])),
        own_output=linear(own.layer.output),
        ffn_keys=linear(ffn.layer.keys),
        ffn_values=linear(ffn.layer.values, by_slot=True),
        own_offset=_offset(weights, own.layer),
    )
    if cross is not None:
        assert isinstance(cross, Sublayer) and isinstance(cross.layer, Attention)
        layer.cross_norm = weights.norm(cross.norm)
        layer.cross_query = weights.linear(*query_with_scale(cross.layer))
        layer.cross_key_value = linear(cross.layer.key_value)
        layer.cross_output = linear(cross.layer.output)
        layer.cross_offset = _offset(weights, cross.layer)
    return layer


def _offset(weights: native.Weights, attention: Attention) -> int | None:
    offset = attention.read.offset
    return None if offset is None else weights.pointer(offset)


def decoder_of(model: ReLUFormer, int8: bool = False) -> ModelDecoder:
    """Returns the fastest decoder for the device, the dtype and the rules that a model has now.

    Args:
        model: The model.
        int8: Whether to round the weights to 8 bits, which only the compiled library can.

    Raises:
        ArgumentError: int8 is wanted, and the library cannot decode the model.
    """
    refusal = NativeDecoder.refusal(model)
    if refusal is None:
        return NativeDecoder(model, int8)
    if int8:
        raise ArgumentError(f"no int8 weights: {refusal}; leave int8 out")
    return TorchStepper(model)
