"""The recipe of a translation model: one YAML file from the corpus to the translation.

data        DataConfig      the corpus, its vocabulary and its segments
model       ModelRecipe     a named size, and what differs from it
training    TrainingConfig  how the model is trained
decoding    DecodingConfig  how it translates afterwards
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from reluformer.config import Config, parse_list, possible_path
from reluformer.errors import ConfigError, StorageError
from reluformer.models.config import Architecture, ModelConfig, ModelSection, Preset
from reluformer.training.config import TrainingConfig, TrainingRecipe
from reluformer.training.run import RunDirectory

Format = Literal["lines", "jsonl", "tsv", "csv", "tmx", "xliff", "po"]
Split = Literal["train", "valid", "test"]

_MOST_SOURCES = 1000
_FORMAT_BY_SUFFIX: Mapping[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".tsv": "tsv",
    ".csv": "csv",
    ".tmx": "tmx",
    ".xlf": "xliff",
    ".xliff": "xliff",
    ".po": "po",
}


class EmbeddedOptions(Config):
    """Options of the corpus that the package generates itself; it needs no files and no download."""

    documents: int = Field(default=1000, gt=0, le=10**9)
    """Number of documents."""
    seed: int = Field(default=0, ge=0, le=2**63 - 1, examples=[1])
    """Another seed gives other documents."""
    sentences: tuple[int, int] = (4, 12)
    """Fewest and most sentences of a document."""

    @field_validator("sentences")
    @classmethod
    def _ordered(cls, sentences: tuple[int, int]) -> tuple[int, int]:
        fewest, most = sentences
        if not 1 <= fewest <= most <= 10_000:
            raise ValueError("give the fewest and the most sentences, as in [4, 12]")
        return sentences


class CorpusSource(Config):
    """One split of a corpus: `path`, or the pair `src` and `tgt`, or `embedded`. Files may end in .gz."""

    path: Path | None = Field(default=None, examples=["data/train.jsonl.gz"])
    """A file that holds both languages: .jsonl, .tsv, .csv, .tmx, .xlf / .xliff or .po."""
    src: Path | None = Field(default=None, examples=["data/train.en"])
    """Source sentences, one a line, aligned with `tgt`."""
    tgt: Path | None = Field(default=None, examples=["data/train.de"])
    """Target sentences, one a line, aligned with `src`."""
    embedded: EmbeddedOptions | None = None
    """Generate the corpus instead of reading it."""
    format: Format | None = None
    """How `path` is written. Unset: by its name."""
    documents: Literal["blank_line", "line"] = "blank_line"
    """Where a document ends: at a blank line (in both files of a pair) or with the file, or
    after every line. In TMX, XLIFF and PO a unit counts as a line. JSON lines say it themselves."""
    weight: float = Field(default=1.0, gt=0, le=1000)
    """How often an epoch of training shows each segment of this source, on average: 2 shows it
    twice, 0.25 another quarter of the source in each epoch. Only for `data.train`."""

    @field_validator("path", "src", "tgt", mode="before")
    @classmethod
    def _not_blank(cls, path: Any) -> Any:
        if isinstance(path, str) and not path.strip():
            raise ValueError("is empty; name a file")
        return possible_path(path)

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        pair = self.src is not None or self.tgt is not None
        if (self.path is not None) + pair + (self.embedded is not None) != 1:
            raise ValueError("give exactly one of 'path', 'src' with 'tgt', or 'embedded'")
        if pair and (self.src is None or self.tgt is None):
            raise ValueError(f"'{'tgt' if self.tgt is None else 'src'}' is missing beside its pair")
        if self.path is not None:
            if self.format == "lines":
                raise ValueError("format 'lines' is a pair of files; give 'src' and 'tgt' instead of 'path'")
            if self.format is None and _format_by_name(self.path) is None:
                raise ValueError(
                    f"cannot tell the format of '{self.path}' by its name; add format: jsonl, tsv, csv, tmx, xliff "
                    "or po"
                )
        elif self.format not in (None, "lines"):
            raise ValueError(f"format '{self.format}' belongs to one file; give 'path'")
        return self

    @property
    def sources(self) -> tuple[CorpusSource, ...]:
        """The source itself, as the only one of its split."""
        return (self,)

    @property
    def kind(self) -> Format | Literal["embedded"]:
        """The format of the source, as given or told by the file name."""
        if self.embedded is not None:
            return "embedded"
        by_name = None if self.path is None else _format_by_name(self.path)
        return self.format or by_name or "lines"

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are read from disk; the embedded corpus has none."""
        return tuple(file for file in (self.path, self.src, self.tgt) if file is not None)

    def resolved(self) -> Self:
        """Returns a copy with absolute paths, which means the same from any directory."""
        return self.replace(
            path=self.path and self.path.resolve(),
            src=self.src and self.src.resolve(),
            tgt=self.tgt and self.tgt.resolve(),
        )


