"""How long a plan will take here: a few measured updates of each kind of training, nothing prepared, nothing kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from reluformer.config import RegularizerConfig, TrainingConfig
from reluformer.config.recipe import ModelRecipe
from reluformer.model import ReLUFormer
from reluformer.study.plan import Plan, Run
from reluformer.study.recall import RecallModel, Task
from reluformer.study.trainings import model_of
from reluformer.training.objective import Objective
from reluformer.training.optimizer import adamw

SENTENCE_TOKENS = 32
"""Taken as the length of a sentence."""
WARM_UP_CELLS = 2048
"""Most tokens of a measured update: the rate of a larger batch is taken to be the same."""
OTHER_SECONDS = {"examination": 120.0, "reads": 5.0, "speed": 300.0}
"""Taken for what is not measured."""


@dataclass(frozen=True)
class Estimate:
    """What is still to be done."""

    runs: int
    target_tokens: int
    seconds: float
    """On one process; several at a time share it."""


def estimate(plan: Plan, addresses: Iterable[str], told: Callable[[str], None] = lambda what: None) -> Estimate:
    """Over these runs of the plan; every distinct model and length is measured once."""
    measured: dict[str, float] = {}
    runs, tokens, seconds = 0, 0, 0.0
    for address in addresses:
        run = plan.runs[address]
        runs += 1
        if run.kind not in ("training", "recall"):
            seconds += OTHER_SECONDS[run.kind]
            continue
        training = run.content["training"]
        amount = _cells(training) if run.kind == "training" else int(training["updates"])
        tokens += amount if run.kind == "training" else 0
        key = _key(run)
        if key not in measured:
            told(plan.titles[address])
            measured[key] = _seconds_a_cell(run) if run.kind == "training" else _seconds_an_update(run)
        seconds += amount * measured[key]
    return Estimate(runs, tokens, seconds)


def _cells(training: dict[str, Any]) -> int:
    return int(training["updates"]) * int(training["tokens_per_batch"]) * int(training.get("accumulate", 1))


def _key(run: Run) -> str:
    """What decides the speed of a run."""
    content = dict(run.content)
    training = {k: v for k, v in content["training"].items() if k not in ("seed", "lr", "updates", "warmup")}
    kept = {k: v for k, v in content.items() if k not in ("training", "trials", "start", "test", "data")}
    return json.dumps([kept, training, content.get("data", {}).get("segments")], sort_keys=True)


def _seconds_a_cell(run: Run) -> float:
    content = run.content
    tokens = content["data"]["segments"]["segment_tokens"]
    length = SENTENCE_TOKENS if tokens == "sentence" else int(tokens)
    training = TrainingConfig(**{**content["training"], "lr": 1e-4})
    vocabulary = int(content["data"]["tokenizer"]["vocab_size"])
    model = ReLUFormer(ModelRecipe(**model_of(content["model"])).with_vocabulary(vocabulary))
    objective = Objective(model, training.label_smoothing, training.regularizer)
    optimizer = adamw(objective, training)
    rows = max(1, min(training.tokens_per_batch, WARM_UP_CELLS) // length)
    batch = [torch.randint(8, vocabulary, (rows, length)) for _ in range(3)]

    def update() -> None:
        sums = objective(*batch)
        loss = sums.smoothed / batch[2].numel()
        if sums.regularizer is not None:
            loss = loss + sums.regularizer.loss(training.regularizer or RegularizerConfig())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return _seconds(update) / (rows * length)


def _seconds_an_update(run: Run) -> float:
    content = run.content
    task, training = Task(**content["task"]), content["training"]
    model = RecallModel(task, rule=content["rule"], **content["model"])
    *memory, answers = task.draw(training["memories"], training["queries"], training["slots"], seed=0)

    def update() -> None:
        logits, _ = model(*memory)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten()).backward()  # type: ignore[no-untyped-call]

    return _seconds(update)


def _seconds(update: Callable[[], None]) -> float:
    """Of the second update: the first one pays for the start."""
    update()
    began = time.perf_counter()
    update()
    return time.perf_counter() - began
