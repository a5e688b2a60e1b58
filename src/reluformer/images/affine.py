"""Affine forms: what a layer may output, as an affine function of the changed pixels and an interval around it.

With e in [-1, 1]^E, the change of each pixel in units of its largest change, a value of the network lies in

    center + sum_i coefficients_i e_i + [-radius, radius]

An affine map acts on all three exactly, but for the signs within the interval. Without coefficients (E = 0) the same
formulas are interval arithmetic.

A form may also know a box: an interval that holds each value for another reason, as the exact range of a read. The box
goes through every operation by interval arithmetic, beside the form and instead of nothing. The form keeps what two
values have in common, the box is narrower where the form is not, and every value lies in both.

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
    box: tuple[Tensor, Tensor] | None = None
    """The least and the largest values as another argument gives them; None where there is none."""

    @classmethod
    def around(cls, low: Tensor, high: Tensor, linear: bool) -> Self:
        """Returns the box between `low` and `high`, as functions of its own coordinates if `linear`, else as intervals.

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
    def own_reach(self) -> Tensor:
        """How far a value of the form lies from its center at most, whatever the box says."""
        return self.coefficients.abs().sum(0) + self.radius

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """The least and the largest values, by form and box."""
        reach = self.own_reach
        low, high = self.center - reach, self.center + reach
        if self.box is None:
            return low, high
        low, high = torch.maximum(low, self.box[0]), torch.minimum(high, self.box[1])
        return torch.minimum(low, high), torch.maximum(low, high)  # rounding may swap two ends that are equal

    @property
    def low(self) -> Tensor:
        """The least values."""
        return self.ends[0]

    @property
    def high(self) -> Tensor:
        """The largest values."""
        return self.ends[1]

    @property
    def reach(self) -> Tensor:
        """How far a value lies from the center of the form at most."""
        return self.reach_from(self.center)

    def reach_from(self, point: Tensor) -> Tensor:
        """Returns how far a value lies from a point at most."""
        low, high = self.ends
        return torch.maximum(high - point, point - low)

    def within(self, low: Tensor, high: Tensor) -> Self:
        """Returns the same values, which are known to lie between `low` and `high`."""
        if self.box is not None:
            low, high = torch.maximum(low, self.box[0]), torch.minimum(high, self.box[1])
        return type(self)(self.center, self.coefficients, self.radius, (low, high))

    def scaled(self, factor: Tensor) -> Self:
        """Returns the values times positive factors that broadcast to them."""
        box = None if self.box is None else (factor * self.box[0], factor * self.box[1])
        return type(self)(factor * self.center, factor * self.coefficients, factor * self.radius, box)

    def view(self, *shape: int) -> Self:
        """Returns the values in another shape, without a -1."""
        coefficients = self.coefficients.reshape(self.coefficients.size(0), *shape)
        box = None if self.box is None else (self.box[0].reshape(shape), self.box[1].reshape(shape))
        return type(self)(self.center.reshape(shape), coefficients, self.radius.reshape(shape), box)

    def permute(self, *axes: int) -> Self:
        """Returns the values with their axes in another order."""
        coefficients = self.coefficients.permute(0, *(axis + 1 for axis in axes))
        box = None if self.box is None else (self.box[0].permute(axes), self.box[1].permute(axes))
        return type(self)(self.center.permute(axes), coefficients, self.radius.permute(axes), box)

    def __getitem__(self, place: int) -> Self:
        """Returns the values at a place of the first axis."""
        box = None if self.box is None else (self.box[0][place], self.box[1][place])
        return type(self)(self.center[place], self.coefficients[:, place], self.radius[place], box)

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Self:
        """Returns what an affine map of the last axis makes of the values; weight (out, in), bias (out,)."""
        moved = 0.0 if bias is None else bias
        box = None
        if self.box is not None:
            low, high = self.ends
            middle, half = (low + high) / 2 @ weight.t() + moved, (high - low) / 2 @ weight.abs().t()
            box = (middle - half, middle + half)
        return type(self)(
            self.center @ weight.t() + moved, self.coefficients @ weight.t(), self.radius @ weight.abs().t(), box
        )

    def mean(self, axis: int) -> Self:
        """Returns the mean along an axis."""
        low, high = self.ends
        box = None if self.box is None else (low.mean(axis), high.mean(axis))
        return type(self)(self.center.mean(axis), self.coefficients.mean(axis + 1), self.radius.mean(axis), box)

    def __add__(self, other: Self | Tensor) -> Self:
        """Returns the sum with other values that change with the same pixels, or with fixed ones."""
        if isinstance(other, Tensor):
            box = None if self.box is None else (self.box[0] + other, self.box[1] + other)
            return type(self)(self.center + other, self.coefficients, self.radius, box)
        box = None
        if self.box is not None or other.box is not None:
            box = (self.low + other.low, self.high + other.high)
        return type(self)(
            self.center + other.center, self.coefficients + other.coefficients, self.radius + other.radius, box
        )

    def relu(self) -> Self:
        """Returns ReLU of each value: the strip around it that is parallel to its chord, or without
        pixels its range.
        """
        low, high = self.ends
        slope, offset = relu_strip(low, high)
        low, high = torch.relu(low), torch.relu(high)
        if not self.coefficients.size(0):
            return type(self)((low + high) / 2, self.coefficients, (high - low) / 2)
        return type(self)(
            slope * self.center + offset, slope * self.coefficients, slope * self.radius + offset, (low, high)
        )

    def products(self, other: Self, scale: float) -> Self:
        """Returns scale * (a row of these values) . (a row of others), (..., Tq, Tk), for (..., Tq, d) and (..., Tk,
        d).

        The part that is of second order in the pixels goes to the interval. The box holds all products of two ends.
        """
        flipped = other.center.transpose(-1, -2)
        center = self.center @ flipped
        coefficients = self.coefficients @ flipped + self.center @ other.coefficients.transpose(-1, -2)
        radius = (
            self.center.abs() @ other.radius.transpose(-1, -2)
            + self.radius @ flipped.abs()
            + self.reach @ other.reach.transpose(-1, -2)
        )
        box = None
        if self.box is not None or other.box is not None:
            corners = [x[..., :, None, :] * y[..., None, :, :] for x in self.ends for y in other.ends]
            low, high = torch.stack(corners).aminmax(dim=0)
            ends = scale * low.sum(-1), scale * high.sum(-1)
            box = ends if scale > 0 else (ends[1], ends[0])
        return type(self)(scale * center, scale * coefficients, abs(scale) * radius, box)


def relu_strip(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Returns slope and offset with |ReLU(z) - slope z - offset| <= offset for all z from `low` to `high`.

    Example:
        >>> relu_strip(torch.tensor([-1.0, 1.0, -2.0]), torch.tensor([1.0, 2.0, -1.0]))
        (tensor([0.5000, 1.0000, 0.0000]), tensor([0.2500, 0.0000, 0.0000]))
    """
    width = torch.where(high > low, high - low, torch.ones_like(low))
    slope = torch.where(low >= 0, torch.ones_like(low), torch.where(high <= 0, torch.zeros_like(low), high / width))
    crossing = (low < 0) & (high > 0)
    return slope, torch.where(crossing, -slope * low / 2, torch.zeros_like(low))
