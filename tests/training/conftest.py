"""A made corpus (copy the words) and a recipe for a model that learns it in seconds."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reluformer.translation.corpus import prepare
from reluformer.translation.recipe import Recipe

MakeRecipe = Callable[..., Recipe]
MODEL = dict(width=32, heads=2, encoder_layers=1, decoder_layers=1, slots=32, dropout=0.1)
TRAINING = dict(
    updates=8, tokens_per_batch=128, lr=0.003, warmup=4, log_every=1, validate_every=100, checkpoint_every=3,
    telemetry_every=100, device="cpu",
)  # fmt: skip


def write_corpus(directory: Path, name: str, sentences: int, seed: int) -> dict[str, str]:
    """Sentences of two to nine words, the target equal to the source."""
    words = ["we", "saw", "the", "old", "house", "near", "river", "when", "snow", "fell", "nobody", "spoke", "of", "it"]
    draw = random.Random(seed)
    lines = [" ".join(draw.choices(words, k=draw.randint(2, 9))) for _ in range(sentences)]
    text = "\n".join(lines) + "\n"
    for side in ("src", "tgt"):
        (directory / f"{name}.{side}").write_text(text, encoding="utf-8")
    return {side: str(directory / f"{name}.{side}") for side in ("src", "tgt")}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("corpus")
    return {
        "train": {**write_corpus(directory, "train", 200, seed=1), "documents": "line"},
        "valid": {**write_corpus(directory, "valid", 20, seed=2), "documents": "line"},
        "tokenizer": {"vocab_size": 300},
        "segments": {"segment_tokens": "sentence"},
    }


@pytest.fixture
def make_recipe(corpus: dict[str, Any]) -> MakeRecipe:
    """A tiny recipe; keywords change its training, `model=` and `data=` these sections."""

    def make(model: dict[str, Any] | None = None, data: dict[str, Any] | None = None, **training: Any) -> Recipe:
        return Recipe(
            data={**corpus, **(data or {})}, model={**MODEL, **(model or {})}, training={**TRAINING, **training}
        )

    return make


@pytest.fixture(scope="session")
def prepared(corpus: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus prepared once for all tests."""
    from reluformer.translation.recipe import DataConfig

    directory = tmp_path_factory.mktemp("prepared")
    prepare(DataConfig(**corpus), directory)
    return directory
