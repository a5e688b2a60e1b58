"""Derivatives that a compiled operator does not have, and what is done instead.

An operator of this package has a forward and a backward pass, and both are opaque to PyTorch. That is all that training
needs. Everything else goes through operations that PyTorch differentiates and batches by itself:

* Inside a transform of `torch.func` (`grad`, `jvp`, `vmap`, ...) and where forward-mode derivatives are on, an operator
  refuses the read (`unsupported`), and `impl="auto"` takes the reference.
* In plain eager mode the same kernels and gradients are called through a `torch.autograd.Function`, which costs a
  fraction of the dispatch of an operator (`eager`). Whoever watches operators, as a compiler does, sees the operators.
* Where the gradient is itself to be differentiated (`create_graph=True`), or is asked for in a batch, the backward pass
  of an operator computes the read once more with operations of PyTorch (`gradients`). Every further order is right, at
  the price of dense scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from reluformer.errors import ArgumentError


def unsupported() -> str | None:
    """Returns why a compiled operator must not be called now, or None if it may.

    Example:
        >>> unsupported() is None
        True
        >>> with torch.autograd.forward_ad.dual_level():
        ...     unsupported()
        'it has no forward-mode derivative'
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "it has no rules for the transforms of torch.func (grad, jvp, vmap, ...)"
    return "it has no forward-mode derivative" if forward_ad._current_level >= 0 else None


# A compiler evaluates it once while it traces; its own guards know both states.
unsupported._dynamo_marked_constant = True  # type: ignore[attr-defined]


def eager(x: Tensor) -> bool:
    """Returns whether nobody watches the operators that are called now, so that a kernel may be called without one.

    Compilers, tracers, dispatch modes and subclasses of tensors see operators, and must go on seeing them.

    Args:
        x: one of the inputs.

    Example:
        >>> eager(torch.zeros(2))
        True
    """
    if type(x) not in (Tensor, torch.nn.Parameter) or torch.compiler.is_compiling():
        return False
    if torch._C._functorch.is_legacy_batchedtensor(x):  # a gradient that is asked for in a batch
        return False
    return not torch.jit.is_tracing() and torch._C._len_torch_dispatch_stack() == 0  # type: ignore


def concrete(x: Tensor) -> bool:
    """Returns whether the numbers of a tensor may be looked at now: no compiler, tracer or `vmap` stands in for them.

    Args:
        x: a tensor.

    Example:
        >>> concrete(torch.zeros(2))
        True
        >>> torch.vmap(lambda x: torch.tensor(concrete(x)))(torch.zeros(2, 3))
        tensor([False, False])
    """
    return eager(x) and not torch._C._functorch.is_batchedtensor(x)


def recomputes() -> bool:
    """Returns whether a backward pass that runs now has to go through `gradients`."""
    return torch.is_grad_enabled() or unsupported() is not None


def gradients(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor | None], d_outputs: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Returns gradients that can be differentiated again.

    Args:
        function: the forward pass in operations of PyTorch; it takes `inputs`.
        inputs: the saved inputs of the operator.
        d_outputs: the gradients of the outputs of `function`; None counts as zero.

    Returns:
        The gradient of each input, or None for one that needs none.

    Example:
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> [slope] = gradients(lambda x: [x**3], [x], [torch.tensor(1.0)])
        >>> slope.item(), torch.autograd.grad(slope, x)[0].item()
        (27.0, 18.0)
    """
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        given = [None if x is None else x.view_as(x) for x in inputs]  # so that the gradient stops here
        pairs = zip(function(*given), d_outputs, strict=True)
        asked = [(output, d_output) for output, d_output in pairs if d_output is not None and output.requires_grad]
        wanted = [x for x in given if x is not None and x.requires_grad]
        found = iter(
            torch.autograd.grad(
                [output for output, _ in asked],
                wanted,
                [d_output for _, d_output in asked],
                create_graph=differentiable,
                allow_unused=True,
            )
            if asked
            else [None] * len(wanted)
        )
    return [next(found) if x is not None and x.requires_grad else None for x in given]


def explain_missing_second_derivative(out: Tensor) -> None:
    """Let a second derivative through PyTorch's fused attention fail with an error that says what to do.

    Args:
        out: what fused attention returned.
    """
    node = out.grad_fn
    if node is not None and node.name().startswith("ScaledDotProduct"):
        node.register_hook(_explained)


def _explained(d_inputs: Sequence[Tensor | None], _: Any) -> tuple[Tensor | None, ...] | None:
    if not torch.is_grad_enabled():
        return None
    return tuple(None if x is None else _OnceDifferentiated.apply(x) for x in d_inputs)  # type: ignore[no-untyped-call]


class _OnceDifferentiated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ArgumentError(
            "fused attention (impl='sdpa', which impl='auto' takes for softmax) has no second derivative; "
            "pass impl='reference'"
        )
