"""Rules that only the study needs: controls that could explain a difference away.

softmax_sqrt    softmax * sqrt(n)              the read has the size of a ReLU read, softmax is unchanged
softmax_scaled  softmax * exp(g), g learned    the layer finds the size by itself
relu_ln         LayerNorm on a ReLU read       what of `softmax_ln` is the norm's doing, and not softmax's

`register()` makes them known; a process that never runs the study does not see them.
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
    """softmax times the square root of the number of visible slots. Not a `Softmax`: no fused kernel has the factor."""

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        return rules.get("softmax").weights(scores, torch.ones(()), visible if visible.ndim else None)

    def weights(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        return super().weights(scores, n, visible) * n.sqrt()


@dataclass(frozen=True)
class SoftmaxScaled(rules.Softmax):
    """softmax, then one learned factor on what was read."""

    output_norm: ClassVar[OutputNorm | None] = "learned_scale"


@dataclass(frozen=True)
class ReluLN(rules.ReluPlain):
    """ReLU(s), then a LayerNorm on what was read, as `softmax_ln` has it."""

    output_norm: ClassVar[OutputNorm | None] = "layer_norm"


def register() -> None:
    """Make the controls known by name."""
    rules.register("softmax_sqrt")(SoftmaxSqrt)
    rules.register("softmax_scaled")(SoftmaxScaled)
    rules.register("relu_ln")(ReluLN)
