"""Images and labels of each split: from IDX files, or gratings that are generated.

A grating is a wave of grey in one of several directions, with a random phase, wavelength and contrast, and with noise.
Its class is the direction, so no single pixel tells it.

Shapes: N images, C channels, S side of an image.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from reluformer.errors import DataError
from reluformer.images.idx import Bytes, read_idx
from reluformer.images.recipe import GratingOptions, ImageDataConfig
from reluformer.models.config import ImageConfig

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
"""The names of the two files of each split, without .gz."""


class LabelledImages(NamedTuple):
    """One split."""

    images: Tensor
    """(N, C, S, S), uint8."""
    labels: Tensor
    """(N,), int64."""

    @property
    def checksum(self) -> str:
        """Twelve digits that identify the content."""
        digest = hashlib.sha256(self.images.contiguous().numpy().tobytes())
        digest.update(self.labels.numpy().tobytes())
        return digest.hexdigest()[:12]


def load_splits(config: ImageDataConfig) -> dict[str, LabelledImages]:
    """Returns the images of each split: train, test and, unless there is none, valid.

    Raises:
        DataError: A file is missing or damaged, images and labels do not fit each other, or images are not square.
    """
    if config.gratings is not None:
        return _gratings(config.gratings, config.limit)
    assert config.directory is not None
    train = read_split(config.directory, "train")
    kept = len(train.labels) - config.valid
    if kept < 1:
        raise DataError(
            f"{config.directory}: holds {len(train.labels)} training images, and data.valid={config.valid} keeps all "
            "of them for validation; lower it"
        )
    found = {"train": LabelledImages(*(part[:kept][: config.limit] for part in train))}
    if config.valid:
        found["valid"] = LabelledImages(*(part[kept:] for part in train))
    return {**found, "test": read_split(config.directory, "test")}


def read_split(directory: Path, split: str) -> LabelledImages:
    """Returns the split of a folder of IDX files: "train" or "test".

    Raises:
        DataError: A file is missing or damaged, or images and labels do not fit each other.
    """
    images_file, labels_file = (_file(directory, name) for name in FILES[split])
    images, labels = read_idx(images_file, dimensions=3), read_idx(labels_file, dimensions=1)
    if len(images) != len(labels):
        raise DataError(f"{images_file}: holds {len(images)} images, and {labels_file.name} {len(labels)} labels")
    if not len(images):
        raise DataError(f"{images_file}: holds no image")
    if images.shape[1] != images.shape[2]:
        raise DataError(f"{images_file}: images of {images.shape[1]} x {images.shape[2]} pixels; they must be square")
    return _split(images, labels)


def _file(directory: Path, name: str) -> Path:
    """Returns the file of this name, gzipped or not; the gzipped one if there is neither."""
    for path in (directory / f"{name}.gz", directory / name):
        if path.is_file():
            return path
    if not directory.is_dir():
        raise DataError(
            f"{directory}: no such folder; `reluformer data get fashion-mnist --to {directory.parent}` makes one"
        )
    present = ", ".join(sorted(path.name for path in directory.iterdir())[:6]) or "nothing"
    raise DataError(f"{directory}: expected {name}.gz or {name}, found: {present}")


def _split(images: Bytes, labels: Bytes) -> LabelledImages:
    return LabelledImages(torch.from_numpy(images.copy()).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))


def check_fit(splits: Mapping[str, LabelledImages], model: ImageConfig) -> None:
    """Compares the images with what a model takes.

    Raises:
        DataError: They have another size or more channels, or a label is no class of the model.
    """
    for name, (images, labels) in splits.items():
        found = tuple(images.shape[1:])
        if found != (model.channels, model.image_size, model.image_size):
            raise DataError(
                f"the {name} images have {found[0]} channels and {found[1]} x {found[2]} pixels; set "
                f"model.channels={found[0]} and model.image_size={found[1]}"
            )
        if int(labels.max()) >= model.classes:
            raise DataError(
                f"the {name} labels go up to {int(labels.max())}, model.classes={model.classes} ends at "
                f"{model.classes - 1}; raise it to {int(labels.max()) + 1}"
            )


def _gratings(options: GratingOptions, limit: int | None) -> dict[str, LabelledImages]:
    counts = {"train": options.train, "valid": options.valid, "test": options.test}
    found = {}
    for number, (split, count) in enumerate(counts.items()):
        generator = torch.Generator().manual_seed(options.seed * 3 + number)
        found[split] = _draw_gratings(options, count, generator)
    return {**found, "train": LabelledImages(*(part[:limit] for part in found["train"]))}


def _draw_gratings(options: GratingOptions, count: int, generator: torch.Generator) -> LabelledImages:
    labels = torch.randint(options.classes, (count,), generator=generator)
    phase, wavelength, contrast = torch.rand(3, count, 1, 1, generator=generator)
    angle = (labels.double() * math.pi / options.classes).float().view(-1, 1, 1)
    side = torch.arange(options.size, dtype=torch.float32)
    along = torch.cos(angle) * side.view(1, 1, -1) + torch.sin(angle) * side.view(1, -1, 1)
    wave = torch.sin(2 * math.pi * (along / (6 + 6 * wavelength) + phase)) * (0.2 + 0.3 * contrast)
    noise = options.noise * torch.randn(wave.shape, generator=generator)
    images = (255 * (0.5 + wave + noise)).clamp(0, 255).round().to(torch.uint8)
    return LabelledImages(images.unsqueeze(1), labels)
