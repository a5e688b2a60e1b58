"""Speed: of every rule side by side (claim C9), and of the runs of a plan (`reluformer study --dry-run`).

Rules take turns within one run, so that a busy machine slows all of them alike. Reported are
ratios to softmax within the same tier: `eager` reads every rule through the reference
implementation, `kernel` through the fastest one. Memory is the peak of what torch held in a
training step beyond what it held before.

The estimate of a plan measures a few updates of each kind of training. It prepares and keeps nothing.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from reluformer import kernels
from reluformer.language.recipe import LanguageModelRecipe, LanguageTrainingConfig
from reluformer.language.task import LanguageObjective
from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.models.language_model import LanguageModel
from reluformer.regularizers import RegularizerConfig
from reluformer.study.measures import EVALUATION
from reluformer.study.plan import Plan, Run
from reluformer.study.synthetic import RecallModel, RecallTask
from reluformer.study.trainings import Context, model_of, rounded
from reluformer.training.config import TrainingConfig
from reluformer.training.optimizer import adamw
from reluformer.translation.recipe import ModelRecipe
from reluformer.translation.task import TranslationObjective
from reluformer.translation.tokenizer import BEGIN

BASELINE = "softmax"
TRANSLATED = 32
"""The number of tokens that are decoded greedily after a prefix of the measured length."""


@contextmanager
def tier(name: str) -> Iterator[None]:
    """Sets the tier of all reads: inside `eager` each goes through the reference; `kernel` changes nothing."""
    if name == "kernel":
        yield
        return
    picked = kernels.run
    with patch.object(kernels, "run", lambda impl, *rest: picked("reference", *rest)):
        yield


def run(run: Run, context: Context) -> dict[str, Any]:
    """Measure every rule at every length in every tier; the rules take turns."""
    content = run.content
    found: dict[str, Any] = {"training": {}, "translation": {}, "memory": {}}
    steps = [(t, length) for t in content["tiers"] for length in content["lengths"]]
    for i, (name, length) in enumerate(steps):
        context.report(i / len(steps), f"{name}, {length} tokens")
        with tier(name):
            models = {label: _model(content, label, int(content["seed"])) for label in content["rules"]}
            place = f"{name} {length}"
            training = {label: _training_step(model, content, label, length) for label, model in models.items()}
            found["training"][place] = _take_turns(training, int(content["rounds"]), int(content["tokens"]))
            translation = {label: _translation_step(model, length) for label, model in models.items()}
            found["translation"][place] = _take_turns(translation, int(content["rounds"]), TRANSLATED)
            found["memory"][place] = {label: round(peak_memory(step) / 1e6, 1) for label, step in training.items()}
    return found


def _model(content: Mapping[str, Any], label: str, seed: int) -> ReLUFormer:
    torch.manual_seed(seed)
    rule = content["rules"][label]["rule"]
    return ReLUFormer(ModelConfig(**model_of({**content["model"], "attention": rule})))


def _training_step(model: ReLUFormer, content: Mapping[str, Any], label: str, length: int) -> Callable[[], object]:
    regularizer = RegularizerConfig() if content["rules"][label].get("regularizer") else None
    objective = TranslationObjective(model, 0.1, regularizer)
    optimizer = adamw(objective, TrainingConfig(lr=1e-5))
    rows = max(1, int(content["tokens"]) // length)
    generator = torch.Generator().manual_seed(length)
    batch = [torch.randint(8, model.config.vocab_size, (rows, length), generator=generator) for _ in range(3)]

    def step() -> None:
        objective.train()
        sums = objective(*batch)
        loss = sums.smoothed / batch[2].numel()
        if regularizer is not None:
            loss = loss + sums.regularizer.loss(regularizer)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _translation_step(model: ReLUFormer, length: int) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(length)
    source = torch.randint(8, model.config.vocab_size, (1, length), generator=generator)
    prefix = torch.cat([torch.tensor([[BEGIN]]), source[:, 1:]], 1)

    @torch.inference_mode()
    def step() -> Tensor:
        model.eval()
        state = model.start(model.encode(source))
        tokens = model.logits(model.step(prefix, state)[:, -1:]).argmax(-1)
        for _ in range(TRANSLATED - 1):
            tokens = model.logits(model.step(tokens, state)).argmax(-1)
        return tokens

    return step


def _take_turns(steps: Mapping[str, Callable[[], object]], rounds: int, tokens: int) -> dict[str, Any]:
    """Returns tokens per second and the speed as a multiple of the baseline's, as medians over rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            gc.collect()
            began = time.perf_counter()
            step()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    base = seconds[BASELINE]
    return {
        name: {
            "tokens_per_second": rounded(tokens / statistics.median(taken)),
            "ratio": rounded(statistics.median(b / t for b, t in zip(base, taken, strict=True))),
        }
        for name, taken in seconds.items()
    }


