"""Dense products in float32, at the full width of the processor.

PyTorch gives products of float32 to MKL. On processors that are not Intel's, MKL uses vectors of 256 bits even where
the processor has 512, which halves its speed. oneDNN, which PyTorch contains as well, uses the whole width on any
processor. `linear` and `times` take oneDNN there for products of at least `LEAST` multiplications, and PyTorch's own
way everywhere else. benchmarks/products.py measures both; `torch.backends.mkldnn.flags(enabled=False)` switches
oneDNN off.

Shapes: N rows, K inner width, M outer width.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reluformer.kernels import derivatives

__all__ = ["LEAST", "Linear", "add_times", "available", "linear", "times", "wide"]

LEAST = 2**21
"""Multiplications from which on a call of oneDNN, which takes ten microseconds, is worth it."""


@cache
def available() -> bool:
    """Returns whether this processor has wide vectors that MKL leaves alone, and oneDNN is there.

    Example:
        >>> available() in (True, False)
        True
    """
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        vendors = [
            line
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("vendor_id")
        ]
    except OSError:
        return False
    return bool(vendors) and not any("GenuineIntel" in line for line in vendors)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns x W^T + b, as `torch.nn.functional.linear` does.

    Args:
        x: (..., K).
        weight: (M, K).
        bias: (M,).

    Returns:
        (..., M), differentiable in every argument and to every order.

    Example:
        >>> linear(torch.ones(1, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([[3., 7.]])
    """
    if not wide(x, weight) or x.numel() * weight.size(0) < LEAST:
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        return cast(Tensor, _Linear.apply(x, weight, bias))  # type: ignore[no-untyped-call]
    return _product(x, weight, bias)


def times(a: Tensor, b: Tensor) -> Tensor:
    """Returns a b for two matrices; for code that computes its own derivatives, so the result has no graph.

    Args:
        a: (N, K), or the transposed view of a (K, N).
        b: (K, M), or the transposed view of an (M, K).

    Returns:
        (N, M); it may be a transposed view.

    Example:
        >>> times(torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([[1., 2.],
                [3., 4.]])
    """
    if not wide(a, b) or a.size(0) * a.size(1) * b.size(1) < LEAST:
        return a @ b
    a, b = a.detach(), b.detach()
    # oneDNN reorders a transposed left side at every call and a right side for nothing: the large one goes to the right
    if a.size(0) > b.size(1) and not a.is_contiguous() and b.is_contiguous():
        return _product(b.t(), a).t()
    return _product(a, b.t())


def add_times(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b to `total`, in place.

    Args:
        total: (N, M).
        a: (N, K), as in `times`.
        b: (K, M), as in `times`.

    Example:
        >>> total = torch.ones(2, 2)
        >>> add_times(total, torch.eye(2), torch.eye(2))
        >>> total
        tensor([[2., 1.],
                [1., 2.]])
    """
    if total.dtype == a.dtype and (not wide(a, b) or a.size(0) * a.size(1) * b.size(1) < LEAST):
        total.addmm_(a, b)
    else:
        total += times(a, b)


def wide(a: Tensor, b: Tensor) -> bool:
    """Returns whether oneDNN may take a product: of plain float32 tensors on the CPU that nobody transforms.

    Example:
        >>> wide(torch.ones(2, 2), torch.ones(2, 2)) == available()
        True
        >>> wide(torch.ones(2, 2).double(), torch.ones(2, 2))
        False
    """
    return (
        a.dtype is torch.float32
        and b.dtype is torch.float32
        and a.device.type == b.device.type == "cpu"
        and available()
        and bool(torch.backends.mkldnn.enabled)
        and derivatives.eager(a)
        and derivatives.eager(b)
        and derivatives.unsupported() is None
        and not torch.is_autocast_enabled("cpu")
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], ""))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        product = torch.matmul if derivatives.recomputes() or not derivatives.eager(d_out) else times
        rows = d_out.reshape(-1, d_out.size(-1))
        d_x = product(rows, weight).reshape(x.shape) if needs_x else None
        d_weight = product(rows.t(), x.reshape(-1, x.size(-1))) if needs_weight else None
        return d_x, d_weight, rows.sum(0) if needs_bias else None


class Linear(nn.Linear):
    """`torch.nn.Linear` with the products of `linear`; parameters, state and initial weights are the same.

    Example:
        >>> Linear(2, 3)(torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)
