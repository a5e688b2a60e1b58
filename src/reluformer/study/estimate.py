"""How long a plan will take here: a few measured updates of each kind of training; nothing is prepared or kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.regularizers import RegularizerConfig
from reluformer.study.plan import Plan, Run
from reluformer.study.recall import RecallModel, Task
from reluformer.study.trainings import model_of
from reluformer.training.config import TrainingConfig
from reluformer.training.optimizer import adamw
from reluformer.translation.recipe import ModelRecipe
from reluformer.translation.task import TranslationObjective

SENTENCE_TOKENS = 32
"""Taken as the length of a sentence."""
WARM_UP_CELLS = 1024
"""Most tokens of a measured update: the rate of a larger batch is taken to be the same."""
LONG_SECONDS = 4.0
"""An update that takes so long is measured once; else the second one is, as the first pays for the start."""
PATIENCE = 90.0
"""After so many seconds, kinds of runs that were not measured are taken to be like the nearest that was."""
STEP = 8
"""Kinds are measured in rounds, every so many-th in a round, so that each has a measured one near it early."""
OTHER_SECONDS = {"examination": 120.0, "reads": 5.0, "speed": 300.0}
"""Taken for what is not measured."""


@dataclass(frozen=True)
class Estimate:
    """What is still to be done."""

    runs: int
    target_tokens: int
    seconds: float
    """On one process; several at a time share it."""
    kinds: int
    """Kinds of runs that differ in speed."""
    measured: int
    """How many of them were measured; the others are taken to be like their neighbours."""


def estimate(plan: Plan, addresses: Iterable[str], told: Callable[[str], None] = lambda what: None) -> Estimate:
    """Over these runs of the plan; every distinct model and length is measured once, as long as patience lasts."""
    runs = [plan.runs[address] for address in addresses]
    learning = [run for run in runs if run.kind in ("training", "recall")]
    kinds = {_key(run): run for run in learning}
    rates = _rates(list(kinds.values()), lambda i, run: told(f"{i} of {len(kinds)}: {plan.titles[run.address]}"))
    rate = {key: rates[_nearest(i, list(kinds.values()), rates)] for i, key in enumerate(kinds)}
    seconds = sum(OTHER_SECONDS[run.kind] for run in runs if run.kind in OTHER_SECONDS)
    seconds += sum(_amount(run) * rate[_key(run)] for run in learning)
    tokens = sum(_amount(run) for run in learning if run.kind == "training")
    return Estimate(len(runs), tokens, seconds, len(kinds), len(rates))


def _rates(kinds: list[Run], told: Callable[[int, Run], None]) -> dict[int, float]:
    """Seconds a cell or an update of these, by place; at least the first of trainings and of recalls."""
    rates: dict[int, float] = {}
    began = time.perf_counter()
    firsts = {run.kind: i for i, run in reversed(list(enumerate(kinds)))}
    rounds = (i for start in range(STEP) for i in range(start, len(kinds), STEP))
    for i in dict.fromkeys([*firsts.values(), *rounds]):
        if len(rates) >= len(firsts) and time.perf_counter() - began > PATIENCE:
            break
        told(len(rates) + 1, kinds[i])
        rates[i] = _seconds_a_cell(kinds[i]) if kinds[i].kind == "training" else _seconds_an_update(kinds[i])
    return rates


def _nearest(place: int, kinds: list[Run], measured: Iterable[int]) -> int:
    return min((i for i in measured if kinds[i].kind == kinds[place].kind), key=lambda i: abs(i - place))


def _amount(run: Run) -> int:
    """Cells of a training, updates of a recall."""
    training = run.content["training"]
    updates = int(training["updates"])
    if run.kind == "recall":
        return updates
    return updates * int(training["tokens_per_batch"]) * int(training.get("accumulate", 1))


def _key(run: Run) -> str:
    """What decides the speed of a run."""
    content, training = run.content, run.content["training"]
    if run.kind == "recall":
        sizes = [training[name] for name in ("memories", "queries", "slots")]
        return json.dumps([content["task"], content["rule"], content["model"], sizes], sort_keys=True)
    names = ("tokens_per_batch", "label_smoothing", "regularizer", "precision", "device")
    data = content["data"]
    options = [training.get(name) for name in names]
    return json.dumps([content["model"], data["segments"], data["tokenizer"], options], sort_keys=True)


def _seconds_a_cell(run: Run) -> float:
    """Where the training would run; on a CPU in float32."""
    content = run.content
    tokens = content["data"]["segments"]["segment_tokens"]
    length = SENTENCE_TOKENS if tokens == "sentence" else int(tokens)
    training = TrainingConfig(**{**content["training"], "lr": 1e-4})
    on_gpu = training.device == "auto" and torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    vocabulary = int(content["data"]["tokenizer"]["vocab_size"])
    model = ReLUFormer(ModelRecipe(**model_of(content["model"])).with_vocabulary(vocabulary)).to(device)
    objective = TranslationObjective(model, training.label_smoothing, training.regularizer)
    optimizer = adamw(objective, training)
    rows = max(1, min(training.tokens_per_batch, WARM_UP_CELLS) // length)
    batch = [torch.randint(8, vocabulary, (rows, length), device=device) for _ in range(3)]

    def update() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu and training.precision == "bf16"):
            sums = objective(*batch)
            loss = sums.smoothed / batch[2].numel()
            if sums.regularizer is not None:
                loss = loss + sums.regularizer.loss(training.regularizer or RegularizerConfig())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if on_gpu:
            torch.cuda.synchronize()

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
    seconds = LONG_SECONDS
    for _ in range(2):
        began = time.perf_counter()
        update()
        seconds = time.perf_counter() - began
        if seconds >= LONG_SECONDS:
            break
    return seconds
