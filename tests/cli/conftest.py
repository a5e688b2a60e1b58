"""A run that was trained for a few updates, and two ways to call a verb."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from reluformer.cli import app
from reluformer.translation.recipe import Recipe

Invoke = Callable[..., Result]
Command = Callable[..., subprocess.CompletedProcess[str]]
PLUGIN = """
import torch
from reluformer import rules

@rules.register("gelu_mean")
def gelu_mean(scores, n):
    return torch.nn.functional.gelu(scores) / n
"""


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
    from reluformer.training.progress import SilentProgress
    from reluformer.translation.task import train

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


@pytest.fixture
def command() -> Command:
    """Run the command line in a process of its own, as a user types it."""

    def call(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "reluformer", *arguments]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)

    return call


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """Write a file with a rule of the user's own."""
    path = tmp_path / "my_rules.py"
    path.write_text(PLUGIN)
    return path
