"""Rules whose read is a sum over slots, perhaps divided by the row's own sum.

    u_ij = activate(s_ij, n_i) row_scale(n_i)      w_ij = u_ij, or u_ij / (delta + sum_l u_il)

Such a read can be taken slot by slot in any order: tile after tile, or over processes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from reluformer.rules import Pointwise, RowNormalized, Rule


class Additive(NamedTuple):
    """A rule taken apart."""

    terms: Pointwise
    """u_ij."""
    delta: float | None
    """None: not divided."""


def taken_apart(rule: Rule) -> Additive | None:
    """None if the weights of a row depend on each other in another way."""
    if isinstance(rule, RowNormalized) and type(rule).weights is RowNormalized.weights:
        return Additive(rule.inner, rule.delta)
    if not isinstance(rule, Pointwise):
        return None
    own = type(rule)
    untouched = own.weights is Pointwise.weights and own.activations is Pointwise.activations
    return Additive(rule, None) if untouched else None


def divisor(row_sum: Tensor, delta: float) -> Tensor:
    """delta + sum u, and 1 where that is nothing, so that a dead row reads zero."""
    total = row_sum + delta
    return torch.where(total > 0, total, torch.ones_like(total))
