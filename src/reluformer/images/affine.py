"""Affine forms: what a layer may output, as an affine function of the changed pixels and an interval around it.

With e in [-1, 1]^E, the change of each pixel in units of its largest change, a value of the network lies in

    center + sum_i coefficients_i e_i + [-radius, radius]

An affine map acts on all three exactly, but for the signs within the interval. Without coefficients (E = 0) the same
formulas are interval arithmetic.

Shapes: E pixels that may change; every other axis is that of the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class AffineForm:
    """A set of values: center and radius (...), coefficients (E, ...)."""

    center: Tensor
    coefficients: Tensor
    radius: Tensor

    @classmethod
    def around(cls, low: Tensor, high: Tensor, linear: bool) -> Self:
        """Return the box between `low` and `high`, as functions of its own coordinates if `linear`, else as intervals.

        Example:
            >>> AffineForm.around(torch.zeros(2), torch.ones(2), linear=True).coefficients
            tensor([[0.5000, 0.0000],
                    [0.0000, 0.5000]])
        """
        center, radius = (low + high) / 2, (high - low) / 2
        if not linear:
            return cls(center, center.new_zeros(0, *center.shape), radius)
        coefficients = torch.diag(radius.flatten()).view(-1, *center.shape)
        return cls(center, coefficients, torch.zeros_like(center))

    @property
    def reach(self) -> Tensor:
        """How far a value lies from its center at most."""
        return self.coefficients.abs().sum(0) + self.radius

    @property
    def low(self) -> Tensor:
        """The least values."""
        return self.center - self.reach

    @property
    def high(self) -> Tensor:
        """The largest values."""
        return self.center + self.reach

    def view(self, *shape: int) -> Self:
        """Return the values in another shape, without a -1."""
        coefficients = self.coefficients.reshape(self.coefficients.size(0), *shape)
        return type(self)(self.center.reshape(shape), coefficients, self.radius.reshape(shape))

    def permute(self, *axes: int) -> Self:
        """Return the values with their axes in another order."""
        later = [axis + 1 for axis in axes]
        return type(self)(self.center.permute(axes), self.coefficients.permute(0, *later), self.radius.permute(axes))

    def __getitem__(self, place: object) -> Self:
        """Return part of the values along the first axis."""
        return type(self)(self.center[place], self.coefficients[:, place], self.radius[place])  # type: ignore[index]

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Self:
        """Return what an affine map of the last axis makes of the values; weight (out, in), bias (out,)."""
        center = self.center @ weight.t()
        return type(self)(
            center if bias is None else center + bias, self.coefficients @ weight.t(), self.radius @ weight.abs().t()
        )

    def mean(self, axis: int) -> Self:
        """Return the mean along an axis."""
        return type(self)(self.center.mean(axis), self.coefficients.mean(axis + 1), self.radius.mean(axis))

    def __add__(self, other: Self | Tensor) -> Self:
        """Return the sum with other values that change with the same pixels, or with fixed ones."""
        if isinstance(other, Tensor):
            return type(self)(self.center + other, self.coefficients, self.radius)
        return type(self)(
            self.center + other.center, self.coefficients + other.coefficients, self.radius + other.radius
        )

    def relu(self) -> Self:
        """Return ReLU of each value: the strip around it that is parallel to its chord, or without pixels its range."""
        low, high = self.low, self.high
        if not self.coefficients.size(0):
            low, high = torch.relu(low), torch.relu(high)
            return type(self)((low + high) / 2, self.coefficients, (high - low) / 2)
        slope, offset = relu_strip(low, high)
        return type(self)(slope * self.center + offset, slope * self.coefficients, slope * self.radius + offset)

    def products(self, other: Self, scale: float) -> Self:
        """Return scale * (a row of these values) . (a row of others), (..., Tq, Tk), for (..., Tq, d) and (..., Tk, d).

        The part that is of second order in the pixels goes to the interval.
        """
        flipped = other.center.transpose(-1, -2)
        center = self.center @ flipped
        coefficients = self.coefficients @ flipped + self.center @ other.coefficients.transpose(-1, -2)
        radius = (
            self.center.abs() @ other.radius.transpose(-1, -2)
            + self.radius @ flipped.abs()
            + self.reach @ other.reach.transpose(-1, -2)
        )
        return type(self)(scale * center, scale * coefficients, abs(scale) * radius)

    def within(self, low: Tensor, high: Tensor) -> Self:
        """Return the values, each as the interval from `low` to `high` where that is narrower than its own form."""
        narrower = (high - low) / 2 < self.reach
        return type(self)(
            torch.where(narrower, (low + high) / 2, self.center),
            self.coefficients.masked_fill(narrower, 0),
            torch.where(narrower, (high - low) / 2, self.radius),
        )


def relu_strip(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return slope and offset with |ReLU(z) - slope z - offset| <= offset for all z from `low` to `high`.

    Example:
        >>> relu_strip(torch.tensor([-1.0, 1.0, -2.0]), torch.tensor([1.0, 2.0, -1.0]))
        (tensor([0.5000, 1.0000, 0.0000]), tensor([0.2500, 0.0000, 0.0000]))
    """
    width = torch.where(high > low, high - low, torch.ones_like(low))
    slope = torch.where(low >= 0, torch.ones_like(low), torch.where(high <= 0, torch.zeros_like(low), high / width))
    crossing = (low < 0) & (high > 0)
    return slope, torch.where(crossing, -slope * low / 2, torch.zeros_like(low))
