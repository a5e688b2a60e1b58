"""A run that was trained for a few updates, once for all tests of the verbs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from reluformer.cli import app
from reluformer.translation.recipe import Recipe

Invoke = Callable[..., Result]


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    """A vocabulary that leaves words in pieces, and batches of one document or two."""

    def embedded(documents: int) -> dict[str, Any]:
        return {"embedded": {"documents": documents, "sentences": (3, 5)}}

    return Recipe(
        data={
            "train": embedded(24),
            "valid": embedded(3),
            "test": embedded(4),
            "tokenizer": {"vocab_size": 400},
            "segments": {"segment_tokens": 256},
        },
        model=dict(width=16, heads=2, encoder_layers=1, decoder_layers=1, slots=16, dropout=0.0),
        training=dict(
            updates=20, tokens_per_batch=104, lr=0.01, warmup=4, log_every=2, validate_every=5, telemetry_every=10,
            checkpoint_every=100, device="cpu",
        ),
        decoding={"beam": 2, "length_ratio": 0.5, "length_offset": 4},
    )  # fmt: skip


@pytest.fixture(scope="session")
def run(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from reluformer.training import train
    from reluformer.training.progress import SilentProgress

    directory = tmp_path_factory.mktemp("runs") / "trained"
    train(recipe, directory, progress=SilentProgress())
    return directory


@pytest.fixture
def invoke() -> Invoke:
    """Run a verb in this process; an error that the command line would print is raised."""

    def call(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call
