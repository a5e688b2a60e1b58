"""Claim C9: training and translation speed and memory of every rule, side by side in one run.

Contestants take turns, so that a busy machine slows all of them alike, and what is reported are
ratios to softmax within the same tier: `eager` reads every rule through the reference
implementation, `kernel` through the fastest there is. Memory is what torch held at the most in a
training step beyond what it held before.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from reluformer import kernels
from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.regularizers import RegularizerConfig
from reluformer.study.plan import Run
from reluformer.study.trainings import Context, model_of, rounded
from reluformer.training.config import TrainingConfig
from reluformer.training.optimizer import adamw
from reluformer.translation.task import TranslationObjective
from reluformer.translation.tokenizer import BEGIN

BASELINE = "softmax"


@contextmanager
def tier(name: str) -> Iterator[None]:
    """`eager`: every read inside goes through the reference; `kernel`: as it is."""
    if name == "kernel":
        yield
        return
    picked = kernels.run
    with patch.object(kernels, "run", lambda impl, *rest: picked("reference", *rest)):
        yield


def run(run: Run, context: Context) -> dict[str, Any]:
    """Every rule by turns at every length, in both tiers."""
    content = run.content
    found: dict[str, Any] = {"training": {}, "translation": {}, "memory": {}}
    steps = [(t, length) for t in content["tiers"] for length in content["lengths"]]
    for i, (name, length) in enumerate(steps):
        context.report(i / len(steps), f"{name}, {length} tokens")
        with tier(name):
            models = {label: _model(content, label, int(content["seed"])) for label in content["rules"]}
            place = f"{name} {length}"
            training = {label: _training_step(model, content, label, length) for label, model in models.items()}
            found["training"][place] = _by_turns(training, int(content["rounds"]), int(content["tokens"]))
            translation = {label: _translation_step(model, length) for label, model in models.items()}
            found["translation"][place] = _by_turns(translation, int(content["rounds"]), TRANSLATED)
            found["memory"][place] = {label: round(peak_memory(step) / 1e6, 1) for label, step in training.items()}
    return found


TRANSLATED = 32
"""Tokens that are decoded greedily from a prefix of the measured length."""


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


def _by_turns(steps: Mapping[str, Callable[[], object]], rounds: int, tokens: int) -> dict[str, Any]:
    """Tokens a second, and the ratio to the baseline: medians over rounds."""
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
    """Bytes that torch held at the most during `call`, beyond what it held before."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler otherwise prints a line a run
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    held = peak = 0
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
