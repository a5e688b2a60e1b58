"""The feed-forward memory: a read of slots that were learned.

Shapes: T tokens, D width.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from reluformer import memory
from reluformer.kernels.products import Linear
from reluformer.layers.norms import output_norm
from reluformer.memory import RowStats
from reluformer.rules import Pointwise, Rule


@lru_cache(maxsize=1024)
def _deviation(_: type[Rule], rule: Pointwise, slots: int) -> float:
    """Returns the deviation of values whose read has variance one; the class stands beside equal rules of others."""
    return 1 / math.sqrt(rule.read_variance(slots))


class FeedForward(nn.Module):
    """A read of learned slots: rule(x K^T + b) V + c.

    `memory.read` with scale 1 and the key bias is the specification. Training goes through it where the compiled kernel
    is faster, as it touches only slots that fired; everything else is two dense products.

    Args:
        width: width of the tokens, D.
        slots: number of learned slots.
        rule: how scores become weights.
        bias: whether keys and values have a bias; by default those of pointwise rules have.
        value_std: standard deviation of the initial values; see `default_value_std`.

    Example:
        >>> from reluformer import rules
        >>> out, stats = FeedForward(8, 32, rules.get("relu"))(torch.zeros(2, 5, 8))
        >>> out.shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self, width: int, slots: int, rule: Rule, bias: bool | None = None, value_std: float | None = None
    ) -> None:
        super().__init__()
        self.rule = rule
        self.slots = slots
        pointwise = isinstance(rule, Pointwise)
        bias = pointwise if bias is None else bias
        self.keys = Linear(width, slots, bias=bias)
        self.values = Linear(slots, width, bias=bias)
        self.norm = output_norm(rule, width)
        self.value_std = self.default_value_std(rule, slots) if value_std is None else value_std
        self._rows: tuple[tuple[int, int], Tensor] | None = None
        self.reset_parameters()

    @staticmethod
    def default_value_std(rule: Rule, slots: int) -> float:
        """Returns the deviation that gives pointwise rules a read of variance one, and others the
        plain FFN's values.
        """
        return _deviation(type(rule), rule, slots) if isinstance(rule, Pointwise) else math.sqrt(2 / slots)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.keys.weight, std=self.keys.in_features**-0.5)
        nn.init.normal_(self.values.weight, std=self.value_std)
        for linear in (self.keys, self.values):
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def weights(self, x: Tensor) -> Tensor:
        """Returns the weight of each slot for x (..., T, D), as (..., T, slots); for telemetry and tests."""
        n = torch.full((), float(self.slots), dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)
        return self.rule.weights(self.keys(x), n, None)

    def forward(self, x: Tensor) -> tuple[Tensor, RowStats | None]:
        """Read the slots for each of x (..., T, D); there are no row statistics."""
        if self._learns_sparsely(x):
            return self.norm(self._sparse_read(x)), None
        matrix = self.values.weight
        needs_gradient = self.training or (torch.is_grad_enabled() and matrix.requires_grad)
        rows = None if needs_gradient or matrix.is_inference() else self._value_rows
        read = memory.read_learned(self.keys(x), matrix, self.rule, bias=self.values.bias, value_rows=rows)
        return self.norm(read), None

    def _learns_sparsely(self, x: Tensor) -> bool:
        """Returns whether the kernel reads x: in training, and if nobody has replaced or watches the two matrices."""
        if not (self.training and torch.is_grad_enabled() and self.keys.weight.requires_grad):
            return False
        for matrix in (self.keys, self.values):
            if type(matrix) is not Linear or matrix._forward_hooks or matrix._forward_pre_hooks:
                return False
        if not self.keys.weight.dtype == self.values.weight.dtype == x.dtype:
            return False
        return memory.learning_pays(x, self.keys.weight, self.rule, self.keys.bias)

    def _sparse_read(self, x: Tensor) -> Tensor:
        """Read x (..., D) as one long sequence of a single head."""
        q, k, v = (tensor[None, None] for tensor in (x.flatten(0, -2), self.keys.weight, self.values.weight.t()))
        read = memory.read(q, k, v, self.rule, bias=self.keys.bias, scale=1.0, impl="cpu").view(x.shape)
        return read if self.values.bias is None else read + self.values.bias

    def _value_rows(self) -> Tensor:
        """Returns the values as rows: a transposed copy of the matrix, kept until the matrix changes.

        A write through `.data` goes unseen; `eval()` after it makes the copy anew.
        """
        matrix = self.values.weight.detach()
        state = (matrix.data_ptr(), matrix._version)
        if self._rows is None or self._rows[0] != state:
            self._rows = (state, matrix.t().contiguous())
        return self._rows[1]

    def train(self, mode: bool = True) -> FeedForward:
        self._rows = None
        return super().train(mode)
