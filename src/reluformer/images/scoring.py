"""Accuracy of an image model, and loading one from a run.

Shapes: N images, K classes.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from reluformer.errors import DataError
from reluformer.images.dataset import LabelledImages, check_fit, load_splits
from reluformer.images.recipe import ImageRecipe
from reluformer.models.image_model import ImageModel
from reluformer.training.run import RunDirectory

AT_ONCE = 500
"""Images that are classified at a time."""


@dataclass(frozen=True)
class ImageScores:
    """The scores of a model on one split."""

    images: int
    accuracy: float
    """Share of images whose class has the highest logit."""
    loss: float
    """Cross-entropy in nats an image."""
    zero_fraction: float
    """Share of attention weights that are exactly zero, over layers, heads and the first images."""
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Returns the scores as plain data."""
        return asdict(self)


def load(run: str | Path) -> ImageModel:
    """Returns the model of a run, ready to classify.

    Raises:
        StorageError: The directory holds no image model, or a damaged one.

    Example:
        >>> import torch
        >>> from reluformer.models.config import ImageConfig
        >>> ImageModel(ImageConfig(width=16, heads=2, layers=1, slots=32, patch=7)).save("saved")
        >>> model = load("saved")
        >>> model(torch.rand(2, 1, 28, 28)).logits.argmax(-1).shape
        torch.Size([2])
    """
    directory = RunDirectory(run)
    directory.check_model()
    return ImageModel.load(directory.model).eval()


def images_of(run: str | Path, split: str, limit: int | None = None) -> LabelledImages:
    """Returns the images of a split that a run was trained for.

    Args:
        run: The directory of the run.
        split: "train", "valid" or "test".
        limit: At most so many images, from the beginning; None for all.

    Raises:
        DataError: The recipe has no such split, or a file cannot be read.
    """
    directory = RunDirectory(run)
    directory.check_recipe()
    recipe = directory.recipe(ImageRecipe)
    splits = load_splits(recipe.data)
    if split not in splits:
        raise DataError(f"{run}: has no images in split '{split}'; raise data.valid, or use --split test")
    check_fit(splits, recipe.model)
    return LabelledImages(*(part[:limit] for part in splits[split]))


def accuracy(model: ImageModel, split: LabelledImages) -> float:
    """Returns the share of images that a model classifies right, from 0 to 1."""
    return evaluate(model, split).accuracy


@torch.no_grad()
def evaluate(model: ImageModel, split: LabelledImages) -> ImageScores:
    """Measures a model on a split."""
    began, was_training = time.perf_counter(), model.training
    model.eval()
    device = model.output.weight.device
    right, loss, zeros = 0, 0.0, []
    for begin in range(0, len(split.labels), AT_ONCE):
        images, labels = (part[begin : begin + AT_ONCE].to(device) for part in split)
        logits, _ = model(images)
        right += int((logits.argmax(-1) == labels).sum())
        loss += float(F.cross_entropy(logits, labels, reduction="sum"))
        if begin == 0:
            _, reads = model(images[:50], stats=True)
            zeros = [float(read.zero_fraction.mean()) for read in reads.values()]
    model.train(was_training)
    count = len(split.labels)
    share = sum(zeros) / len(zeros) if zeros else 0.0
    return ImageScores(count, right / count, loss / count, share, time.perf_counter() - began)
