"""The conversion of transformers models: BERT-like encoders, and encoder-decoders such as Marian.

The student holds a `HeadScores` in every attention module, under the name `relufied`. The
function in `attention` applies it; everything else is the model of transformers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from reluformer import rules
from reluformer.errors import ArgumentError
from reluformer.integrations.transformers.attention_interface import (
    PREFIX,
    attention_function,
    mask_function,
    mask_parts,
    relufied_scores,
    repeat_heads,
)
from reluformer.integrations.transformers.registration import register
from reluformer.integrations.transformers.relufy.calibration import HeadFit, HeadScores, ReadSample, shifts_matter
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
from reluformer.rules import Rule

RECORDED = "reluformer_recorded_reads"
RELUFIED = "relufied"
Seen = Callable[[nn.Module, ReadSample], None]


class PretrainedFamily(Family):
    """The family of models whose attention goes through transformers' interface."""

    def __init__(self, teacher: PreTrainedModel, tokenizer: Any, rule: Rule, max_length: int) -> None:
        register()
        config = teacher.config
        self.decodes = bool(config.is_encoder_decoder)
        if rules.spec(rule) != rule.name:
            raise ArgumentError(
                f"rule {rules.spec(rule)}: a model of transformers knows its rule by name alone, and scales are fitted "
                f"anyway; pass rule='{rule.name}'"
            )
        if any(isinstance(module, HeadScores) for module in teacher.modules()):
            raise ArgumentError(
                f"{type(teacher).__name__} was relufied already, and its fit would be lost; take the original model"
            )
        _check_tokenizer(teacher, tokenizer)
        self.teacher: PreTrainedModel = teacher
        self.tokenizer, self.rule, self.max_length = tokenizer, rule, max_length
        taught = str(config._attn_implementation)
        self._taught = taught if taught.startswith(PREFIX) else f"{PREFIX}softmax"
        self.attentions = self._found_attentions()

    def examples(self, texts: CalibrationTexts, batch_tokens: int) -> ExampleSet:
        sources, targets = checked_texts(texts, self.decodes)
        options = dict(truncation=True, max_length=self.max_length, return_attention_mask=False)
        source = self.tokenizer(sources, **options)["input_ids"]
        target = self.tokenizer(text_target=targets, **options)["input_ids"] if targets else [[] for _ in source]
        rows = self.teacher.get_input_embeddings().num_embeddings
        for number, pair in enumerate(zip(source, target, strict=True)):
            highest = max(max(ids, default=0) for ids in pair)
            if highest >= rows:
                raise ArgumentError(
                    f"calibration_texts[{number}] has token id {highest}, the model embeddings for 0 to {rows - 1}; "
                    "use the tokenizer that the model was trained with"
                )
        start = getattr(self.teacher.config, "decoder_start_token_id", None) if self.decodes else None
        if self.decodes and start is None:
            raise ArgumentError(f"{type(self.teacher).__name__} has no decoder_start_token_id; set it in its config")
        examples = [Example(list(ids), list(labels)) for ids, labels in zip(source, target, strict=True)]
        return ExampleSet(examples, int(self.tokenizer.pad_token_id), int(start or 0), batch_tokens)

    def student(self) -> PreTrainedModel:
        student = copy.deepcopy(self.teacher).eval()
        student.set_attn_implementation(PREFIX + self.rule.name)
        attach(student, self.attentions, self.rule)
        student.to(self.teacher.device, self.teacher.dtype)
        return student

    def _found_attentions(self) -> dict[str, tuple[int, int]]:
        """Returns heads and head width of every attention, found by a forward pass of two tokens."""
        ones = torch.ones(1, 2, dtype=torch.long, device=self.teacher.device)
        with self.teaching():
            reads = self.reads(self.teacher, ExampleBatch(ones, ones.bool(), ones, ones, ones.bool()))
        name = type(self.teacher).__name__
        if not reads:
            raise ArgumentError(
                f"{name}: none of its attention goes through transformers' AttentionInterface; use a model of a family "
                "that does, such as BERT or Marian"
            )
        if not self.decodes and not all(bool(sample.visible.all()) for sample in reads.values()):
            raise ArgumentError(
                f"{name} is a decoder alone; relufy takes encoders (BERT, RoBERTa, MiniLM) and encoder-decoders "
                "(Marian, BART)"
            )
        return {name: (sample.q.size(1), sample.q.size(3)) for name, sample in reads.items()}

    @contextmanager
    def teaching(self) -> Iterator[None]:
        before, trained = self.teacher.config._attn_implementation, self.teacher.training
        self.teacher.set_attn_implementation(self._taught)
        self.teacher.eval()
        try:
            yield
        finally:
            self.teacher.set_attn_implementation(before)
            self.teacher.train(trained)

    @torch.no_grad()
    def reads(self, model: nn.Module, batch: ExampleBatch) -> dict[str, ReadSample]:
        assert isinstance(model, PreTrainedModel)
        names = {id(module): name for name, module in model.named_modules()}
        decoder = model.get_decoder() if self.decodes else None
        decoding = {id(module) for module in decoder.modules()} if decoder is not None else set()
        found: dict[str, ReadSample] = {}

        def seen(module: nn.Module, sample: ReadSample) -> None:
            rows = batch.target_mask if id(module) in decoding else batch.source_mask
            found[names[id(module)]] = sample._replace(rows=rows)

        with _recorded(model, seen):
            self._run(model, batch)
        return found

    def can_centre(self, name: str) -> bool:
        return True

    @torch.no_grad()
    def install(self, student: nn.Module, fits: Mapping[str, HeadFit]) -> None:
        for name, fit in fits.items():
            scores = student.get_submodule(f"{name}.{RELUFIED}")
            assert isinstance(scores, HeadScores)
            scores.log_scale.copy_(fit.log_scale)
            if scores.offset is not None and scores.centre is not None:
                scores.offset.copy_(fit.offset)
                scores.centre.copy_(fit.centre)

    def attention_losses(self, student: nn.Module, batch: ExampleBatch) -> list[Tensor]:
        given: dict[str, tuple[Any, Any, Tensor, Tensor]] = {}
        decoder = self.teacher.get_decoder() if self.decodes else None
        decoding = {id(module) for module in decoder.modules()} if decoder is not None else set()

        def keeper(name: str) -> Any:
            def keep(module: nn.Module, args: Any, options: Any, output: Any) -> None:
                rows = batch.target_mask if id(module) in decoding else batch.source_mask
                given[name] = (args, options, _first(output), rows)

            return keep

        handles = [
            self.teacher.get_submodule(name).register_forward_hook(keeper(name), with_kwargs=True)
            for name in self.attentions
        ]
        try:
            with torch.no_grad():
                self._run(self.teacher, batch)
        finally:
            for handle in handles:
                handle.remove()
        return [
            relative_error(_first(student.get_submodule(name)(*args, **options)), wanted, rows)
            for name, (args, options, wanted, rows) in given.items()
        ]

    def states(self, model: nn.Module, batch: ExampleBatch) -> ModelStates:
        output = self._run(model, batch, output_hidden_states=True)
        if not self.decodes:
            return ModelStates([(states, batch.source_mask) for states in output.hidden_states[1:]], None)
        encoded = [(states, batch.source_mask) for states in output.encoder_hidden_states[1:]]
        decoded = [(states, batch.target_mask) for states in output.decoder_hidden_states[1:]]
        return ModelStates([*encoded, *decoded], getattr(output, "logits", None))

    def new_parameters(self, student: nn.Module) -> list[nn.Parameter]:
        return [
            parameter
            for name in self.attentions
            for parameter in student.get_submodule(f"{name}.{RELUFIED}").parameters()
        ]

    def attention_parameters(self, student: nn.Module) -> list[nn.Parameter]:
        return [parameter for name in self.attentions for parameter in student.get_submodule(name).parameters()]

    def _run(self, model: nn.Module, batch: ExampleBatch, **options: Any) -> Any:
        if not self.decodes:
            return model(input_ids=batch.source, attention_mask=batch.source_mask.long(), **options)
        return model(
            input_ids=batch.source,
            attention_mask=batch.source_mask.long(),
            decoder_input_ids=batch.target,
            decoder_attention_mask=batch.target_mask.long(),
            use_cache=False,
            **options,
        )


