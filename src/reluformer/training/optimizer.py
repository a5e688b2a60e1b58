"""What happens to the weights in an update: AdamW, learning rate, rule warm-up and averages.

The learning rate and the eased rules are functions of the step, so a checkpoint keeps only
the moments of AdamW and the moving average.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from reluformer.errors import ArgumentError
from reluformer.layers import TokenRead
from reluformer.rules import Rule
from reluformer.training.config import TrainingConfig
from reluformer.training.processes import Processes, in_one_piece


class Optimizer:
    """AdamW with clipping. It also owns the wrapped module, as Accelerate prepares both together."""

    def __init__(self, config: TrainingConfig, module: nn.Module, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._clip = config.clip
        optimizer = adamw(module, config)
        if config.compile:
            module.compile()
        self.wrapped, self._optimizer = accelerator.prepare(module, optimizer)
        inner = accelerator.unwrap_model(self.wrapped)
        self._named = dict(inner.named_parameters())

    def step(self, lr: float) -> float:
        """Clips the gradient and updates the weights with learning rate `lr`.

        Returns:
            The norm of the gradient before clipping, over the data of all processes. A gradient that is not
            finite changes no weight.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._accelerator.unscale_gradients()
        gradients = [p.grad for p in self._named.values() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients, foreach=True)
        value = float(in_one_piece(norm))
        if math.isfinite(value) and self._clip is not None and value > self._clip:
            torch._foreach_mul_(gradients, self._clip / (value + 1e-6))
        if math.isfinite(value) or self._accelerator.scaler is not None:  # the scaler skips the update itself
            self._optimizer.step()
        return value

    def clear(self) -> None:
        """Drops the gradients."""
        self._optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """Returns moments and step counts by name, as "parameter/moment"."""
        inner = self._optimizer.optimizer
        return {
            f"{name}/{key}": value
            for name, parameter in self._named.items()
            for key, value in inner.state[parameter].items()
        }

    def restore(self, tensors: Mapping[str, Tensor], scaler: Mapping[str, Any] | None, processes: Processes) -> None:
        """Puts back what `tensors` and `scaler_state` returned."""
        inner = self._optimizer.optimizer
        inner.state.clear()
        for path, value in tensors.items():
            name, _, key = path.rpartition("/")
            parameter = self._named[name]
            placed = processes.like(parameter, value) if value.shape == parameter.shape else value.to(parameter.device)
            inner.state[parameter][key] = placed.clone()
        if scaler is not None and self._accelerator.scaler is not None:
            self._accelerator.scaler.load_state_dict(dict(scaler))

    def scaler_state(self) -> dict[str, Any] | None:
        """Returns the state of the fp16 loss scaler; None with other precisions."""
        scaler = self._accelerator.scaler
        return None if scaler is None else dict(scaler.state_dict())


def adamw(module: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """Returns the fused AdamW of a module, in which vectors (norms, biases) are not decayed."""
    parameters = list(module.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=1e-9, fused=True)


def learning_rate(config: TrainingConfig, update: int) -> float:
    """Returns the learning rate of an update, counted from 1.

    The rate rises linearly over `warmup` updates and then falls: `inverse_sqrt` as 1 / sqrt(update), `cosine`
    to 0 at the update after the last.

    Example:
        >>> learning_rate(TrainingConfig(lr=0.01, warmup=4), 2)
        0.005
    """
    if update <= config.warmup:
        return config.lr * update / config.warmup
    if config.schedule == "inverse_sqrt":
        return config.lr * math.sqrt(max(config.warmup, 1) / update)
    if config.schedule == "cosine":
        done = (update - config.warmup) / (config.updates + 1 - config.warmup)
        return config.lr * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return config.lr


class RuleWarmup:
    """Rules with a level of the row begin without zeros and reach their own level after `updates` updates.

    Between updates the model has its own rules.
    """

    def __init__(self, model: nn.Module, updates: int) -> None:
        self._updates = updates
        self._reads: list[tuple[TokenRead, Rule]] = []
        for module in model.modules():
            if updates and isinstance(module, TokenRead) and module.rule.eased(0.0) != module.rule:
                self._reads.append((module, module.rule))

    def ease(self, step: int) -> None:
        """Sets the rules of update number `step`."""
        progress = min(1.0, step / self._updates) if self._updates else 1.0
        for read, rule in self._reads:
            read.rule = rule.eased(progress)

    def restore(self) -> None:
        """Gives the model its own rules back."""
        for read, rule in self._reads:
            read.rule = rule


class MovingAverage:
    """An exponential moving average of the weights: average = decay * average + (1 - decay) * weights.

    Early in training the decay is (1 + updates) / (10 + updates), so that the random start is soon forgotten.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self._parameters: list[Tensor] = list(module.parameters())
        self.average = [parameter.detach().clone() for parameter in self._parameters]

    def reset(self) -> None:
        """Starts the average again from the current weights."""
        for average, parameter in zip(self.average, self._parameters, strict=True):
            average.copy_(parameter.detach())

    @torch.no_grad()
    def update(self, updates: int) -> None:
        """Adds the weights after update number `updates` to the average."""
        decay = min(self.decay, (1 + updates) / (10 + updates))
        torch._foreach_lerp_(self.average, self._parameters, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts the average into the module inside the block, and the weights back afterwards."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter, average in zip(self._parameters, self.average, strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(kept)


def mean_of(states: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Returns the mean of several sets of weights, summed in float64, in the dtype of the first.

    Raises:
        ArgumentError: There are no weights.
    """
    totals: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    count = 0
    for state in states:
        count += 1
        for name, tensor in state.items():
            dtypes.setdefault(name, tensor.dtype)
            totals[name] = tensor.double() + totals.get(name, 0)
    if not count:
        raise ArgumentError("no weights to average")
    return {name: (total / count).to(dtypes[name]) for name, total in totals.items()}
