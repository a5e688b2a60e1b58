"""What the trainer has to know about a task: its model, its data and its loss.

The trainer knows no tokens, corpora or scores. Translation implements `Task` in
`translation.task`; a language model or an image model does the same in its own package and
then has the same loop, checkpoints, run directory and resumption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from reluformer.training.config import TrainingRecipe
from reluformer.training.objective import Objective

Evaluate = Callable[[Any], Mapping[str, float]]
"""Returns scores of a model beside its loss, e.g. {"bleu": 27.1}. The main process calls it at each validation."""


class TrainingBatch(Protocol):
    """One batch of examples, as the objective takes it."""

    @property
    def target_tokens(self) -> int:
        """Number of targets that the loss is summed over."""

    @property
    def cells(self) -> int:
        """Number of positions in all tensors of the batch, padding included."""

    @property
    def padding(self) -> int:
        """Number of positions that hold padding."""

    @property
    def inputs(self) -> tuple[Tensor | None, ...]:
        """The arguments of the objective."""

    @property
    def row_masks(self) -> Mapping[str, Tensor | None]:
        """Masks (B, T) by the part of the model that reads ("encoder", "decoder"); True at real queries."""

    def to(self, device: torch.device | str) -> Self:
        """Returns the same batch on `device`."""


class TrainingData(Protocol):
    """The batches of all updates, for one process."""

    @property
    def padding(self) -> float:
        """Share of padding in the batches of an epoch."""

    @property
    def updates_per_epoch(self) -> float:
        """Updates in which every example occurs once."""

    def batches(self, step: int) -> list[Any]:
        """Returns the batches of update number `step`, counted from 1.

        The result depends on the seed, `step` and the rank of the process only, so that training resumes exactly.
        """


class Task(Protocol):
    """A task that can be trained. The trainer calls `prepare` first, and on the main process only."""

    @property
    def recipe(self) -> TrainingRecipe:
        """The recipe, which the run directory keeps and which decides whether a run can be resumed."""

    @property
    def evaluate(self) -> Evaluate | None:
        """The scores to compute at each validation; None if there are none."""

    def prepare(self, report: Callable[[str], None]) -> None:
        """Makes the data ready on disk; `report` shows a line to the user."""

    def fingerprint(self) -> Mapping[str, Any]:
        """Returns what identifies the content of the data; a resumed run must find the same."""

    def training_data(self, rank: int, world: int) -> TrainingData:
        """Returns the training batches of process `rank` of `world`."""

    def validation_data(self, rank: int, world: int) -> Iterable[Any] | None:
        """Returns the validation batches of process `rank` of `world`; None without a validation split."""

    def build_model(self) -> nn.Module:
        """Returns a new model with random weights."""

    def build_objective(self, model: nn.Module) -> Objective:
        """Returns the loss of `model`."""

    def load_initial(self, directory: Path) -> nn.Module:
        """Returns the saved model that training starts from; raises `ConfigError` if it does not fit the task."""

    def save_model(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Writes a model with everything it needs (a tokenizer, for example); its configuration comes last."""
