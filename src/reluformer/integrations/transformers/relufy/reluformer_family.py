"""The conversion of our own encoder-decoder: the student is an ordinary ReLUFormer.

The scale goes into the query projection, as does a gamma that the teacher learned. The centre
goes into the bias of the keys. The offset is a parameter of the read (`learn_offset`), if
the rule uses one. So a saved student is a run like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from reluformer.errors import ArgumentError
from reluformer.integrations.transformers.relufy.calibration import HeadFit, ReadSample, shifts_matter
from reluformer.integrations.transformers.relufy.family import (
    CalibrationTexts,
    Example,
    ExampleBatch,
    ExampleSet,
    Family,
    ModelStates,
    checked_texts,
    relative_error,
)
from reluformer.kernels import Visibility
from reluformer.layers import Attention, TokenRead, TokenSlots
from reluformer.models.blocks import Block
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.rules import Rule
from reluformer.translation.stepper import evaluating
from reluformer.translation.tokenizer import BEGIN, END, PAD, Tokenizer


class ReLUFormerFamily(Family):
    """The family of this package's translation models."""

    def __init__(self, teacher: ReLUFormer, tokenizer: Tokenizer, rule: Rule, max_length: int) -> None:
        config = teacher.config
        if tokenizer.vocab_size != config.vocab_size:
            raise ArgumentError(
                f"the tokenizer has {tokenizer.vocab_size} entries, the model {config.vocab_size}; use the tokenizer "
                "that the model was trained with"
            )
        for taken in (config.encoder_attention, config.decoder_attention, config.cross_attention):
            if taken.output_norm is not None:
                raise ArgumentError(
                    f"rule '{taken.name}': attention with an output norm cannot be relufied; train a model with a rule "
                    "without one, such as softmax"
                )
        self.teacher: ReLUFormer = teacher
        self.tokenizer, self.rule, self.max_length = tokenizer, rule, max_length

    def examples(self, texts: CalibrationTexts, batch_tokens: int) -> ExampleSet:
        sources, targets = checked_texts(texts, pairs=True)
        encoded = (self.tokenizer.encode_batch(side) for side in (sources, targets))
        examples = [
            Example(*([*ids[: self.max_length - 1], END] for ids in pair)) for pair in zip(*encoded, strict=True)
        ]
        return ExampleSet(examples, PAD, BEGIN, batch_tokens)

    def student(self) -> ReLUFormer:
        rules = dict.fromkeys(("encoder_attention", "decoder_attention", "cross_attention"), self.rule)
        student = ReLUFormer(self.teacher.config.replace(**rules, learn_offset=shifts_matter(self.rule)))
        state = {name: value for name, value in self.teacher.state_dict().items() if not name.endswith("log_gamma")}
        student.load_state_dict(state, strict=False)
        student.to(self.teacher.output_embedding.weight).eval()
        for name, attention in _attentions(self.teacher).items():
            if attention.log_gamma is not None:
                _scale_queries(_attentions(student)[name], attention.inverse_gamma().flatten())
        return student

    @contextmanager
    def teaching(self) -> Iterator[None]:
        with evaluating(self.teacher):
            yield

    @torch.no_grad()
    def reads(self, model: nn.Module, batch: ExampleBatch) -> dict[str, ReadSample]:
        assert isinstance(model, ReLUFormer)
        found: dict[str, ReadSample] = {}

        def keeper(name: str) -> Any:
            def keep(module: TokenRead, given: tuple[Tensor, TokenSlots, bool], output: object) -> None:
                q, (keys, values, mask), *_ = given
                rows = batch.target_mask if name.startswith("decoder") else batch.source_mask
                visible = Visibility(q.size(2), keys.size(2), q.device, module.causal, mask).dense()
                if visible is None:
                    visible = torch.ones(1, 1, 1, 1, dtype=torch.bool)
                sample = ReadSample(q, keys, values, visible, rows, q.size(3) ** -0.5, module.rule, module.bias)
                found[name] = sample.in_float32()

            return keep

        handles = [attention.read.register_forward_hook(keeper(name)) for name, attention in _attentions(model).items()]
        try:
            model(batch.source, batch.target, batch.source_mask)
        finally:
            for handle in handles:
                handle.remove()
        return found

    def can_centre(self, name: str) -> bool:
        """Returns False for rotary positions: rotated keys have no constant part."""
        return self.teacher.config.positions == "sinusoidal" or name.endswith("cross")

    @torch.no_grad()
    def install(self, student: nn.Module, fits: Mapping[str, HeadFit]) -> None:
        assert isinstance(student, ReLUFormer)
        attentions = _attentions(student)
        for name, fit in fits.items():
            attention = attentions[name]
            scale = fit.log_scale.exp()
            _scale_queries(attention, scale)
            attention.key_value.bias[: fit.centre.numel()] -= fit.centre.flatten()
            if attention.read.offset is not None:
                attention.read.offset.add_(fit.offset).mul_(scale)  # it has the teacher's, if that had one

    def attention_losses(self, student: nn.Module, batch: ExampleBatch) -> list[Tensor]:
        assert isinstance(student, ReLUFormer)
        given: dict[str, tuple[Tensor, dict[str, Any], Tensor]] = {}

        def keeper(name: str) -> Any:
            def keep(module: nn.Module, args: tuple[Tensor], options: dict[str, Any], output: Any) -> None:
                given[name] = (args[0], options, output[0])

            return keep

        handles = [
            attention.register_forward_hook(keeper(name), with_kwargs=True)
            for name, attention in _attentions(self.teacher).items()
        ]
        try:
            with torch.no_grad():
                encoded = self.teacher.encode(batch.source, batch.source_mask)
                self.teacher.decode(batch.target, encoded)
        finally:
            for handle in handles:
                handle.remove()
        losses = []
        for name, attention in _attentions(student).items():
            x, options, wanted = given[name]
            if options.get("slots") is not None:
                options = {**options, "slots": attention.slots(encoded.states, encoded.mask)}
            rows = batch.target_mask if name.startswith("decoder") else batch.source_mask
            losses.append(relative_error(attention(x, **options)[0], wanted, rows))
        return losses

    def states(self, model: nn.Module, batch: ExampleBatch) -> ModelStates:
        assert isinstance(model, ReLUFormer)
        hidden: list[tuple[Tensor, Tensor]] = []
        handles = []
        for blocks, rows in ((model.encoder, batch.source_mask), (model.decoder, batch.target_mask)):
            for block in blocks:
                handles.append(block.register_forward_hook(_keep_states(hidden, rows)))
        try:
            output = model(batch.source, batch.target, batch.source_mask)
        finally:
            for handle in handles:
                handle.remove()
        return ModelStates(hidden, output.logits)

    def new_parameters(self, student: nn.Module) -> list[nn.Parameter]:
        assert isinstance(student, ReLUFormer)
        return [
            attention.read.offset for attention in _attentions(student).values() if attention.read.offset is not None
        ]

    def attention_parameters(self, student: nn.Module) -> list[nn.Parameter]:
        assert isinstance(student, ReLUFormer)
        return [parameter for attention in _attentions(student).values() for parameter in attention.parameters()]


def _attentions(model: ReLUFormer) -> dict[str, Attention]:
    """Returns the attention layers by name: `encoder.0.attention`, `decoder.0.cross`, ..."""
    found = {}
    for side, blocks in (("encoder", model.encoder), ("decoder", model.decoder)):
        for i, block in enumerate(blocks):
            assert isinstance(block, Block)
            for kind, sublayer in (("attention", block.attention), ("cross", block.cross)):
                if sublayer is not None and isinstance(sublayer.layer, Attention):
                    found[f"{side}.{i}.{kind}"] = sublayer.layer
    return found


@torch.no_grad()
def _scale_queries(attention: Attention, factors: Tensor) -> None:
    """Multiplies the scores of each head by its factor (H)."""
    by_row = factors.repeat_interleave(attention.query.out_features // attention.heads)
    attention.query.weight.mul_(by_row[:, None])
    attention.query.bias.mul_(by_row)


def _keep_states(into: list[tuple[Tensor, Tensor]], rows: Tensor) -> Any:
    def keep(module: nn.Module, args: object, output: tuple[Tensor, object]) -> None:
        into.append((output[0], rows))

    return keep
