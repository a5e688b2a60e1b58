"""A training small enough for a test, and a place for its results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reluformer.study.plan import VERSION, Run, changed
from reluformer.study.results import StudyDirectory
from reluformer.study.trainings import Context

MakeRun = Callable[..., Run]

TINY: dict[str, Any] = {
    "study": VERSION,
    "kind": "training",
    "dataset": "embedded",
    "data": {
        **{
            split: {"embedded": {"documents": count, "sentences": [2, 4]}}
            for split, count in (("train", 24), ("valid", 3), ("test", 3))
        },
        "tokenizer": {"vocab_size": 400},
        "segments": {"segment_tokens": 128},
    },
    "model": {"width": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "slots": 16, "dropout": 0.0},
    "training": {
        "updates": 4,
        "tokens_per_batch": 200,
        "warmup": 1,
        "schedule": "cosine",
        "seed": 0,
        "lr": 0.01,
        "validate_every": 2,
        "checkpoint_every": 100,
        "log_every": 1,
        "telemetry_every": 2,
        "device": "cpu",
    },
    "decoding": {"beam": 1},
}


@pytest.fixture
def make_run() -> MakeRun:
    """The tiny training with some dotted keys changed; None takes a key away."""

    def make(changes: dict[str, Any] | None = None) -> Run:
        content = changed(TINY, changes or {})
        if content["training"].get("lr") is None:
            del content["training"]["lr"]
        return Run(content)

    return make


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(StudyDirectory(tmp_path / "study"), None, lambda share, note: None)
