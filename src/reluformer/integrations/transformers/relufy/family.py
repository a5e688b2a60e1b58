"""What the conversion needs to know of a family of models, the examples it uses, and the family of our own models.

`PretrainedFamily` is for models of transformers, `ReLUFormerFamily` for those of this package. The student
of the latter is an ordinary ReLUFormer. The scale goes into the query projection, as does a gamma that the
teacher learned. The centre goes into the bias of the keys. The offset is a parameter of the read
(`learn_offset`), if the rule uses one. So a saved student is a run like any other.

Shapes: B texts, S source tokens, T tokens, D width, V vocabulary; rows (B, T) is True at tokens.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reluformer.errors import ArgumentError
from reluformer.integrations.transformers.relufy.calibration import HeadFit, ReadSample, shifts_matter
from reluformer.kernels import Visibility
from reluformer.layers import Attention, TokenRead, TokenSlots
from reluformer.models.blocks import Block
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.rules import Rule
from reluformer.translation.batches import BatchPlan, sorted_batches
from reluformer.translation.stepper import evaluating
from reluformer.translation.tokenizer import BEGIN, END, PAD, Tokenizer

CalibrationTexts = Sequence[str] | Sequence[tuple[str, str]]
"""Sentences for an encoder, (source, target) pairs for an encoder-decoder."""


class Example(NamedTuple):
    """The token ids of one text."""

    source: list[int]
    target: list[int]
    """The target with its end token; empty for an encoder."""


class ExampleBatch(NamedTuple):
    """Examples, padded on the right; masks are True at tokens."""

    source: Tensor  # (B, S)
    source_mask: Tensor
    target: Tensor  # (B, T): the decoder input, with a start token first
    labels: Tensor  # (B, T): the tokens to predict
    target_mask: Tensor


class ExampleSet:
    """Examples, and the batches made of them."""

    def __init__(self, examples: Sequence[Example], pad: int, start: int, batch_tokens: int) -> None:
        self.examples = examples
        self.pad, self.start, self.batch_tokens = pad, start, batch_tokens
        self._lengths = (
            [len(example.source) for example in examples],
            [max(1, len(example.target)) for example in examples],
        )

    def in_order(self) -> Iterator[ExampleBatch]:
        """Yields every example once, in batches of similar length."""
        for rows in sorted_batches(*self._lengths, self.batch_tokens):
            yield self.batch(rows)

    def plan(self, seed: int) -> BatchPlan:
        """Returns which examples make up which training step."""
        return BatchPlan(*self._lengths, self.batch_tokens, seed)

    def batch(self, rows: Sequence[int]) -> ExampleBatch:
        """Returns the batch of these examples."""
        chosen = [self.examples[row] for row in rows]
        source, source_mask = self._padded([example.source for example in chosen])
        labels, target_mask = self._padded([example.target for example in chosen])
        target = torch.cat([torch.full_like(labels[:, :1], self.start), labels[:, :-1]], 1)
        return ExampleBatch(source, source_mask, target, labels, target_mask)

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        length = max(map(len, rows))
        ids = torch.full((len(rows), length), self.pad, dtype=torch.long)
        mask = torch.zeros(len(rows), length, dtype=torch.bool)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row, dtype=torch.long)
            mask[i, : len(row)] = True
        return ids, mask


def checked_texts(texts: CalibrationTexts, pairs: bool) -> tuple[list[str], list[str]]:
    """Returns the sources and the targets (none for an encoder).

    Raises:
        ArgumentError: There are no texts, or one of them is blank or of the wrong type.
    """
    if isinstance(texts, str):
        raise ArgumentError("calibration_texts is one string; write [text]")
    if not len(texts):
        raise ArgumentError("calibration_texts is empty; give some hundreds of texts like those the model will read")
    wanted = "(source, target) pairs of strings, as the model has a decoder" if pairs else "strings"
    sources, targets = [], []
    for number, text in enumerate(texts):
        fits = isinstance(text, str) != pairs
        if pairs and fits:
            fits = len(text) == 2 and all(isinstance(side, str) for side in text)
        if not fits:
            raise ArgumentError(f"calibration_texts[{number}] is {text!r:.60}; expected {wanted}")
        source, target = (text[0], text[1]) if pairs else (str(text), "")
        if not source.strip() or (pairs and not target.strip()):
            raise ArgumentError(f"calibration_texts[{number}] is blank; leave blank texts out")
        sources.append(source)
        targets.append(target)
    return sources, targets if pairs else []


def relative_error(student: Tensor, teacher: Tensor, rows: Tensor) -> Tensor:
    """Returns the squared difference of states (B, T, D) over the teacher's variance across tokens."""
    wanted = teacher[rows]
    spread = (wanted - wanted.mean(0)).square().sum()
    return (student[rows] - wanted).square().sum() / spread.clamp_min(torch.finfo(wanted.dtype).tiny)


def embedding(states: Tensor, rows: Tensor) -> Tensor:
    """Returns the mean over the tokens of each text, scaled to length one: (B, T, D) -> (B, D)."""
    tokens = rows.unsqueeze(-1).to(states.dtype)
    return F.normalize((states * tokens).sum(1) / tokens.sum(1).clamp_min(1), dim=-1)


def divergence(student: Tensor, teacher: Tensor, rows: Tensor) -> Tensor:
    """Returns the mean Kullback-Leibler divergence of the next token; logits are (B, T, V)."""
    wanted, given = (logits[rows].float().log_softmax(-1) for logits in (teacher, student))
    return F.kl_div(given, wanted, reduction="batchmean", log_target=True)


