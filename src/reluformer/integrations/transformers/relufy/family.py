"""What relufying needs to know of a family of models.

`PretrainedFamily` is for models of transformers, `ReLUFormerFamily` for our own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from reluformer.integrations.transformers.relufy.agreement import divergence, embedding, relative_error, token_losses
from reluformer.integrations.transformers.relufy.calibration import HeadFit, ReadSample
from reluformer.integrations.transformers.relufy.examples import Batch, ExampleSet, Texts

Trained = Literal["scores", "attention", "all"]
"""What distillation changes: the scales, offsets and centres; also the projections of attention; every weight."""


class States(NamedTuple):
    """What a model makes of a batch."""

    hidden: list[tuple[Tensor, Tensor]]
    """After every layer (B, T, D), with the mask of its tokens."""
    logits: Tensor | None
    """(B, T, V) of a decoder that speaks."""


class Family(ABC):
    """A teacher, the students made of it, and how both are looked into."""

    teacher: nn.Module

    @abstractmethod
    def examples(self, texts: Texts, batch_tokens: int) -> ExampleSet:
        """The texts as token ids, checked."""

    @abstractmethod
    def student(self) -> nn.Module:
        """A copy of the teacher with the rule in the place of its own, nothing fitted yet."""

    @abstractmethod
    def teaching(self) -> AbstractContextManager[None]:
        """The teacher ready to be asked, and left as it was at the end."""

    @abstractmethod
    def reads(self, model: nn.Module, batch: Batch) -> dict[str, ReadSample]:
        """The reads of every attention, by name; without gradient."""

    @abstractmethod
    def can_centre(self, name: str) -> bool:
        """Whether the keys of this attention can be shifted."""

    @abstractmethod
    def install(self, student: nn.Module, fits: Mapping[str, HeadFit]) -> None:
        """Write what calibration found into the student."""

    @abstractmethod
    def attention_losses(self, student: nn.Module, batch: Batch) -> list[Tensor]:
        """The relative error of every attention, each on the teacher's input to it."""

    @abstractmethod
    def states(self, model: nn.Module, batch: Batch) -> States:
        """What the model makes of the batch."""

    @abstractmethod
    def new_parameters(self, student: nn.Module) -> list[nn.Parameter]:
        """What the student has and the teacher has not."""

    @abstractmethod
    def attention_parameters(self, student: nn.Module) -> list[nn.Parameter]:
        """Of the attention modules themselves."""

    def trained(self, student: nn.Module, what: Trained) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """The new parameters, and those of the teacher's that are trained too, fixed positions never."""
        new = self.new_parameters(student)
        others = {"scores": [], "attention": self.attention_parameters(student), "all": list(student.parameters())}
        known = {id(parameter) for parameter in new}
        return new, [parameter for parameter in others[what] if parameter.requires_grad and id(parameter) not in known]

    def final_loss(self, student: nn.Module, batch: Batch) -> Tensor:
        """End to end: the states after every layer, and the embedding or the next tokens."""
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
    def compare(self, student: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Means over texts and tokens that were held out."""
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
    def zero_shares(self, student: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Of the weights of visible slots, how many are exactly zero: by attention, padding left out."""
        zeros: dict[str, float] = {}
        counted: dict[str, float] = {}
        for batch in batches:
            for name, sample in self.reads(student, batch).items():
                weights = sample.weights()
                seen = (sample.visible & sample.rows[:, None, :, None]).expand_as(weights)
                zeros[name] = zeros.get(name, 0.0) + float(((weights == 0) & seen).sum())
                counted[name] = counted.get(name, 0.0) + float(seen.sum())
        return {name: zeros[name] / max(1.0, counted[name]) for name in zeros}
