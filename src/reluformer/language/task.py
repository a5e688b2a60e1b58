"""Training of language models: the task that the trainer runs, and `train`.

    result = rf.train("configs/language.yaml")

Shapes: B batch, T tokens, S packed documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from reluformer.language.corpus import LanguageCorpus, Tokens, describe, prepare
from reluformer.language.recipe import LanguageRecipe
from reluformer.models.language_model import LanguageModel
from reluformer.training.corpus_task import CorpusTask, TrainingOptions, fit_recipe
from reluformer.training.fit import TrainingResult
from reluformer.training.objective import LossSums, Objective
from reluformer.translation.tokenizer import BEGIN


def train(
    recipe: LanguageRecipe | Mapping[str, Any] | str | Path,
    directory: str | Path | None = None,
    **options: Unpack[TrainingOptions],
) -> TrainingResult:
    """Trains the language model of a recipe, or resumes the training found in `directory`.

    Arguments, result and errors are those of `reluformer.train`.
    """
    return fit_recipe(recipe, LanguageRecipe, LanguageTask, directory, **options)


@dataclass(frozen=True)
class LanguageBatch:
    """Rows of tokens and the tokens that follow each of them; nothing is padded."""

    tokens: Tensor  # (B, T)
    targets: Tensor  # (B, T)
    offsets: Tensor | None = None  # (S + 1), of one row of packed documents

    @property
    def target_tokens(self) -> int:
        """Number of targets."""
        return self.targets.numel()

    @property
    def cells(self) -> int:
        """Number of positions."""
        return self.tokens.numel()

    @property
    def padding(self) -> int:
        """Number of positions that hold padding."""
        return 0

    @property
    def inputs(self) -> tuple[Tensor | None, ...]:
        """The arguments of the objective."""
        return self.tokens, self.targets, self.offsets

    @property
    def row_masks(self) -> Mapping[str, Tensor | None]:
        """No row is padded."""
        return {"decoder": None}

    def to(self, device: torch.device | str) -> Self:
        """Returns the same batch on `device`."""
        return replace(self, tokens=self.tokens.to(device), targets=self.targets.to(device))


def batch_of(rows: Tokens, packed: bool) -> LanguageBatch:
    """Returns a batch of rows (B, T + 1); packed, as one row whose documents do not see each other."""
    found = torch.from_numpy(np.array(rows, dtype=np.int64))
    tokens, targets = found[:, :-1], found[:, 1:]
    if not packed or not tokens.numel():
        return LanguageBatch(tokens, targets)
    begins = tokens == BEGIN
    begins[:, 0] = True
    tokens, targets = tokens.reshape(1, -1), targets.reshape(1, -1)
    offsets = torch.cat([begins.flatten().nonzero().flatten(), torch.tensor([tokens.size(1)])])
    return LanguageBatch(tokens, targets, offsets)


class LanguageBatches:
    """The training batches of process `rank` of `world`, a pure function of (seed, step, rank)."""

    padding = 0.0

    def __init__(self, rows: Tokens, recipe: LanguageRecipe, rank: int = 0, world: int = 1) -> None:
        self._rows, self._packed = rows, recipe.data.packed
        self._seed, self._accumulate = recipe.training.seed, recipe.training.accumulate
        self._rank, self._world = rank, world
        self._at_once = max(1, recipe.training.tokens_per_batch // recipe.data.context) * world
        self._per_epoch = -(-len(rows) // self._at_once)
        self._order: tuple[int, Any] = (-1, None)

    @property
    def updates_per_epoch(self) -> float:
        """Updates in which every row occurs once."""
        return self._per_epoch / self._accumulate

    def batches(self, step: int) -> list[LanguageBatch]:
        """Returns the batches of update number `step`, counted from 1."""
        return [self._batch((step - 1) * self._accumulate + i) for i in range(self._accumulate)]

    def _batch(self, number: int) -> LanguageBatch:
        epoch, place = divmod(number, self._per_epoch)
        if self._order[0] != epoch:
            self._order = (epoch, np.random.default_rng([self._seed, epoch]).permutation(len(self._rows)))
        chosen = self._order[1][place * self._at_once : (place + 1) * self._at_once][self._rank :: self._world]
        return batch_of(self._rows[np.sort(chosen)], self._packed)


class LanguageValidation:
    """The rows of a split, once and in order, dealt out to the processes."""

    def __init__(self, rows: Tokens, recipe: LanguageRecipe, rank: int = 0, world: int = 1) -> None:
        self._rows, self._packed = rows, recipe.data.packed
        self._rank, self._world = rank, world
        self._at_once = max(1, recipe.training.tokens_per_batch // recipe.data.context)

    def __iter__(self) -> Iterator[LanguageBatch]:
        """Yields equally many batches on each process, some perhaps empty."""
        for begin in range(0, len(self._rows), self._at_once * self._world):
            rows = self._rows[begin : begin + self._at_once * self._world]
            yield batch_of(rows[self._rank :: self._world], self._packed)


class LanguageTask(CorpusTask):
    """A decoder-only model and a corpus of text; implements `training.task.Task`."""

    recipe: LanguageRecipe

    @cached_property
    def corpus(self) -> LanguageCorpus:
        """The prepared corpus."""
        return LanguageCorpus(self.data)

    def prepare(self, report: Callable[[str], None]) -> None:
        """Prepares the corpus, unless it is prepared already."""
        report(f"preparing the corpus in {self.data}, unless it is there already")
        report(describe(prepare(self.recipe.data, self.data)))

    def fingerprint(self) -> dict[str, Any]:
        """Returns the tokenizer and the checksums of what training reads."""
        known: dict[str, Any] = {"tokenizer": self.corpus.tokenizer.fingerprint[:12]}
        for split, found in self.corpus.summary["splits"].items():
            if split != "test":
                known[f"{split}_checksum"] = found["checksum"][:12]
        return known

    def training_data(self, rank: int, world: int) -> LanguageBatches:
        """Returns the batches of all updates."""
        return LanguageBatches(self.corpus.rows("train", self.recipe.data.context), self.recipe, rank, world)

    def validation_data(self, rank: int, world: int) -> LanguageValidation | None:
        """Returns the batches of the validation split, if there is one."""
        if self.recipe.data.valid is None:
            return None
        return LanguageValidation(self.corpus.rows("valid", self.recipe.data.context), self.recipe, rank, world)

    def build_model(self) -> LanguageModel:
        """Returns a new model for the vocabulary of the corpus."""
        return LanguageModel(self.recipe.model_config_for(self.corpus.tokenizer.vocab_size))

    def build_objective(self, model: nn.Module) -> LanguageObjective:
        """Returns the loss of the recipe."""
        config = self.recipe.training
        return LanguageObjective(model, config.label_smoothing, config.regularizer)


class LanguageObjective(Objective):
    """The loss of a decoder-only model."""

    model: LanguageModel

    def forward(self, tokens: Tensor, targets: Tensor, offsets: Tensor | None = None) -> LossSums:
        """Returns the loss of a batch as sums.

        Args:
            tokens: (B, T) token ids.
            targets: (B, T), the tokens that follow.
            offsets: (S + 1), where packed documents begin; None if rows are not packed.
        """
        states, reads = self.model.states(tokens, offsets, stats=self.regularized)
        weight = self.model.output_embedding.weight
        return self.sums(states, weight, targets, None, reads, {"decoder": None})
