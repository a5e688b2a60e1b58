"""AdamW with clipping, and its state as named tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from reluformer.training.config import TrainingConfig
from reluformer.training.processes import Processes, in_one_piece


class Optimizer:
    """Owns the wrapped module too: Accelerate prepares both together."""

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
        """Clip and update; the norm of the gradient before clipping, of all processes' data.

        A gradient that is not finite changes nothing.
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
        """Forget the gradients."""
        self._optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """Moments and step counts, as "parameter/moment"."""
        inner = self._optimizer.optimizer
        return {
            f"{name}/{key}": value
            for name, parameter in self._named.items()
            for key, value in inner.state[parameter].items()
        }

    def restore(self, tensors: Mapping[str, Tensor], scaler: Mapping[str, Any] | None, processes: Processes) -> None:
        """What `tensors` and `scaler_state` gave."""
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
        """The loss scale of fp16."""
        scaler = self._accelerator.scaler
        return None if scaler is None else dict(scaler.state_dict())


def adamw(module: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """One pass over all weights an update (fused); vectors are not decayed."""
    parameters = list(module.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=1e-9, fused=True)
