"""Training of language models: the task that the trainer runs, and `train`.

    result = rf.train("configs/language.yaml")

Shapes: B batch, T tokens, S packed documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from reluformer.config import load_yaml
from reluformer.errors import ArgumentError, ConfigError, StorageError
from reluformer.language.corpus import LanguageCorpus, Tokens, describe, prepare
from reluformer.language.recipe import LanguageRecipe
from reluformer.models import storage
from reluformer.models.language_model import LanguageModel
from reluformer.training.fit import TrainingResult, fit
from reluformer.training.objective import LossSums, Objective
from reluformer.training.progress import TrainingProgress
from reluformer.training.run import RunDirectory
from reluformer.training.task import Evaluate
from reluformer.translation.tokenizer import BEGIN, Tokenizer


def train(
    recipe: LanguageRecipe | Mapping[str, Any] | str | Path,
    directory: str | Path | None = None,
    *,
    init_from: str | Path | None = None,
    resume: bool = True,
    progress: TrainingProgress | None = None,
    evaluate: Evaluate | None = None,
    prepared: str | Path | None = None,
) -> TrainingResult:
    """Trains the language model of a recipe, or resumes the training found in `directory`.

    Args:
        recipe: A recipe, its sections as a mapping, or the path of a YAML file.
        directory: The run directory. Default: runs/NAME, where NAME is that of the YAML file, or runs/model.
        init_from: The directory of a saved model to start from; it must have the same tokenizer.
        resume: Whether to resume a run found in `directory`; otherwise it is deleted.
        progress: The receiver of progress reports. Default: a live bar or lines on stderr.
        evaluate: Computes more scores of the model at each validation.
        prepared: Where the prepared corpus is, or is written to. Default: `directory`/data.

    Returns:
        How the training ended.

    Raises:
        ConfigError: The recipe is not valid, or does not fit the run in `directory` or the model of `init_from`.
        DataError: The corpus cannot be read.
        DivergedError: The loss or the gradient is not finite.
        StorageError: The directory holds something else, or a file cannot be read or written.
    """
    name = "model"
    if isinstance(recipe, str | Path):
        name = Path(recipe).stem
        recipe = load_yaml(LanguageRecipe, recipe)
    elif not isinstance(recipe, LanguageRecipe):
        recipe = LanguageRecipe.parse(recipe, where="recipe")
    run = Path("runs") / name if directory is None else Path(directory)
    data = run / "data" if prepared is None else Path(prepared)
    if data.resolve() == run.resolve():
        raise ArgumentError(f"--prepared {data}: is the directory of the run; leave it out, or name another")
    task = LanguageTask(recipe.replace(data=recipe.data.resolved()), data, evaluate)
    return fit(task, run, init_from=init_from, resume=resume, progress=progress)


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


class LanguageTask:
    """A decoder-only model and a corpus of text; implements `training.task.Task`."""

    def __init__(self, recipe: LanguageRecipe, data: Path, evaluate: Evaluate | None = None) -> None:
        """`data` is the directory of the prepared corpus; `evaluate` gives scores beside the loss."""
        self.recipe = recipe
        self.data = data
        self.evaluate = evaluate

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

    def load_initial(self, directory: Path) -> LanguageModel:
        """Returns a saved model of the same sizes and with the same tokenizer."""
        if Tokenizer.load(RunDirectory(directory).tokenizer).fingerprint != self.corpus.tokenizer.fingerprint:
            raise ConfigError(
                f"--init-from {directory}: that model has another tokenizer than this corpus was prepared with; "
                f"set data.tokenizer.path: {directory}"
            )
        model = self.build_model()
        try:
            storage.load_weights(directory, model)
        except StorageError as error:
            raise ConfigError(f"--init-from: {error}; give the section 'model' the sizes of that model") from None
        return model

    def save_model(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Writes the tokenizer, the weights and the configuration of the model."""
        tokenizer = self.corpus.tokenizer
        tokenizer.save(directory)
        config = self.recipe.model_config_for(tokenizer.vocab_size)
        storage.save(directory, config, weights, tokenizer.fingerprint)


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
