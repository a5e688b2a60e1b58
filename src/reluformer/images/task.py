"""Training of image models: the task that the trainer runs, and `train`.

    result = rf.train("configs/images/fashion-mnist.yaml")

Shapes: B batch, C channels, S side of an image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn

from reluformer.images.dataset import LabelledImages, check_fit, load_splits
from reluformer.images.recipe import ImageRecipe
from reluformer.images.scoring import accuracy
from reluformer.models import storage
from reluformer.models.image_model import ImageModel
from reluformer.training.corpus_task import RecipeTask, TrainingOptions, fit_recipe
from reluformer.training.fit import TrainingResult
from reluformer.training.objective import LossSums, Objective
from reluformer.training.task import Evaluate


def train(
    recipe: ImageRecipe | Mapping[str, Any] | str | Path,
    directory: str | Path | None = None,
    **options: Unpack[TrainingOptions],
) -> TrainingResult:
    """Trains the image model of a recipe, or resumes the training found in `directory`.

    Arguments, result and errors are those of `reluformer.train`; images are read from their own files, so `prepared`
    has no effect.
    """
    return fit_recipe(recipe, ImageRecipe, ImageTask, directory, **options)


@dataclass(frozen=True)
class ImageBatch:
    """Images and their classes; a class is a target, and a patch a cell."""

    images: Tensor  # (B, C, S, S), uint8
    labels: Tensor  # (B,)
    tokens: int

    @property
    def target_tokens(self) -> int:
        """Number of images."""
        return self.labels.numel()

    @property
    def cells(self) -> int:
        """Number of tokens of all images."""
        return self.labels.numel() * self.tokens

    @property
    def padding(self) -> int:
        """Nothing is padded."""
        return 0

    @property
    def inputs(self) -> tuple[Tensor | None, ...]:
        """The arguments of the objective."""
        return self.images, self.labels

    @property
    def row_masks(self) -> Mapping[str, Tensor | None]:
        """No row is padded."""
        return {"encoder": None}

    def to(self, device: torch.device | str) -> Self:
        """Returns the same batch on `device`."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))


class ImageBatches:
    """The training batches of process `rank` of `world`, a pure function of (seed, step, rank)."""

    padding = 0.0

    def __init__(self, split: LabelledImages, recipe: ImageRecipe, rank: int = 0, world: int = 1) -> None:
        self._split, self._tokens = split, recipe.model.tokens
        self._seed, self._accumulate = recipe.training.seed, recipe.training.accumulate
        self._rank, self._world = rank, world
        self._at_once = max(1, recipe.training.tokens_per_batch // self._tokens) * world
        self._per_epoch = -(-len(split.labels) // self._at_once)
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    @property
    def updates_per_epoch(self) -> float:
        """Updates in which every image occurs once."""
        return self._per_epoch / self._accumulate

    def batches(self, step: int) -> list[ImageBatch]:
        """Returns the batches of update number `step`, counted from 1."""
        return [self._batch((step - 1) * self._accumulate + i) for i in range(self._accumulate)]

    def _batch(self, number: int) -> ImageBatch:
        epoch, place = divmod(number, self._per_epoch)
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            self._order = (epoch, torch.randperm(len(self._split.labels), generator=generator))
        chosen = self._order[1][place * self._at_once : (place + 1) * self._at_once][self._rank :: self._world]
        return ImageBatch(self._split.images[chosen], self._split.labels[chosen], self._tokens)


class ImageValidation:
    """The images of a split, once and in order, dealt out to the processes."""

    def __init__(self, split: LabelledImages, recipe: ImageRecipe, rank: int = 0, world: int = 1) -> None:
        self._split, self._tokens = split, recipe.model.tokens
        self._rank, self._world = rank, world
        self._at_once = max(1, recipe.training.tokens_per_batch // self._tokens)

    def __iter__(self) -> Iterator[ImageBatch]:
        """Yields equally many batches on each process, some perhaps empty."""
        step = self._at_once * self._world
        for begin in range(0, len(self._split.labels), step):
            mine = slice(begin + self._rank, begin + step, self._world)
            yield ImageBatch(self._split.images[mine], self._split.labels[mine], self._tokens)


class ImageTask(RecipeTask):
    """An image model and its images, which need no preparation; implements `training.task.Task`."""

    recipe: ImageRecipe

    @cached_property
    def splits(self) -> dict[str, LabelledImages]:
        """The images of each split."""
        found = load_splits(self.recipe.data)
        check_fit(found, self.recipe.model)
        return found

    @property
    def evaluate(self) -> Evaluate | None:
        """The accuracy on the validation images, and the scores that the caller wants at each validation."""
        if "valid" not in self.splits:
            return None
        more = super().evaluate or (lambda model: {})
        return lambda model: {"accuracy": accuracy(model, self.splits["valid"]), **more(model)}

    def prepare(self, report: Callable[[str], None]) -> None:
        """Reads the images and compares them with the model."""
        report(", ".join(f"{len(split.labels):,} images in {name}" for name, split in self.splits.items()))

    def fingerprint(self) -> dict[str, Any]:
        """Returns the checksums of what training reads."""
        return {f"{name}_checksum": split.checksum for name, split in self.splits.items() if name != "test"}

    def training_data(self, rank: int, world: int) -> ImageBatches:
        """Returns the batches of all updates."""
        return ImageBatches(self.splits["train"], self.recipe, rank, world)

    def validation_data(self, rank: int, world: int) -> ImageValidation | None:
        """Returns the batches of the validation split, if there is one."""
        split = self.splits.get("valid")
        return None if split is None else ImageValidation(split, self.recipe, rank, world)

    def build_model(self) -> ImageModel:
        """Returns a new model."""
        return ImageModel(self.recipe.model)

    def build_objective(self, model: nn.Module) -> ImageObjective:
        """Returns the loss of the recipe."""
        return ImageObjective(model, self.recipe.training.label_smoothing, self.recipe.training.regularizer)

    def save_model(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Writes the weights and the configuration of the model."""
        storage.save(directory, self.recipe.model, weights)


class ImageObjective(Objective):
    """The loss of an image model."""

    model: ImageModel

    def forward(self, images: Tensor, labels: Tensor) -> LossSums:
        """Returns the loss of a batch as sums.

        Args:
            images: (B, C, S, S), uint8.
            labels: (B,), the classes.
        """
        states, reads = self.model.states(images, stats=self.regularized)
        weight = self.model.output.weight
        return self.sums(states[:, None], weight, labels[:, None], None, reads, {"encoder": None})
