"""How near a student is to its teacher.

Shapes: B texts, T tokens, D width, V vocabulary; rows (B, T) is True at tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def relative_error(student: Tensor, teacher: Tensor, rows: Tensor) -> Tensor:
    """The squared difference of states (B, T, D) over the teacher's variance across tokens."""
    wanted = teacher[rows]
    spread = (wanted - wanted.mean(0)).square().sum()
    return (student[rows] - wanted).square().sum() / spread.clamp_min(torch.finfo(wanted.dtype).tiny)


def embedding(states: Tensor, rows: Tensor) -> Tensor:
    """One vector of length one for each text: the mean over its tokens, (B, T, D) -> (B, D)."""
    tokens = rows.unsqueeze(-1).to(states.dtype)
    return F.normalize((states * tokens).sum(1) / tokens.sum(1).clamp_min(1), dim=-1)


def divergence(student: Tensor, teacher: Tensor, rows: Tensor) -> Tensor:
    """Kullback-Leibler divergence of the next token, teacher from student, mean over tokens; logits (B, T, V)."""
    wanted, given = (logits[rows].float().log_softmax(-1) for logits in (teacher, student))
    return F.kl_div(given, wanted, reduction="batchmean", log_target=True)


def token_losses(logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """Negative log-likelihood of each label, (tokens)."""
    return F.cross_entropy(logits[rows].float(), labels[rows], reduction="none")