@dataclass(frozen=True)
class CorpusMixture:
    """A split that was given as a list of sources."""

    sources: tuple[CorpusSource, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of all sources."""
        return tuple(file for source in self.sources for file in source.files)

    @property
    def embedded(self) -> EmbeddedOptions | None:
        """The options of the first source if all are generated, else None."""
        generated = all(source.embedded is not None for source in self.sources)
        return self.sources[0].embedded if generated else None


Sources = CorpusSource | tuple[CorpusSource, ...]
"""A split in a recipe: one source, or a list of sources."""


def _format_by_name(path: Path) -> Format | None:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return _FORMAT_BY_SUFFIX.get(suffixes[-1]) if suffixes else None


class TokenizerConfig(Config):
    """The joint vocabulary of both languages."""

    kind: Literal["bpe", "unigram"] = "bpe"
    """Byte-pair encoding or a unigram language model, both over bytes: no text is unknown."""
    vocab_size: int = Field(default=8000, ge=300, le=2**20)
    """Entries aimed at, with the five special ones; a small corpus may give fewer."""
    sample_sentences: int = Field(default=1_000_000, gt=0, le=10**9)
    """Sentences to learn from, counted over both languages from the beginning of the train split."""
    path: Path | None = Field(default=None, examples=["runs/demo/data"])
    """Directory of a finished tokenizer to use as it is; the other options are then ignored."""

    @field_validator("path", mode="before")
    @classmethod
    def _is_a_path(cls, path: Any) -> Any:
        return possible_path(path)


class SegmentConfig(Config):
    """How documents are cut into what the model reads at once."""

    segment_tokens: int | Literal["sentence"] = 512
    """Most tokens of a segment on either side, with separators and end; or 'sentence' for one sentence each."""
    join_documents: bool | Literal["random"] = Field(default=False, examples=["random"])
    """Fill a segment with the documents that follow, as long as they fit; or with documents in random
    order, which training draws anew each epoch."""
    join_across_groups: bool = False
    """Also join documents of different groups. A group shares its id up to the last '/', as turns of one debate do."""
    join_seed: int = Field(default=0, ge=0, le=2**63 - 1, examples=[1])
    """Another seed gives other random joins of the valid and test splits. Those of the train split follow
    `training.seed`."""
    join_shortest: int | None = Field(default=None, ge=8, le=10**6, examples=[32])
    """Random joins of the train split get lengths from so many tokens up to `segment_tokens`, drawn evenly on a
    logarithmic scale, as short joins are learned first. Unset: all are as long as possible."""
    lone_sentences: float = Field(default=0.0, ge=0, le=1, examples=[0.1])
    """Share of the train split's documents that are cut into single sentences, so that a model
    of documents learns to translate a sentence alone, too. Random joins draw them anew each epoch."""

    @field_validator("segment_tokens", mode="before")
    @classmethod
    def _tokens_or_sentence(cls, tokens: Any) -> Any:
        number = isinstance(tokens, int) and not isinstance(tokens, bool) and 8 <= tokens <= 10**6
        if not number and tokens != "sentence":
            raise ValueError("give a number of tokens, at least 8, or 'sentence'")
        return tokens

    @model_validator(mode="after")
    def _joins_make_sense(self) -> Self:
        if self.join_documents and self.segment_tokens == "sentence":
            raise ValueError("join_documents needs segments longer than a sentence; set segment_tokens to a number")
        if self.join_across_groups and self.join_documents is not True:
            raise ValueError("join_across_groups does nothing without join_documents: true")
        if self.join_seed and self.join_documents != "random":
            raise ValueError("join_seed does nothing without join_documents: random")
        if self.join_shortest is not None:
            if self.join_documents != "random":
                raise ValueError("join_shortest does nothing without join_documents: random")
            if self.join_shortest > int(self.segment_tokens):
                raise ValueError(f"join_shortest={self.join_shortest} exceeds segment_tokens; lower it")
        return self


class Limits(Config):
    """Limits beyond which a line is taken for an accident instead of text."""

    sentence_characters: int = Field(default=10_000, gt=0, le=10**9)
    """A longer sentence is skipped and counted."""
    sentence_tokens: int = Field(default=1024, gt=0, le=10**6)
    """A sentence longer than this is skipped and counted, where segments are single sentences."""
    document_sentences: int = Field(default=10_000, gt=0, le=10**9)
    """More sentences without a document break are an error: most often the breaks are missing."""
    document_bytes: int = Field(default=2**26, gt=0, le=2**31)
    """A longer JSON line is an error."""


class FilterConfig(Config):
    """Pairs of the train split that are dropped; all of them are counted in any case."""

    drop_copies: bool = False
    """Drop pairs whose source and target are equal."""
    drop_duplicates: bool = False
    """Drop pairs that occurred before; they are looked for among a million different pairs."""
    drop_held_out: bool = False
    """Drop pairs that are also in the valid or the test split."""
    max_length_ratio: float | None = Field(default=None, ge=1, le=1000, examples=[9])
    """Drop pairs one side of which has more than so many times the characters of the other."""


class DataConfig(Config):
    """Everything that decides which token ids a model is trained on."""

    train: Sources
    """The split that the model and the tokenizer learn from; a list mixes sources by their weights."""
    valid: Sources | None = Field(default=None, examples=[{"path": "data/valid.jsonl.gz"}])
    """The split whose loss is measured during training."""
    test: Sources | None = Field(default=None, examples=[{"path": "data/test.jsonl.gz"}])
    """The split that is scored after training."""
    source_lang: str = Field(default="en", min_length=2)
    """Language translated from."""
    target_lang: str = Field(default="de", min_length=2)
    """Language translated into."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The joint vocabulary of both languages."""
    segments: SegmentConfig = SegmentConfig()
    """How documents are cut."""
    limits: Limits = Limits()
    """Limits beyond which text is skipped or refused."""
    filters: FilterConfig = FilterConfig()
    """Pairs of the train split that are dropped."""

    @field_validator("train", "valid", "test", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any, info: ValidationInfo) -> Any:
        """Builds the sources here, because an error of a union would name all of its types."""
        if isinstance(given, Mapping):
            return CorpusSource(**given)
        if isinstance(given, CorpusSource) or (given is None and info.field_name != "train"):
            return given
        if not isinstance(given, list | tuple) or not 1 <= len(given) <= _MOST_SOURCES:
            raise ValueError(f"give a section with path, or with src and tgt, or a list of 1 to {_MOST_SOURCES} such")
        return parse_list(CorpusSource, given)

    @field_validator("valid", "test")
    @classmethod
    def _without_weights(cls, given: Sources | None) -> Sources | None:
        sources = given.sources if isinstance(given, CorpusSource) else given or ()
        if any(source.weight != 1 for source in sources):
            raise ValueError("only the sources of data.train have weights; leave 'weight' out")
        return given

    @model_validator(mode="after")
    def _weights_or_joins(self) -> Self:
        if self.segments.join_documents == "random" and any(s.weight != 1 for s in self.splits["train"].sources):
            raise ValueError("random joins mix all sources evenly; leave 'weight' out, or set join_documents: true")
        return self

    @property
    def splits(self) -> dict[Split, CorpusSource | CorpusMixture]:
        """The splits that are given, in the order train, valid, test."""
        given: dict[Split, Sources | None] = {"train": self.train, "valid": self.valid, "test": self.test}
        return {
            name: split if isinstance(split, CorpusSource) else CorpusMixture(split)
            for name, split in given.items()
            if split is not None
        }

    def identity(self) -> dict[str, Any]:
        """Returns what decides the prepared corpus as plain data for hashes.

        Keys that older versions did not have are left out where they change nothing: weights, which only training
        uses, filters if there are none, and the seed of joins if it is not set.
        """
        weights: dict[str, Any] = {
            name: {"weight"} if isinstance(split, CorpusSource) else {"__all__": {"weight"}}
            for name, split in self.splits.items()
        }
        values = self.model_dump(mode="json", exclude=weights)
        if self.filters == FilterConfig():
            del values["filters"]
        for key in ("join_seed", "join_shortest"):
            if not values["segments"][key]:
                del values["segments"][key]
        return values

    def resolved(self) -> Self:
        """Returns a copy with absolute paths."""
        tokenizer = self.tokenizer
        if tokenizer.path is not None:
            tokenizer = tokenizer.replace(path=tokenizer.path.resolve())
        sources = {name: tuple(source.resolved() for source in split.sources) for name, split in self.splits.items()}
        given = {
            name: found if isinstance(self.splits[name], CorpusMixture) else found[0] for name, found in sources.items()
        }
        return self.replace(tokenizer=tokenizer, **given)


class DecodingConfig(Config):
    """How translations are searched for, and how long documents are cut."""

    beam: int = Field(default=4, ge=1, le=1000)
    """Hypotheses kept at each step; 1 is greedy search."""
    n_best: int = Field(default=1, ge=1, le=1000)
    """Translations returned for each source, best first; at most `beam`."""
    length_penalty: float = Field(default=1.0, ge=0, le=10)
    """Hypotheses are ranked by log-probability / length^length_penalty; 0 prefers short ones."""
    stop: Literal["exact", "beam"] = "exact"
    """`exact`: when no live hypothesis can still enter the n best, whatever its length becomes.
    `beam`: as soon as `beam` hypotheses are finished, which is quicker and may miss a better one."""
    length_ratio: float = Field(default=2.0, gt=0, le=100)
    """A sentence may grow to length_ratio * source tokens + length_offset tokens."""
    length_offset: int = Field(default=16, ge=1, le=1000)
    """Tokens that a translation may have beyond `length_ratio` times its source."""
    min_length: int = Field(default=0, ge=0, le=1000, examples=[2])
    """Tokens before the end is allowed; where it exceeds the length limit, the limit wins."""
    window_tokens: Annotated[int, Field(ge=8, le=10**6)] | Literal["sentence"] | None = Field(
        default=None, examples=[256]
    )
    """Longer documents are cut at sentence borders into windows of so many source tokens, or into
    single sentences. Unset: as the model was trained."""
    context_sentences: int = Field(default=3, ge=0, le=1000)
    """Sentences before a window that are given again, with their translations, as its beginning."""
    batch_tokens: int = Field(default=8192, gt=0, le=10**8)
    """Source tokens, padding included, that are translated at once."""
    check_alignment: bool = Field(default=True, examples=[False])
    """Translate a sentence anew by itself if its translation mostly read another sentence of its window."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.n_best > self.beam:
            raise ValueError(f"n_best={self.n_best} translations need at least as many beams; set beam={self.n_best}")
        return self


class ModelRecipe(ModelSection):
    """A named size and architecture, and any key of `ModelConfig` that should differ from them."""

    kind = ModelConfig
    retired = ("pad_id",)  # had no effect in version 0.1

    size: Preset = "tiny"
    """Widths and depths to start from."""
    architecture: Architecture = "reluformer"
    """`relu` or `softmax` in all attention."""


class Recipe(TrainingRecipe):
    """Everything that decides a training run and how its model translates.

    Example:
        >>> recipe = Recipe(data={"train": {"embedded": {"documents": 20}}}, training={"updates": 100})
        >>> recipe.training.updates, recipe.decoding.beam
        (100, 4)
    """

    data: DataConfig
    """The corpus, its vocabulary and its segments."""
    model: ModelRecipe = ModelRecipe()
    """Sizes and rules of the model."""
    training: TrainingConfig = TrainingConfig()
    """How the model is trained."""
    decoding: DecodingConfig = DecodingConfig()
    """How the model translates after training."""

    @model_validator(mode="before")
    @classmethod
    def _without_task(cls, values: Any) -> Any:
        """Drops `task: translation`, which says the same as no task."""
        if not isinstance(values, dict) or values.get("task") != "translation":
            return values
        return {key: value for key, value in values.items() if key != "task"}

    @model_validator(mode="after")
    def _validates_on_something(self) -> Self:
        wants = [key for key in ("patience", "validate_bleu") if getattr(self.training, key)]
        if wants and self.data.valid is None:
            raise ValueError(f"training.{wants[0]} needs a validation split; give data.valid")
        return self

    @property
    def decoding_as_trained(self) -> DecodingConfig:
        """The decoding section; an unset window becomes the segment length of training."""
        if self.decoding.window_tokens is not None:
            return self.decoding
        return self.decoding.replace(window_tokens=self.data.segments.segment_tokens)

    def model_config_for(self, vocab_size: int) -> ModelConfig:
        """Returns the configuration of this recipe's model for a vocabulary."""
        config: ModelConfig = self.model.with_vocabulary(vocab_size)
        return config

    def resolved(self) -> dict[str, Any]:
        """Returns the recipe as plain data, its model with all sizes and rules."""
        model = self.model_config_for(2**31 - 1).model_dump(mode="json")
        return {**super().resolved(), "model": model}

    def is_free(self, key: str, *, corpus_known: bool) -> bool:
        """Returns whether a resumed run may change `key`: decoding settings, too, and paths of a known corpus."""
        is_path = key.startswith("data.") and key.rpartition(".")[2] in ("path", "src", "tgt")
        if key.startswith("decoding.") or (corpus_known and is_path):
            return True
        return super().is_free(key, corpus_known=corpus_known)


def decoding_of(run: RunDirectory) -> DecodingConfig:
    """Returns the decoding section of a run, where an unset window becomes the segment length of training.

    A model without a recipe has the default settings.

    Raises:
        StorageError: The recipe of the run is damaged.
    """
    values = run.recipe_values()
    if not run.recipe_file.is_file():
        return DecodingConfig()
    try:
        section = dict(values.get("decoding") or {})
        trained = values["data"].get("segments", {}).get("segment_tokens")
    except (AttributeError, KeyError, TypeError, ValueError):
        raise StorageError(
            f"{run.recipe_file}: damaged, not a recipe; delete it to translate with default settings"
        ) from None
    try:
        config = DecodingConfig.parse(section, where=f"{run.recipe_file}: decoding")
        return config.replace(window_tokens=trained) if config.window_tokens is None else config
    except ConfigError as error:
        raise StorageError(str(error)) from None


def languages_of(run: RunDirectory) -> tuple[str, str]:
    """Returns the source and the target language of a run; English and German if no recipe says."""
    data = run.recipe_values().get("data")
    given = data if isinstance(data, dict) else {}
    source, target = (given.get(key) for key in ("source_lang", "target_lang"))
    return source if isinstance(source, str) else "en", target if isinstance(target, str) else "de"
