"""What a relufied head does to its scores before the rule sees them.

    weight_j = rule(exp(log_scale) * (s_j - centre . q / sqrt(d) + offset))

softmax ignores what is common to a row of scores; ReLU does not. The offset says where the
head's threshold lies, and the centre, which is subtracted from every key, moves it along
with the query. The scale is a factor on the queries and the rest is one number a row, so
every implementation of `memory.read` takes it.

Shapes: B batch, H heads, T queries, d head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reluformer import rules
from reluformer.errors import ArgumentError
from reluformer.rules import Pointwise, RowNormalized, Rule


class HeadScores(nn.Module):
    """The three of them for all heads of an attention, neutral at first."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(heads))
        self.offset = nn.Parameter(torch.zeros(heads))
        self.centre = nn.Parameter(torch.zeros(heads, width))

    def scale(self, like: Tensor) -> Tensor:
        """(H, 1, 1), in the dtype of `like`."""
        return self.log_scale.exp().to(like.dtype)[:, None, None]

    def forward(self, query: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Queries (B, H, T, d) with the scale in them, and the bias (B, H, T, 1) of their scores."""
        scale = self.scale(query)
        centre, offset = self.centre.to(query.dtype), self.offset.to(query.dtype)
        threshold = offset[:, None] - scaling * torch.einsum("bhtd,hd->bht", query, centre)
        return query * scale, threshold.unsqueeze(-1) * scale


def relu_rule(rule: str | Rule) -> Rule:
    """The rule, refused if it is not ReLU or a power of it, alone or divided by its row sum."""
    chosen = rules.get(rule)
    if chosen.output_norm is None and homogeneity(chosen) is not None:
        return chosen
    able = [
        name
        for name in rules.names()
        if rules.get(name).output_norm is None and homogeneity(rules.get(name)) is not None
    ]
    raise ArgumentError(
        f"rule '{chosen.name}': relufy fits rules of the ReLU family, without an output norm; valid: {', '.join(able)}"
    )


def homogeneity(rule: Rule) -> int | None:
    """k where the activation of c s is c^k that of s; None where there is no such k."""
    inner = rule.inner if isinstance(rule, RowNormalized) else rule
    return inner.homogeneity if isinstance(inner, Pointwise) else None
