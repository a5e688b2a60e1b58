"""Controls: rules that only the study needs, as they could explain a difference between other rules.

softmax_sqrt    softmax * sqrt(n)              gives a softmax read the size of a ReLU read
softmax_scaled  softmax * exp(g), g learned    lets the layer learn the size
relu_ln         LayerNorm on a ReLU read       shows which part of `softmax_ln` is due to the norm

`register()` registers them by name; a process that never runs the study does not see them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reluformer import rules
from reluformer.rules import OutputNorm, Rowwise


@dataclass(frozen=True)
class SoftmaxSqrt(Rowwise):
    """The rule softmax times the square root of the number of visible slots.

    It is not a `Softmax`, as no fused kernel has the factor.
    """

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        return rules.get("softmax").weights(scores, torch.ones(()), visible if visible.ndim else None)

    def weights(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        return super().weights(scores, n, visible) * n.sqrt()


@dataclass(frozen=True)
class SoftmaxScaled(rules.Softmax):
    """The rule softmax with one learned factor on the read."""

    output_norm: ClassVar[OutputNorm | None] = "learned_scale"


@dataclass(frozen=True)
class ReluLN(rules.ReluPlain):
    """The rule ReLU(s) with a LayerNorm on the read, as `softmax_ln` has it."""

    output_norm: ClassVar[OutputNorm | None] = "layer_norm"


def register() -> None:
    """Register the controls by name."""
    rules.register("softmax_sqrt")(SoftmaxSqrt)
    rules.register("softmax_scaled")(SoftmaxScaled)
    rules.register("relu_ln")(ReluLN)
