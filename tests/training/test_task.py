"""The trainer knows no translation: a task of a few lines trains, resumes and keeps its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reluformer import files
from reluformer.errors import ConfigError
from reluformer.training.config import TrainingConfig, TrainingRecipe
from reluformer.training.fit import fit
from reluformer.training.objective import LossSums, Objective
from reluformer.training.progress import SilentProgress
from reluformer.training.run import RunDirectory

SYMBOLS = 7


class CountingRecipe(TrainingRecipe):
    width: int = 8
    training: TrainingConfig = TrainingConfig()


@dataclass(frozen=True)
class CountingBatch:
    """Numbers, each to be followed by the next."""

    numbers: Tensor
    row_masks: Mapping[str, Tensor | None] = field(default_factory=dict)
    padding: int = 0

    @property
    def target_tokens(self) -> int:
        return self.numbers.numel()

    @property
    def cells(self) -> int:
        return self.numbers.numel()

    @property
    def inputs(self) -> tuple[Tensor | None, ...]:
        return self.numbers, (self.numbers + 1) % SYMBOLS

    def to(self, device: torch.device | str) -> CountingBatch:
        return CountingBatch(self.numbers.to(device))


class CountingData:
    padding = 0.0
    updates_per_epoch = 1.0

    def batches(self, step: int) -> list[CountingBatch]:
        generator = torch.Generator().manual_seed(step)
        return [CountingBatch(torch.randint(SYMBOLS, (4, 6), generator=generator))]


class CountingObjective(Objective):
    def forward(self, numbers: Tensor, following: Tensor) -> LossSums:
        embed, output = self.model.children()
        return self.sums(embed(numbers), output.weight, following, None, {}, {})


class CountingTask:
    """Implements `Task` without tokens, corpora or attention."""

    evaluate = None

    def __init__(self, **values: Any) -> None:
        training = {"lr": 0.3, "warmup": 0, "log_every": 1, "validate_every": 5, "device": "cpu", **values}
        self.recipe = CountingRecipe(training=TrainingConfig(**training))

    def prepare(self, report: Callable[[str], None]) -> None:
        report("nothing to prepare")

    def fingerprint(self) -> dict[str, Any]:
        return {"symbols": SYMBOLS}

    def training_data(self, rank: int, world: int) -> CountingData:
        return CountingData()

    def validation_data(self, rank: int, world: int) -> list[CountingBatch]:
        return CountingData().batches(0)

    def build_model(self) -> nn.Module:
        width = self.recipe.width
        return nn.Sequential(nn.Embedding(SYMBOLS, width), nn.Linear(width, SYMBOLS, bias=False))

    def build_objective(self, model: nn.Module) -> CountingObjective:
        return CountingObjective(model)

    def load_initial(self, directory: Path) -> nn.Module:
        raise NotImplementedError

    def save_model(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        files.write_json(directory / "config.json", {name: weight.tolist() for name, weight in weights.items()})


def run(directory: Path, **values: Any) -> Any:
    task = CountingTask(average_last=1, **values)
    return fit(task, directory, progress=SilentProgress())


def test_a_task_without_translation_trains(tmp_path: Path) -> None:
    result = run(tmp_path, updates=20)
    losses = [event["loss"] for event in RunDirectory(tmp_path).log.events("valid")]
    assert (result.status, result.step, result.tokens) == ("finished", 20, 20 * 24)
    assert losses[-1] < 0.5 * losses[0]
    assert RunDirectory(tmp_path).recipe(CountingRecipe).training.updates == 20
    assert (tmp_path / "config.json").is_file() and (tmp_path / "best" / "config.json").is_file()


def test_it_resumes_bit_for_bit_and_refuses_another_recipe(tmp_path: Path) -> None:
    run(tmp_path / "whole", updates=10)
    run(tmp_path / "parts", updates=5)
    run(tmp_path / "parts", updates=10)
    whole, parts = (
        [event["loss"] for event in RunDirectory(tmp_path / name).log.events("train")] for name in ("whole", "parts")
    )
    assert whole == parts
    with pytest.raises(ConfigError, match=r"training\.lr \(0\.3 -> 0\.1\)"):
        run(tmp_path / "parts", updates=12, lr=0.1)
