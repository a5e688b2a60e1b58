"""A recipe: one YAML file from the corpus to the translation."""

from __future__ import annotations

from typing import Any, Self

from pydantic import ConfigDict, model_validator

from reluformer import rules
from reluformer.config.base import Config
from reluformer.config.data import DataConfig
from reluformer.config.decoding import DecodingConfig
from reluformer.config.model import Architecture, ModelConfig, Preset
from reluformer.config.training import TrainingConfig
from reluformer.errors import ReluformerError


class ModelRecipe(Config):
    """A named size and architecture, and any key of `ModelConfig` that should differ from them."""

    model_config = ConfigDict(extra="allow")

    size: Preset = "tiny"
    """Widths and depths to start from."""
    architecture: Architecture = "reluformer"
    """`relu` or `softmax` in all attention."""

    @model_validator(mode="after")
    def _is_a_model(self) -> Self:
        changes = self.__pydantic_extra__ or {}
        if "vocab_size" in changes:
            raise ValueError("vocab_size comes from the tokenizer; set data.tokenizer.vocab_size")
        try:
            model = self.with_vocabulary(2**31 - 1)
            for rule in model.rules():
                rules.spec(rule)
            valid = model.model_dump(mode="json")
        except ReluformerError as error:
            raise ValueError(str(error)) from None
        changes.update({name: valid[name] for name in changes})  # as plain data, rule objects too
        return self

    def with_vocabulary(self, size: int) -> ModelConfig:
        """The configuration of a model for a vocabulary of `size` entries."""
        changes: dict[str, Any] = self.__pydantic_extra__ or {}
        return ModelConfig.preset(self.size, self.architecture, vocab_size=size, **changes)


class Recipe(Config):
    """Everything that decides a run."""

    data: DataConfig
    """The corpus, its vocabulary and its segments."""
    model: ModelRecipe = ModelRecipe()
    """The model."""
    training: TrainingConfig = TrainingConfig()
    """How it is trained."""
    decoding: DecodingConfig = DecodingConfig()
    """How it translates afterwards."""

    @model_validator(mode="after")
    def _validates_on_something(self) -> Self:
        wants = [key for key in ("patience", "validate_bleu") if getattr(self.training, key)]
        if wants and self.data.valid is None:
            raise ValueError(f"training.{wants[0]} needs a validation split; give data.valid")
        return self

    @property
    def decoding_as_trained(self) -> DecodingConfig:
        """How the model translates, where an unset window is what it was trained to read at once."""
        if self.decoding.window_tokens is not None:
            return self.decoding
        return self.decoding.replace(window_tokens=self.data.segments.segment_tokens)

    def model_config_for(self, vocab_size: int) -> ModelConfig:
        """The model of this recipe for a vocabulary."""
        return self.model.with_vocabulary(vocab_size)
