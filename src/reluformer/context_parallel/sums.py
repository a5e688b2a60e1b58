"""Sums over processes that gradients pass through."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def summed(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The sum over processes; its gradient is known to all of them."""
    total: Tensor = _Summed.apply(x, group)  # type: ignore[no-untyped-call]
    return total


def replicated(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """`x`, the same on all processes; its gradient is the sum of theirs."""
    same: Tensor = _Replicated.apply(x, group)  # type: ignore[no-untyped-call]
    return same


def exact(x: Tensor) -> torch.dtype:
    """In which sums are made: at least float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        total = x.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Replicated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.to(exact(gradient), copy=True).contiguous()
        dist.all_reduce(total, group=ctx.group)
        return total.to(gradient.dtype), None
