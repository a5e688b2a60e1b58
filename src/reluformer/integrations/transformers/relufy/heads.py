"""What a relufied head does to its scores before the rule sees them.

    weight_j = rule(exp(log_scale) * (s_j - centre . q / sqrt(d) + offset))

softmax ignores what is common to a row of scores; ReLU does not. The offset says where the
head's threshold lies, and the centre, which is subtracted from every key, moves it along
with the query. The scale is a factor on the queries and the rest is one number a row, so
every implementation of `memory.read` takes it. A rule of centred scores (`relu_exp`)
ignores it as softmax does, so its heads have a scale alone.

Shapes: B batch, H heads, T queries, d head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reluformer import rules
from reluformer.errors import ArgumentError
from reluformer.rules import Pointwise, RowCentered, RowNormalized, Rule


class HeadScores(nn.Module):
    """The three of them for all heads of an attention, or the scale alone; neutral at first."""

    def __init__(self, heads: int, width: int, shifts: bool = True) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.log_scale = nn.Parameter(torch.zeros(heads))
        self.offset = nn.Parameter(torch.zeros(heads)) if shifts else None
        self.centre = nn.Parameter(torch.zeros(heads, width)) if shifts else None

    def scale(self, like: Tensor) -> Tensor:
        """(H, 1, 1), in the dtype of `like`."""
        return self.log_scale.exp().to(like.dtype)[:, None, None]

    def forward(self, query: Tensor, scaling: float) -> tuple[Tensor, Tensor | None]:
        """Queries (B, H, T, d) with the scale in them, and the bias (B, H, T, 1) of their scores."""
        scale = self.scale(query)
        if self.centre is None or self.offset is None:
            return query * scale, None
        centre, offset = self.centre.to(query.dtype), self.offset.to(query.dtype)
        threshold = offset[:, None] - scaling * torch.einsum("bhtd,hd->bht", query, centre)
        return query * scale, threshold.unsqueeze(-1) * scale


def relu_rule(rule: str | Rule) -> Rule:
    """The rule, refused if it is neither ReLU or a power of it, alone or divided by its row sum, nor centred."""
    chosen = rules.get(rule)
    if _can_be_fitted(chosen):
        return chosen
    able = [name for name in rules.names() if _can_be_fitted(rules.get(name))]
    raise ArgumentError(
        f"rule '{chosen.name}': relufy fits rules of the ReLU family, without an output norm; valid: {', '.join(able)}"
    )


def _can_be_fitted(rule: Rule) -> bool:
    return rule.output_norm is None and (homogeneity(rule) is not None or not shifts_matter(rule))


def shifts_matter(rule: Rule) -> bool:
    """Whether the rule sees what all scores of a row have in common."""
    return not isinstance(rule, RowCentered)


def homogeneity(rule: Rule) -> int | None:
    """k where the activation of c s is c^k that of s; None where there is no such k."""
    inner = rule.inner if isinstance(rule, RowNormalized) else rule
    return inner.homogeneity if isinstance(inner, Pointwise) else None
