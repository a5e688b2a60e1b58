"""Trains a calibrated student on its teacher, layer by layer and then end to end.

First every attention learns to give the teacher's output on the teacher's input; all of
them are trained at once and independently. Then the whole student runs on its own states,
and its states and outputs are compared with the teacher's. There is no dropout, and
batches are a function of (seed, step), so with `steps` alone the result is deterministic.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from reluformer.errors import ArgumentError
from reluformer.integrations.transformers.relufy.family import ExampleBatch, ExampleSet, Family, Trained

Phase = Literal["layers", "whole"]


@dataclass(frozen=True)
class Distillation:
    """The settings of distillation, which ends after `steps` or `minutes`, whichever comes first.

    Raises:
        ArgumentError: A value is out of range, or neither `steps` nor `minutes` is given.

    Example:
        >>> Distillation(steps=100).train
        'all'
    """

    steps: int | None = 400
    """The number of updates; None means that only `minutes` limits them."""
    minutes: float | None = None
    """The wall time; it makes the result depend on the speed of the machine."""
    layer_share: float = 0.25
    """The share of updates that train layer by layer."""
    train: Trained = "all"
    """`scores`: scales, offsets and centres; `attention`: also the attention projections; `all`: every weight."""
    lr: float = 3e-4
    """The learning rate of the teacher's weights; it rises over the first twentieth of a phase, then falls to zero."""
    scores_lr: float = 3e-3
    """The learning rate of scales, offsets and centres."""
    clip: float = 1.0
    """The maximum norm of a gradient."""
    batch_tokens: int = 2048
    """Tokens of a batch, including padding."""
    seed: int = 0
    """The seed of the order of the texts."""

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None:
            raise ArgumentError("Distillation without steps and minutes never ends; give one of them")
        for name in ("steps", "minutes", "lr", "scores_lr", "clip", "batch_tokens"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ArgumentError(f"Distillation: {name} must be positive, got {value!r}")
        if not 0 <= self.layer_share <= 1:
            raise ArgumentError(f"Distillation: layer_share must be between 0 and 1, got {self.layer_share!r}")
        if self.train not in ("scores", "attention", "all"):
            raise ArgumentError(f"Distillation: train is {self.train!r}; valid: scores, attention, all")


@dataclass(frozen=True)
class PhaseLog:
    """The record of one phase; losses are means over its first and its last tenth."""

    steps: int
    seconds: float
    first_loss: float
    last_loss: float


OnUpdate = Callable[[Phase, int, float], None]
"""A function that receives the phase, the step and the loss after every update."""


def distil(
    family: Family, student: nn.Module, examples: ExampleSet, options: Distillation, on_update: OnUpdate | None = None
) -> dict[Phase, PhaseLog]:
    """Trains the student in place.

    Args:
        family: The family, which holds the teacher.
        student: The calibrated student.
        examples: The training examples.
        options: The settings.
        on_update: A function that is called after every update.

    Returns:
        The record of each phase.
    """
    shares: dict[Phase, float] = {"layers": options.layer_share, "whole": 1 - options.layer_share}
    frozen = _freeze_others(student, family.trained(student, options.train))
    logs: dict[Phase, PhaseLog] = {}
    first = 0
    try:
        for phase, share in shares.items():
            if share > 0:
                training = _Training(family, student, examples, options, phase, share)
                logs[phase] = training.run(first, on_update)
                first += logs[phase].steps
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)
    return logs


def _freeze_others(student: nn.Module, trained: Iterable[Iterable[nn.Parameter]]) -> list[nn.Parameter]:
    """Disables gradients of all other parameters, and returns those that had one before."""
    kept = {id(parameter) for group in trained for parameter in group}
    frozen = [parameter for parameter in student.parameters() if parameter.requires_grad and id(parameter) not in kept]
    for parameter in frozen:
        parameter.requires_grad_(False)
    return frozen


class _Training:
    """One phase of distillation."""

    def __init__(
        self,
        family: Family,
        student: nn.Module,
        examples: ExampleSet,
        options: Distillation,
        phase: Phase,
        share: float,
    ) -> None:
        self.family, self.student, self.examples, self.options, self.phase = family, student, examples, options, phase
        self.steps = None if options.steps is None else max(1, round(options.steps * share))
        self.seconds = None if options.minutes is None else 60 * options.minutes * share
        self.rates = (options.scores_lr, options.lr)
        new, others = family.trained(student, options.train)
        groups = [{"params": part, "lr": rate} for part, rate in zip((new, others), self.rates, strict=True)]
        self.optimizer = torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=0.0)
        self.rates = tuple(group["lr"] for group in self.optimizer.param_groups)

    def run(self, first: int, on_update: OnUpdate | None) -> PhaseLog:
        """Trains until the steps or the time are used up; `first` is the number of the first batch."""
        plan = self.examples.plan(self.options.seed)
        losses: list[float] = []
        begun = time.monotonic()
        while (done := self._done(len(losses), time.monotonic() - begun)) < 1:
            batch = self.examples.batch(plan.batch(first + len(losses)))
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * _schedule(done)
            losses.append(self._update(batch))
            if on_update is not None:
                on_update(self.phase, len(losses), losses[-1])
        tenth = max(1, len(losses) // 10)
        ends = [sum(part) / tenth for part in (losses[:tenth], losses[-tenth:])]
        return PhaseLog(len(losses), time.monotonic() - begun, *ends)

    def _done(self, steps: int, seconds: float) -> float:
        """Returns the share of the phase that is over; at least one update is made."""
        by_steps = 0.0 if self.steps is None else steps / self.steps
        by_time = 0.0 if self.seconds is None or not steps else seconds / self.seconds
        return max(by_steps, by_time)

    def _update(self, batch: ExampleBatch) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        if self.phase == "layers":
            loss = torch.stack(self.family.attention_losses(self.student, batch)).mean()
        else:
            loss = self.family.final_loss(self.student, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        trained = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        torch.nn.utils.clip_grad_norm_(trained, self.options.clip)
        self.optimizer.step()
        return float(loss.detach())


def _schedule(done: float) -> float:
    """Returns the factor of the learning rate when the share `done` of the phase is over."""
    return min(1.0, 0.05 + done / 0.05) * 0.5 * (1 + math.cos(math.pi * done))