def attach(model: PreTrainedModel, attentions: Mapping[str, tuple[int, int]], rule: Rule) -> None:
    """Adds a neutral `HeadScores` to each of these attention modules."""
    for name, (heads, width) in attentions.items():
        model.get_submodule(name).add_module(RELUFIED, HeadScores(heads, width, shifts_matter(rule)))


@contextmanager
def _recorded(model: PreTrainedModel, seen: Seen) -> Iterator[None]:
    """Passes every read of the forward passes inside the context to `seen`."""
    implementation = str(model.config._attn_implementation)
    rule = rules.get(implementation.removeprefix(PREFIX))
    attend = attention_function(rule)

    def record(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        scaling = options.get("scaling")
        scale = query.size(-1) ** -0.5 if scaling is None else scaling
        given = (options.get("is_causal"), options.get("position_bias"))
        parts, bias = mask_parts(module, query, key, attention_mask, *given)
        q, bias = relufied_scores(module, query, bias, scale)
        visible = Visibility(q.size(2), key.size(2), q.device, *parts).dense()
        if visible is None:
            visible = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=q.device)
        rows = visible.new_ones(q.size(0), q.size(2))
        sample = ReadSample(q, *repeat_heads(query, key, value), visible, rows, scale, rule, bias)
        seen(module, sample.in_float32())
        return attend(module, query, key, value, attention_mask, **options)

    AttentionInterface.register(RECORDED, record)
    AttentionMaskInterface.register(RECORDED, mask_function)
    model.set_attn_implementation(RECORDED)
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)


def _check_tokenizer(model: PreTrainedModel, tokenizer: Any) -> None:
    if not callable(tokenizer) or not hasattr(tokenizer, "pad_token_id"):
        raise ArgumentError(
            f"tokenizer: expected a tokenizer of transformers, got {type(tokenizer).__name__}; "
            "load it with AutoTokenizer from the model's folder"
        )
    if tokenizer.pad_token_id is None:
        raise ArgumentError("the tokenizer has no padding token; set tokenizer.pad_token")
    entries, rows = len(tokenizer), model.get_input_embeddings().num_embeddings
    if entries > rows:
        raise ArgumentError(
            f"the tokenizer has {entries} entries, the model embeddings for {rows}; use the tokenizer that the model "
            "was trained with"
        )


def _first(output: Any) -> Tensor:
    first: Tensor = output[0] if isinstance(output, tuple) else output
    return first
