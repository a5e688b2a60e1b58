"""The error for a loss that is not finite: where it began, and what may help."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from reluformer.errors import ReluformerError
from reluformer.layers import Attention, FeedForward, Sublayer
from reluformer.rules import Pointwise, Rule
from reluformer.training.config import TrainingConfig


class DivergedError(ReluformerError):
    """The loss or the gradient became NaN or infinite; the attributes say where."""

    def __init__(self, message: str, step: int, layer: str | None, rule: str | None) -> None:
        super().__init__(message)
        self.step = step
        self.layer = layer
        self.rule = rule


def diagnose(
    model: nn.Module, forward: Callable[[], Any], config: TrainingConfig, step: int, what: str
) -> DivergedError:
    """Returns the error to raise, after running the batch again and looking at every memory.

    Args:
        model: The model.
        forward: Runs the batches of the update again.
        config: The training configuration, which decides the advice.
        step: The number of the update.
        what: "loss" or "gradient".
    """
    gradient = _last_bad_gradient(model) if what == "gradient" else None
    name, seen = _first_bad_output(model, forward)
    if name is None and gradient is not None:
        name, seen = gradient, "its gradient is not finite"
    sublayer = dict(_sublayers(model)).get(name or "")
    rule = None if sublayer is None else _rule(sublayer.layer)
    if rule is None:
        place = seen or "every memory was still finite: the weights or the logits overflowed"
    else:
        place = f"it began in {name} with rule '{rule.name}' ({seen})"
    advice = "; ".join(_advice(rule, sublayer, config))
    return DivergedError(
        f"update {step}: the {what} is not finite; {place}. Try: {advice}", step, name, rule.name if rule else None
    )


def _sublayers(model: nn.Module) -> Iterator[tuple[str, Sublayer]]:
    """Yields every memory with its name, in the order of the forward pass."""
    for name, module in model.named_modules():
        if isinstance(module, Sublayer):
            yield name, module


def _rule(layer: nn.Module) -> Rule:
    assert isinstance(layer, FeedForward | Attention)
    return layer.rule if isinstance(layer, FeedForward) else layer.read.rule


def _first_bad_output(model: nn.Module, forward: Callable[[], Any]) -> tuple[str | None, str]:
    """Returns the first memory whose output is not finite, and a description of its input."""
    found: list[tuple[str, str]] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], result: tuple[Tensor, Any]) -> None:
            if not found and not torch.isfinite(result[0]).all():
                largest = float(args[0].detach().abs().max())
                found.append((name, f"largest input {largest:.3g}, output not finite"))

        return hook

    handles = [sublayer.layer.register_forward_hook(watch(name)) for name, sublayer in _sublayers(model)]
    try:
        with torch.no_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else (None, "")


def _last_bad_gradient(model: nn.Module) -> str | None:
    """Returns the memory nearest to the loss whose gradient is not finite: backward reached it first."""
    bad = None
    for name, sublayer in _sublayers(model):
        gradients = [p.grad for p in sublayer.layer.parameters() if p.grad is not None]
        if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            bad = name
    return bad


def _advice(rule: Rule | None, sublayer: Sublayer | None, config: TrainingConfig) -> Iterator[str]:
    attention = sublayer is not None and isinstance(sublayer.layer, Attention)
    if attention and isinstance(rule, Pointwise) and rule.row_scale(torch.tensor(2.0)) is None:
        yield (
            f"another rule: what '{rule.name}' reads grows with the number of visible slots; 'relu' divides by "
            "gamma sqrt(n/2) and keeps its variance at one"
        )
    if attention and isinstance(rule, Pointwise) and config.regularizer is None:
        yield "training.regularizer: {} (keeps the sum of each row near one)"
    if config.precision == "fp16":
        yield "training.precision=bf16"
    if config.clip is None:
        yield "training.clip=1.0"
    yield f"training.lr={config.lr / 2:g}"
    yield f"training.warmup={max(2 * config.warmup, 100)}"
