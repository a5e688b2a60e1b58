"""The recipe of an image model: one YAML file from the pictures to the model.

task        images
data        ImageDataConfig      files in the IDX format, or generated gratings
model       ImageConfig          sizes, rules, pooling and norms
training    ImageTrainingConfig  how the model is trained
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from reluformer.config import Config, possible_path
from reluformer.models.config import ImageConfig
from reluformer.training.config import TrainingConfig, TrainingRecipe


class GratingOptions(Config):
    """Generated images: gratings, whose class is their direction. They need no files."""

    train: int = Field(default=4000, gt=0, le=10**6)
    """Images to learn from."""
    valid: int = Field(default=500, gt=0, le=10**6)
    """Images whose loss is measured during training."""
    test: int = Field(default=500, gt=0, le=10**6)
    """Images that are measured after training."""
    size: int = Field(default=28, ge=4, le=1024)
    """Height and width."""
    classes: int = Field(default=10, ge=2, le=256)
    """Directions."""
    noise: float = Field(default=0.2, ge=0, le=10)
    """Standard deviation of the noise on a pixel, whose range is 1."""
    seed: int = Field(default=0, ge=0)
    """Another seed gives other images."""


class ImageDataConfig(Config):
    """Everything that decides which images a model is trained on."""

    directory: Path | None = Field(default=None, examples=["data/fashion-mnist"])
    """A folder with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
    t10k-labels-idx1-ubyte, gzipped or not."""
    gratings: GratingOptions | None = None
    """Generate images instead of reading files."""
    valid: int = Field(default=5000, ge=0, le=10**7)
    """Last images of the training file that are kept for validation. 0: nothing is validated during training."""
    limit: int | None = Field(default=None, gt=0, le=10**9, examples=[10000])
    """Train on the first so many images only. Unset: on all."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.directory is None) == (self.gratings is None):
            raise ValueError("give exactly one of 'directory' and 'gratings'")
        if self.directory is not None:
            possible_path(self.directory)
        return self

    def resolved(self) -> Self:
        """Returns a copy with an absolute path, which means the same from any directory."""
        return self.replace(directory=self.directory and self.directory.resolve())


class ImageTrainingConfig(TrainingConfig):
    """How an image model is trained. A batch holds tokens_per_batch / tokens of an image images."""

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of the target distribution that is spread over all classes."""
    validate_bleu: int = Field(default=0, ge=0, le=10**9, json_schema_extra={"const": 0})
    """For translation only: it stays 0."""

    @model_validator(mode="after")
    def _without_bleu(self) -> Self:
        if self.validate_bleu:
            raise ValueError("validate_bleu is for translation; drop it, an image model is measured by its accuracy")
        return self


class ImageRecipe(TrainingRecipe):
    """Everything that decides a training run of an image model.

    Example:
        >>> recipe = ImageRecipe(data={"gratings": {"train": 100}}, model={"patch": 7})
        >>> recipe.model.tokens, recipe.model.attention.name
        (16, 'pointwise_seqlen')
    """

    task: Literal["images"] = "images"
    """What is trained; a recipe without this key trains a translation model."""
    data: ImageDataConfig
    """The images."""
    model: ImageConfig = ImageConfig()
    """Sizes and rules of the model."""
    training: ImageTrainingConfig = ImageTrainingConfig()
    """How the model is trained."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.training.patience and self.data.directory is not None and not self.data.valid:
            raise ValueError("training.patience needs images for validation; raise data.valid")
        if self.training.tokens_per_batch < self.model.tokens:
            raise ValueError(
                f"training.tokens_per_batch={self.training.tokens_per_batch} holds no image of {self.model.tokens} "
                "tokens; raise it, or use larger patches"
            )
        return self

    def is_free(self, key: str, *, corpus_known: bool) -> bool:
        """Returns whether a resumed run may change `key`: also the folder of known images."""
        return (corpus_known and key == "data.directory") or super().is_free(key, corpus_known=corpus_known)
