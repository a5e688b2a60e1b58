"""Every rule takes its turn, and the tiers read what they say."""

from __future__ import annotations

import pytest
import torch

from reluformer import kernels, memory
from reluformer.study import speed
from reluformer.study.plan import Run
from reluformer.study.trainings import Context


def test_the_eager_tier_reads_through_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    picked = kernels.run

    def told(impl: str, *rest: object) -> object:
        used.append(impl)
        return picked(impl, *rest)

    monkeypatch.setattr(kernels, "run", told)
    q = torch.randn(1, 1, 4, 8)
    for name in ("kernel", "eager"):
        with speed.tier(name):
            memory.read(q, q, q, "softmax")
    memory.read(q, q, q, "softmax")
    assert used == ["auto", "reference", "auto"]


def test_a_run_measures_training_translation_and_memory(context: Context) -> None:
    model = {"vocab_size": 50, "width": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "slots": 16}
    rules = {"softmax": {"rule": "softmax"}, "reluformer": {"rule": "relu", "regularizer": True}}
    content = {"model": model, "rules": rules, "tiers": ["eager"], "lengths": [8], "tokens": 16, "rounds": 1, "seed": 0}
    result = speed.run(Run({"study": 1, "kind": "speed", **content}), context)
    for what in ("training", "translation"):
        assert result[what]["eager 8"]["softmax"]["ratio"] == 1
        assert result[what]["eager 8"]["reluformer"]["tokens_per_second"] > 0
    assert result["memory"]["eager 8"]["reluformer"] > 0
