"""The recipe of a language model: one YAML file from the text to the model.

task        language
data        LanguageDataConfig   the text, its vocabulary and the length of rows
model       LanguageModelRecipe  a named size and architecture, and what differs from them
training    TrainingConfig       how the model is trained
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from reluformer.config import Config, OneOrSeveral, parse_list, possible_path
from reluformer.models.config import LanguageArchitecture, LanguageConfig, LanguagePreset, ModelSection
from reluformer.training.config import TrainingConfig, TrainingRecipe
from reluformer.translation.recipe import EmbeddedOptions, TokenizerConfig

_MOST_SOURCES = 1000
_SUFFIXES: Mapping[str, Literal["text", "jsonl"]] = {".txt": "text", ".jsonl": "jsonl", ".ndjson": "jsonl"}


class TextSource(Config):
    """One split of a corpus: a file, which may end in .gz, or `embedded`."""

    path: Path | None = Field(default=None, examples=["data/train.txt"])
    """A text file, or JSON lines with a document each."""
    embedded: EmbeddedOptions | None = None
    """Generate English documents instead of reading a file."""
    format: Literal["text", "jsonl"] | None = None
    """How `path` is written. Unset: by its name, .txt or .jsonl."""
    field: str = "text"
    """Key of the text in a JSON line: a string, or a list of sentences, which are joined by blanks."""
    documents: Literal["blank_line", "line", "file"] = "blank_line"
    """Where a document of a text file ends."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.path is None) == (self.embedded is None):
            raise ValueError("give exactly one of 'path' and 'embedded'")
        if self.path is not None:
            possible_path(self.path)
        if self.path is not None and self.format is None and self.kind is None:
            raise ValueError(f"cannot tell the format of '{self.path}' by its name; add format: text or jsonl")
        return self

    @property
    def kind(self) -> Literal["text", "jsonl"] | None:
        """The format of the file, as given or told by its name."""
        if self.path is None or self.format is not None:
            return self.format
        suffixes = [suffix.lower() for suffix in self.path.suffixes if suffix.lower() != ".gz"]
        return _SUFFIXES.get(suffixes[-1]) if suffixes else None

    def resolved(self) -> Self:
        """Returns a copy with an absolute path, which means the same from any directory."""
        return self.replace(path=self.path and self.path.resolve())


TextSources = Annotated[tuple[TextSource, ...], OneOrSeveral()]
"""A split in a recipe: one source, or a list of sources."""


class LanguageDataConfig(Config):
    """Everything that decides which tokens a model is trained on."""

    train: TextSources
    """The split that the model and the tokenizer learn from: a source, or a list of them."""
    valid: TextSources | None = Field(default=None, examples=[{"path": "data/valid.txt"}])
    """The split whose loss is measured during training."""
    test: TextSources | None = Field(default=None, examples=[{"path": "data/test.txt"}])
    """The split that is measured after training."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The vocabulary."""
    context: int = Field(default=512, ge=2, le=10**6)
    """Tokens of a row, which is what the model sees at once in training."""
    packed: bool = False
    """Let no token see a document before its own in the same row. Otherwise rows are cut from one stream."""

    @field_validator("train", "valid", "test", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        if given is None or isinstance(given, TextSource):
            return given if given is None else (given,)
        if isinstance(given, Mapping):
            return (TextSource(**given),)
        if not isinstance(given, list | tuple) or not 1 <= len(given) <= _MOST_SOURCES:
            raise ValueError(f"give a section with path or embedded, or a list of 1 to {_MOST_SOURCES} such")
        return parse_list(TextSource, given)

    @property
    def splits(self) -> dict[str, tuple[TextSource, ...]]:
        """The sources of each split that there is."""
        given = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: sources for name, sources in given.items() if sources is not None}

    def resolved(self) -> Self:
        """Returns a copy with absolute paths."""
        path = self.tokenizer.path
        return self.replace(
            tokenizer=self.tokenizer.replace(path=path and path.resolve()),
            **{name: tuple(source.resolved() for source in sources) for name, sources in self.splits.items()},
        )


class LanguageModelRecipe(ModelSection):
    """A named size and architecture; every key of `LanguageConfig` but `vocab_size` may be changed beside them."""

    kind = LanguageConfig

    size: LanguagePreset = "small"
    """Widths and depths to start from."""
    architecture: LanguageArchitecture = "reluformer"
    """Rule, positions and Pro parts to start from."""


class LanguageTrainingConfig(TrainingConfig):
    """How a language model is trained; label smoothing is off unless it is asked for."""

    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of the target distribution that is spread over the whole vocabulary."""
    validate_bleu: int = Field(default=0, ge=0, le=10**9, json_schema_extra={"const": 0})
    """For translation only: it stays 0."""

    @model_validator(mode="after")
    def _without_bleu(self) -> Self:
        if self.validate_bleu:
            raise ValueError("validate_bleu is for translation; drop it, a language model is measured by its loss")
        return self


class LanguageRecipe(TrainingRecipe):
    """Everything that decides a training run of a language model.

    Example:
        >>> recipe = LanguageRecipe(data={"train": {"embedded": {"documents": 10}}}, model={"size": "tiny"})
        >>> recipe.model_config_for(300).attention.name
        'relu_chance'
    """

    task: Literal["language"] = "language"
    """What is trained; a recipe without this key trains a translation model."""
    data: LanguageDataConfig
    """The text, its vocabulary and the length of rows."""
    model: LanguageModelRecipe = LanguageModelRecipe()
    """Sizes and rules of the model."""
    training: LanguageTrainingConfig = LanguageTrainingConfig()
    """How the model is trained."""

    @model_validator(mode="after")
    def _validates_on_something(self) -> Self:
        if self.training.patience and self.data.valid is None:
            raise ValueError("training.patience needs a validation split; give data.valid")
        if self.training.tokens_per_batch < self.data.context:
            raise ValueError(
                f"training.tokens_per_batch={self.training.tokens_per_batch} holds no row of data.context="
                f"{self.data.context} tokens; raise it, or shorten the rows"
            )
        return self

    def model_config_for(self, vocab_size: int) -> LanguageConfig:
        """Returns the configuration of this recipe's model for a vocabulary."""
        config: LanguageConfig = self.model.with_vocabulary(vocab_size)
        return config

    def resolved(self) -> dict[str, Any]:
        """Returns the recipe as plain data, its model with all sizes and rules."""
        model = self.model_config_for(2**31 - 1).model_dump(mode="json")
        return {**super().resolved(), "model": model}

    def is_free(self, key: str, *, corpus_known: bool) -> bool:
        """Returns whether a resumed run may change `key`: also paths of a known corpus."""
        if corpus_known and key.startswith("data.") and key.rpartition(".")[2] == "path":
            return True
        return super().is_free(key, corpus_known=corpus_known)