def token_losses(logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """Returns the negative log-likelihood of each label, (tokens)."""
    return F.cross_entropy(logits[rows].float(), labels[rows], reduction="none")


Trained = Literal["scores", "attention", "all"]
"""What distillation trains: scales, offsets and centres; also the attention projections; or every weight."""


class ModelStates(NamedTuple):
    """The states of a model for one batch."""

    hidden: list[tuple[Tensor, Tensor]]
    """The states (B, T, D) after every layer, with the mask of the tokens."""
    logits: Tensor | None
    """The logits (B, T, V) of a decoder with an output layer."""


class Family(ABC):
    """A teacher, its students, and access to the reads and states of both."""

    teacher: nn.Module
    rule: Rule
    """The rule of the students."""

    @abstractmethod
    def examples(self, texts: CalibrationTexts, batch_tokens: int) -> ExampleSet:
        """Tokenizes texts and checks them."""

    @abstractmethod
    def student(self) -> nn.Module:
        """Returns a copy of the teacher with the new rule, not fitted yet."""

    @abstractmethod
    def teaching(self) -> AbstractContextManager[None]:
        """Returns a context in which the teacher is in evaluation mode; at the end it is restored."""

    @abstractmethod
    def reads(self, model: nn.Module, batch: ExampleBatch) -> dict[str, ReadSample]:
        """Returns the reads of every attention by name, without gradient."""

    @abstractmethod
    def can_centre(self, name: str) -> bool:
        """Returns True if the keys of this attention can be shifted."""

    @abstractmethod
    def install(self, student: nn.Module, fits: Mapping[str, HeadFit]) -> None:
        """Writes the fits into the student."""

    @abstractmethod
    def attention_losses(self, student: nn.Module, batch: ExampleBatch) -> list[Tensor]:
        """Returns the relative error of every attention, each on the teacher's input to it."""

    @abstractmethod
    def states(self, model: nn.Module, batch: ExampleBatch) -> ModelStates:
        """Returns the states of the model for a batch."""

    @abstractmethod
    def new_parameters(self, student: nn.Module) -> list[nn.Parameter]:
        """Returns the parameters that the student has and the teacher does not."""

    @abstractmethod
    def attention_parameters(self, student: nn.Module) -> list[nn.Parameter]:
        """Returns the parameters of the attention modules."""

    def trained(self, student: nn.Module, what: Trained) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Returns the new parameters, and those of the teacher's that are trained as well."""
        new = self.new_parameters(student)
        others = {"scores": [], "attention": self.attention_parameters(student), "all": list(student.parameters())}
        known = {id(parameter) for parameter in new}
        return new, [parameter for parameter in others[what] if parameter.requires_grad and id(parameter) not in known]

    def final_loss(self, student: nn.Module, batch: ExampleBatch) -> Tensor:
        """Returns the loss of the whole student: states after every layer, and embedding or next tokens."""
        with torch.no_grad():
            wanted = self.states(self.teacher, batch)
        given = self.states(student, batch)
        errors = [
            relative_error(got, states, rows)
            for (got, _), (states, rows) in zip(given.hidden, wanted.hidden, strict=True)
        ]
        loss = torch.stack(errors).mean()
        if given.logits is not None and wanted.logits is not None:
            return loss + divergence(given.logits, wanted.logits, batch.target_mask)
        (got, _), (states, rows) = given.hidden[-1], wanted.hidden[-1]
        return loss + 1 - (embedding(got, rows) * embedding(states, rows)).sum(-1).mean()

    @torch.no_grad()
    def compare(self, student: nn.Module, batches: Iterable[ExampleBatch]) -> dict[str, float]:
        """Returns measures of agreement with the teacher, averaged over texts or tokens."""
        cosines: list[Tensor] = []
        differences: list[Tensor] = []
        losses: list[tuple[Tensor, Tensor]] = []
        same: list[Tensor] = []
        for batch in batches:
            wanted, given = self.states(self.teacher, batch), self.states(student, batch)
            (got, _), (states, rows) = given.hidden[-1], wanted.hidden[-1]
            cosines.append((embedding(got, rows) * embedding(states, rows)).sum(-1))
            if given.logits is None or wanted.logits is None:
                continue
            kept, logits = batch.target_mask, (wanted.logits, given.logits)
            differences.append(divergence(given.logits, wanted.logits, kept) * kept.sum())
            losses.append((token_losses(logits[0], batch.labels, kept), token_losses(logits[1], batch.labels, kept)))
            same.append((logits[0].argmax(-1) == logits[1].argmax(-1))[kept].float())
        found = {"cosine": float(torch.cat(cosines).mean())}
        if losses:
            teacher, own = (torch.cat(side).mean().item() for side in zip(*losses, strict=True))
            tokens = sum(part.numel() for part in same)
            found["divergence"] = float(torch.stack(differences).sum() / tokens)
            found["same_token"] = float(torch.cat(same).mean())
            found["perplexity"], found["teacher_perplexity"] = math.exp(own), math.exp(teacher)
        return found

    @torch.no_grad()
    def zero_shares(self, student: nn.Module, batches: Iterable[ExampleBatch]) -> dict[str, float]:
        """Returns the share of weights of visible slots that are exactly zero, by attention, without padding."""
        zeros: dict[str, float] = {}
        counted: dict[str, float] = {}
        for batch in batches:
            for name, sample in self.reads(student, batch).items():
                found = sample.zeros()
                seen = (sample.visible & sample.rows[:, None, :, None]).expand_as(found)
                zeros[name] = zeros.get(name, 0.0) + float((found & seen).sum())
                counted[name] = counted.get(name, 0.0) + float(seen.sum())
        return {name: zeros[name] / max(1.0, counted[name]) for name in zeros}


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
                q, (keys, values, mask, *_), *_ = given
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
