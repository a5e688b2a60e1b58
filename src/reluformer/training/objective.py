"""The objective: cross entropy with label smoothing, and the regulariser on attention rows.

With z = logits of one position over V tokens, t its target and e the smoothing,

    loss = log sum_v exp(z_v) - (1 - e) z_t - e mean_v z_v

which is torch's own definition. `Objective` returns *sums* and counts: parts of a batch,
on other processes too, are added up before anything is divided. A loss that is not finite
becomes a `DivergedError`, which says where it began and what may help.

Shapes: B batch, T target tokens, N real target tokens, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from reluformer import regularizers
from reluformer.errors import ReluformerError
from reluformer.kernels.products import add_times, times
from reluformer.layers import Attention, FeedForward, Sublayer
from reluformer.memory import RowStats
from reluformer.regularizers import RegularizerConfig, RegularizerSums
from reluformer.rules import Pointwise, Rule
from reluformer.training.config import TrainingConfig

_CHUNK_CELLS = 2**21
"""Logits that exist at a time: enough for fast products, and they stay in the cache."""


class _LinearCrossEntropy(torch.autograd.Function):
    """Sums of smoothed and plain cross entropy of logits states @ weight^T that never exist as a whole.

    The gradient of a sum over positions is known up to one factor as soon as the logits
    are, so it is computed in the forward pass, chunk by chunk, over the logits' own
    memory: the backward pass only multiplies by that factor.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, target: Tensor, smoothing: float, with_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        exact = torch.float64 if states.dtype == torch.float64 else torch.float32
        table = weight.to(states.dtype)
        mean_weight = weight.to(exact).mean(0)
        keep = 1 - smoothing
        rows = max(1, _CHUNK_CELLS // weight.size(0))
        smoothed = torch.zeros((), dtype=exact, device=states.device)
        plain = torch.zeros((), dtype=exact, device=states.device)
        grad_states = torch.empty(states.shape, dtype=exact, device=states.device) if with_gradient else None
        grad_weight = torch.zeros(weight.shape, dtype=exact, device=states.device) if with_gradient else None
        for start in range(0, states.size(0), rows):
            part, wanted = states[start : start + rows], target[start : start + rows]
            logits = times(part, table.t()).to(exact)
            at_target = logits.gather(1, wanted[:, None]).squeeze(1)
            highest = logits.amax(1, keepdim=True)
            exponentials = logits.sub_(highest).exp_()  # (rows, V), at most 1
            total = exponentials.sum(1, keepdim=True)
            log_total = (highest + total.log()).squeeze(1)
            mean_logit = part.to(exact) @ mean_weight
            plain += (log_total - at_target).sum()
            smoothed += (log_total - keep * at_target - smoothing * mean_logit).sum()
            if grad_states is not None and grad_weight is not None:
                # softmax = exponentials / total; the division is left to the small factors
                inverse = total.reciprocal_()
                share = exponentials.to(states.dtype)
                correction = keep * table[wanted].to(exact) + smoothing * mean_weight
                grad_states[start : start + rows] = times(share, table).to(exact).mul_(inverse).sub_(correction)
                scaled = (part.to(exact) * inverse).to(states.dtype)
                add_times(grad_weight, share.t(), scaled)
        if grad_states is not None and grad_weight is not None:
            exact_states = states.to(exact)
            grad_weight.index_add_(0, target, exact_states, alpha=-keep)
            grad_weight.sub_(exact_states.sum(0) * (smoothing / weight.size(0)))
            ctx.save_for_backward(grad_states, grad_weight)
        ctx.dtypes = states.dtype, weight.dtype
        ctx.mark_non_differentiable(plain)
        return smoothed, plain

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_smoothed: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_states, grad_weight = ctx.saved_tensors
        states_dtype, weight_dtype = ctx.dtypes
        return (
            (grad_states * grad_smoothed).to(states_dtype),
            (grad_weight * grad_smoothed).to(weight_dtype),
            None,
            None,
            None,
        )


def linear_cross_entropy(
    states: Tensor, weight: Tensor, target: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Returns the cross entropy of the logits states @ weight^T, which never exist as a whole.

    Args:
        states: (N, D).
        weight: (V, D) output embedding.
        target: (N,) token ids.
        smoothing: Share of the target distribution that is spread over the vocabulary.

    Returns:
        The sum over N of the smoothed loss, which is differentiable, and of the plain loss, which is not.

    Example:
        >>> smoothed, plain = linear_cross_entropy(torch.zeros(2, 4), torch.zeros(8, 4), torch.tensor([1, 2]))
        >>> round(float(plain), 4)  # two times log 8
        4.1589
    """
    needed = torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad)
    with torch.autocast(states.device.type, enabled=False):
        sums = _LinearCrossEntropy.apply(states, weight, target, smoothing, needed)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor], sums)


class LossSums(NamedTuple):
    """Sums over the real target tokens of a batch, and over its attention rows where these are regularised."""

    smoothed: Tensor
    """What is minimised; with gradient."""
    plain: Tensor
    """Negative log-likelihood in nats."""
    regularizer: RegularizerSums | None


class Objective(nn.Module):
    """A model with its loss, in one forward pass: the module that is wrapped for several processes.

    A task derives from it and defines `forward`, which takes the inputs of a batch, runs the model and ends in
    `sums`. Row statistics are needed only while `regularized` is true.
    """

    def __init__(
        self, model: nn.Module, label_smoothing: float = 0.0, regularizer: RegularizerConfig | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.regularizer = regularizer

    @property
    def regularized(self) -> bool:
        """Whether this forward pass adds the regulariser; validation does not."""
        return self.regularizer is not None and self.training

    def sums(
        self,
        states: Tensor,
        weight: Tensor,
        target: Tensor,
        target_mask: Tensor | None,
        reads: Mapping[str, RowStats],
        row_masks: Mapping[str, Tensor | None],
    ) -> LossSums:
        """Returns the loss of a batch as sums. Logits are computed at real targets only.

        Args:
            states: (B, T, D) states that predict the targets.
            weight: (V, D) output embedding.
            target: (B, T) token ids to predict.
            target_mask: (B, T), True at tokens; None = no padding.
            reads: The row statistics of each attention, by name; used only while `regularized` is true.
            row_masks: The masks of real queries, by the first part of a read's name.
        """
        states, target = states.flatten(0, 1), target.flatten()
        if target_mask is not None:
            real = target_mask.flatten().nonzero().squeeze(1)
            states, target = states.index_select(0, real), target.index_select(0, real)
        smoothed, plain = linear_cross_entropy(states, weight, target, self.label_smoothing)
        rows = None
        if self.regularizer is not None and self.regularized:
            rows = regularizers.total(reads, row_masks, self.regularizer.margin)
        return LossSums(smoothed, plain, rows)


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
