"""Projections of scores onto the simplex, with derivatives of every order and kind.

The package entmax computes them. Its gradient has no gradient of its own for 1.5-entmax, which divides by zero there,
and none of the transforms of `torch.func` knows it. So the derivative is written here, in operations of PyTorch. For a
projection p of the scores and a change u of them it is

    sparsemax     a (u - sum a u / sum a)   with a = 1 where p > 0, and 0 elsewhere
    1.5-entmax    g (u - sum g u / sum g)   with g = sqrt(p)

These matrices are symmetric, so the same lines are the backward pass and the forward-mode derivative.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

Projection = Literal["sparsemax", "entmax15"]


def hide(scores: Tensor, visible: Tensor) -> Tensor:
    """Place hidden slots 4 below the best visible one, where sparse rules give exactly 0.

    sparsemax cuts at most 1 below the maximum and 1.5-entmax at most 2, so the visible
    weights do not notice the hidden slots, and no infinity enters the sums.
    """
    if not visible.ndim:
        return scores
    lowest = torch.finfo(scores.dtype).min
    best = scores.detach().masked_fill(~visible, lowest).amax(-1, keepdim=True)
    floor = torch.where(best == lowest, torch.zeros_like(best), best - 4)
    return torch.where(visible, scores, floor)


def project(name: Projection, scores: Tensor) -> Tensor:
    """Returns the projection of each row of scores; NaN for a row with a score that is not finite, where entmax fails.

    Example:
        >>> project("sparsemax", torch.tensor([1.0, 0.5, -1.0]))
        tensor([0.7500, 0.2500, 0.0000])
    """
    if torch.compiler.is_compiling():  # a compiler takes no function that has a forward-mode derivative
        return _computed(name, scores)
    if torch.is_inference_mode_enabled() and torch._C._functorch.peek_interpreter_stack() is None:
        return _computed(
            name, scores
        )  # nobody asks for a derivative, and each call of a function costs 30 microseconds
    found: Tensor = _Projection.apply(name, scores)  # type: ignore[no-untyped-call]
    return found


def _computed(name: Projection, scores: Tensor) -> Tensor:
    import entmax

    function = entmax.sparsemax if name == "sparsemax" else entmax.entmax15
    try:
        found: Tensor = function(scores, dim=-1)
        return found
    except RuntimeError:
        finite = torch.isfinite(scores).all(-1, keepdim=True)
        if bool(finite.all()):
            raise
        return function(scores.masked_fill(~finite, 0), dim=-1).masked_fill(~finite, torch.nan)  # type: ignore[no-any-return]


class _Projection(torch.autograd.Function):
    @staticmethod
    def forward(name: Projection, scores: Tensor) -> Tensor:
        return _computed(name, scores)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Projection, Tensor], output: Tensor) -> None:
        ctx.name = inputs[0]
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[None, Tensor]:
        return None, _changed(ctx.name, ctx.saved_tensors[0], d_output)

    @staticmethod
    def jvp(ctx: Any, _: None, d_scores: Tensor) -> Tensor:
        return _changed(ctx.name, ctx.saved_tensors[0], d_scores)

    @staticmethod
    def vmap(_: Any, in_dims: tuple[None, int], name: Projection, scores: Tensor) -> tuple[Tensor, int]:
        return project(name, scores.movedim(in_dims[1], 0)), 0


def _changed(name: Projection, projected: Tensor, change: Tensor) -> Tensor:
    """Returns how a projection changes with its scores; a row of NaN changes by zero."""
    positive = projected > 0
    if name == "sparsemax":
        slopes = positive.to(projected.dtype)
    else:
        slopes = torch.where(positive, torch.where(positive, projected, 1).sqrt(), 0)
    sums = slopes.sum(-1, keepdim=True)
    mean = (slopes * change).sum(-1, keepdim=True) / torch.where(sums > 0, sums, 1)
    return slopes * (change - mean)