def peak_memory(call: Callable[[], object]) -> int:
    """Returns the peak of the bytes that torch held during `call`, beyond what it held before."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler prints a line for every run
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    held = peak = 0
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


# ------------------------------------------------------------------ the estimate of a plan

SENTENCE_TOKENS = 32
"""The assumed length of a sentence."""
WARM_UP_CELLS = 1024
"""The most tokens of a measured update; a larger batch is assumed to have the same speed."""
LONG_SECONDS = 4.0
"""An update that takes this long is measured once; otherwise the second one counts, as the first one warms up."""
PATIENCE = 90.0
"""After this many seconds, the remaining kinds of runs are assumed to be like the nearest measured one."""
STEP = 8
"""Kinds are measured in rounds, every STEP-th in a round, so that each soon has a measured one near it."""
OTHER_SECONDS = {EVALUATION: 120.0, "reads": 5.0, "interval": 5.0, "regions": 60.0, "images": 300.0, "speed": 300.0}
"""The assumed duration of runs that are not measured."""


@dataclass(frozen=True)
class CostEstimate:
    """The amount of work that is left, and how long it will take on this machine."""

    runs: int
    target_tokens: int
    seconds: float
    """In one process; several at a time share the work."""
    kinds: int
    """The number of kinds of runs that differ in speed."""
    measured: int
    """How many of them were measured; the others are assumed to be like their neighbours."""


def estimate(plan: Plan, addresses: Iterable[str], report: Callable[[str], None] = lambda what: None) -> CostEstimate:
    """Estimates how long some runs of a plan will take.

    Every distinct model and length is measured once, as long as PATIENCE lasts.

    Args:
        plan: The plan.
        addresses: The runs that are left to do.
        report: Is called with a line about each measurement.
    """
    runs = [plan.runs[address] for address in addresses]
    learning = [run for run in runs if run.kind in ("training", "language", "recall")]
    kinds = {_key(run): run for run in learning}
    rates = _rates(list(kinds.values()), lambda i, run: report(f"{i} of {len(kinds)}: {plan.titles[run.address]}"))
    rate = {key: rates[nearest_measured(i, list(kinds.values()), rates)] for i, key in enumerate(kinds)}
    seconds = sum(OTHER_SECONDS[run.kind] for run in runs if run.kind in OTHER_SECONDS)
    seconds += sum(amount(run) * rate[_key(run)] for run in learning)
    tokens = sum(amount(run) for run in learning if run.kind != "recall")
    return CostEstimate(len(runs), tokens, seconds, len(kinds), len(rates))


def _rates(kinds: list[Run], report: Callable[[int, Run], None]) -> dict[int, float]:
    """Returns seconds per token or update, by place in `kinds`; the first of each kind is always measured."""
    rates: dict[int, float] = {}
    began = time.perf_counter()
    firsts = {run.kind: i for i, run in reversed(list(enumerate(kinds)))}
    rounds = (i for start in range(STEP) for i in range(start, len(kinds), STEP))
    for i in dict.fromkeys([*firsts.values(), *rounds]):
        if len(rates) >= len(firsts) and time.perf_counter() - began > PATIENCE:
            break
        report(len(rates) + 1, kinds[i])
        rates[i] = SECONDS[kinds[i].kind](kinds[i])
    return rates


def nearest_measured(place: int, kinds: list[Run], measured: Iterable[int]) -> int:
    """Returns the place of the nearest measured run of the same kind."""
    return min((i for i in measured if kinds[i].kind == kinds[place].kind), key=lambda i: abs(i - place))


def amount(run: Run) -> int:
    """Returns the target tokens of a training, or the updates of a recall run."""
    training = run.content["training"]
    updates = int(training["updates"])
    if run.kind == "recall":
        return updates
    return updates * int(training["tokens_per_batch"]) * int(training.get("accumulate", 1))


def _key(run: Run) -> str:
    """Returns a text of everything that decides the speed of a run."""
    content, training = run.content, run.content["training"]
    if run.kind == "recall":
        sizes = [training[name] for name in ("memories", "queries", "slots")]
        return json.dumps([content["task"], content["rule"], content["model"], sizes], sort_keys=True)
    names = ("tokens_per_batch", "label_smoothing", "regularizer", "precision", "device")
    data = content["data"]
    options = [training.get(name) for name in names]
    length = data["context"] if run.kind == "language" else data["segments"]
    return json.dumps([content["model"], length, data["tokenizer"], options], sort_keys=True)


def seconds_per_token(run: Run) -> float:
    """Measure an update of a training on the device that it would use; returns seconds per target token."""
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

    return seconds_of(update) / (rows * length)


def seconds_per_text_token(run: Run) -> float:
    """Measure an update of a language model; returns seconds per token."""
    content = run.content
    training, context = LanguageTrainingConfig(**{**content["training"], "lr": 1e-4}), int(content["data"]["context"])
    vocabulary = int(content["data"]["tokenizer"]["vocab_size"])
    model = LanguageModel(LanguageModelRecipe(**content["model"]).with_vocabulary(vocabulary))
    objective = LanguageObjective(model, training.label_smoothing, training.regularizer)
    optimizer = adamw(objective, training)
    rows = max(1, min(training.tokens_per_batch, WARM_UP_CELLS) // context)
    tokens, targets = torch.randint(8, vocabulary, (2, rows, context))

    def update() -> None:
        (objective(tokens, targets).smoothed / targets.numel()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return seconds_of(update) / (rows * context)


def seconds_per_update(run: Run) -> float:
    """Measure an update of a recall run; returns its seconds."""
    content = run.content
    task, training = RecallTask(**content["task"]), content["training"]
    model = RecallModel(task, rule=content["rule"], **content["model"])
    *drawn, answers = task.draw(training["memories"], training["queries"], training["slots"], seed=0)

    def update() -> None:
        logits, _ = model(*drawn)
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten()).backward()  # type: ignore[no-untyped-call]

    return seconds_of(update)


def seconds_of(update: Callable[[], None]) -> float:
    """Returns the seconds of an update, of the second one if the first is short."""
    seconds = LONG_SECONDS
    for _ in range(2):
        began = time.perf_counter()
        update()
        seconds = time.perf_counter() - began
        if seconds >= LONG_SECONDS:
            break
    return seconds


SECONDS: dict[str, Callable[[Run], float]] = {
    "training": seconds_per_token,
    "language": seconds_per_text_token,
    "recall": seconds_per_update,
}
"""What measures the speed of each kind of run that learns."""
