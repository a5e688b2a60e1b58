"""Positions: sinusoids added to embeddings, or rotations of queries and keys.

They are computed for the positions at hand, so a model has no maximum length.

Shapes: B batch, H heads, T tokens, d width of a head.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """Cosine and sine of each position's angles, (T, d/2) each."""

    cos: Tensor
    sin: Tensor


def _angles(first: int, length: int, width: int, device: torch.device) -> Tensor:
    """Returns position / 10000^(2i / width), (length, ceil(width / 2))."""
    position = torch.arange(first, first + length, device=device, dtype=torch.float32)
    exponent = torch.arange(0, width, 2, device=device, dtype=torch.float32) / width
    return position[:, None] * torch.exp(-math.log(10_000.0) * exponent)


def sinusoids(first: int, length: int, width: int, device: torch.device) -> Tensor:
    """Returns (length, width): sines in the even columns, cosines in the odd ones."""
    angles = _angles(first, length, width, device)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]


def rotation(first: int, length: int, width: int, device: torch.device) -> Rotation:
    """Returns the rotation of `length` positions from `first` on, for heads of even `width`."""
    angles = _angles(first, length, width, device)
    return Rotation(angles.cos(), angles.sin())


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Rotate each pair of the first and second half of the last dimension; x: (B, H, T, d)."""
    cos, sin = by.cos.to(x.dtype), by.sin.to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
