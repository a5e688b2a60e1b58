"""The norms that a rule may ask for after its read, each over the concatenated heads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reluformer.rules import OutputNorm, Rule


class GatedRMSNorm(nn.Module):
    """g * x / RMS(x) * sigmoid(w * x), the norm of rectified linear attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.gate = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * F.rms_norm(x, x.shape[-1:], eps=1e-6) * torch.sigmoid(self.gate * x)


class AffineNorm(nn.LayerNorm):
    """g * (x - mean(x)) + b: a LayerNorm that does not divide by the deviation.

    It is an affine map, so bounds of its input give tight bounds of its output (Shi et al., 2020).
    """

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x - x.mean(-1, keepdim=True)) + self.bias


class LearnedScale(nn.Module):
    """exp(g) * x with one learned number g, started at 0: the least that can be done about a small read."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.log_scale.exp()


_OUTPUT_NORMS: dict[OutputNorm | None, Callable[[int], nn.Module]] = {
    None: lambda width: nn.Identity(),
    "layer_norm": nn.LayerNorm,
    "gated_rms_norm": GatedRMSNorm,
    "learned_scale": LearnedScale,
}


def output_norm(rule: Rule, width: int) -> nn.Module:
    """Returns the norm that a rule asks for after its read, over `width` values."""
    return _OUTPUT_NORMS[rule.output_norm](width)
