"""The objective: cross entropy with label smoothing, and the regulariser on attention rows.

With z = logits of one position over V tokens, t its target and e the smoothing,

    loss = log sum_v exp(z_v) - (1 - e) z_t - e mean_v z_v

which is torch's own definition. `Objective` returns *sums* and counts: parts of a batch,
on other processes too, are added up before anything is divided.

Shapes: B batch, T target tokens, N real target tokens, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from reluformer import regularizers
from reluformer.memory import RowStats
from reluformer.regularizers import RegularizerConfig, RegularizerSums

_CHUNK_CELLS = 2**23
"""Logits that exist at a time: enough for fast products, little beside (N, V)."""


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
            logits = (part @ table.t()).to(exact)
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
                grad_states[start : start + rows] = (share @ table).to(exact).mul_(inverse).sub_(correction)
                scaled = (part.to(exact) * inverse).to(states.dtype)
                if states.dtype == exact:
                    grad_weight.addmm_(share.t(), scaled)
                else:
                    grad_weight += share.t() @ scaled
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
