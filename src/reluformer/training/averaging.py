"""Averages of weights: over time while training runs, or over its last checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from reluformer.errors import ArgumentError


class MovingAverage:
    """average = decay * average + (1 - decay) * weights, after every update.

    Early on the decay is (1 + updates) / (10 + updates), so that the random start is soon forgotten.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self._parameters: list[Tensor] = list(module.parameters())
        self.average = [parameter.detach().clone() for parameter in self._parameters]

    def reset(self) -> None:
        """Begin again from the weights as they are."""
        for average, parameter in zip(self.average, self._parameters, strict=True):
            average.copy_(parameter.detach())

    @torch.no_grad()
    def update(self, updates: int) -> None:
        """Take in the weights after update number `updates`."""
        decay = min(self.decay, (1 + updates) / (10 + updates))
        torch._foreach_lerp_(self.average, self._parameters, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The averages stand in the module while inside, the weights again afterwards."""
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
    """The mean of several sets of weights, summed in float64, in the dtype of the first."""
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
