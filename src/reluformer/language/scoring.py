"""What is measured of a language model: perplexity, loss by position, zeros, and a needle in a text.

Rows may be longer than those of training, which shows how a model reads further back than it learned to.

Shapes: B batch, T tokens.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from reluformer import memory
from reluformer.errors import ArgumentError
from reluformer.language.corpus import LanguageCorpus, Tokens
from reluformer.layers import TokenRead, TokenSlots
from reluformer.models.language_model import LanguageModel
from reluformer.translation.tokenizer import UNKNOWN


@dataclass(frozen=True)
class LanguageScores:
    """The loss of a model on rows of one length."""

    context: int
    rows: int
    tokens: int
    loss: float
    """Nats for each token."""
    perplexity: float
    by_position: dict[str, float]
    """Loss of the positions in each bucket; "256-511" are the tokens after 256 to 511 others."""
    zero_fraction: float
    """Share of visible slots with weight zero, over layers, heads and the sampled rows."""
    skipped_share: float | None
    """Share of visible pairs that a forget gate lets the CPU kernel skip, over the layers and of the first row; None
    where the model has no gate on its scores."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the scores as plain data."""
        return asdict(self)


@torch.no_grad()
def evaluate(
    model: LanguageModel, corpus: LanguageCorpus, split: str, context: int, most_rows: int | None = None
) -> LanguageScores:
    """Measures the loss of a split in rows of `context` tokens.

    Args:
        model: The model.
        corpus: The prepared corpus.
        split: "valid" or "test".
        context: Tokens of a row.
        most_rows: At most so many rows, from the beginning; None for all.

    Raises:
        ArgumentError: `context` or `most_rows` is not positive.
        DataError: The corpus has no such split, or it is shorter than a row.
    """
    for name, number in (("context", context), ("most_rows", most_rows)):
        if number is not None and number < 1:
            raise ArgumentError(f"{name} must be at least 1, got {number}")
    rows = corpus.rows(split, context)[:most_rows]
    model.eval()
    losses = torch.zeros(context, dtype=torch.float64)
    at_once = max(1, 4096 // context)
    zeros: list[float] = []
    for begin in range(0, len(rows), at_once):
        found = torch.from_numpy(np.array(rows[begin : begin + at_once], dtype=np.int64))
        states, reads = model.states(found[:, :-1], stats=begin == 0)
        zeros += [float(read.zero_fraction.mean()) for read in reads.values()]
        losses += _losses(model, states, found[:, 1:]).double().sum(0)
    mean = float(losses.sum()) / (len(rows) * context)
    edges = _edges(context)
    by_position = {f"{low}-{high - 1}": float(losses[low:high].mean()) / len(rows) for low, high in pairwise(edges)}
    share = sum(zeros) / len(zeros) if zeros else 0.0
    own = own_reads(model, torch.from_numpy(np.array(rows[:1, :-1], dtype=np.int64)))
    gated = [read for read in own if read[2].gate is not None and read[0].gate_on == "scores"]
    skipped = sum(skipped_pairs(*read) for read in gated) / len(gated) if gated else None
    return LanguageScores(
        context=context,
        rows=len(rows),
        tokens=len(rows) * context,
        loss=mean,
        perplexity=math.exp(min(mean, 700)),
        by_position=by_position,
        zero_fraction=share,
        skipped_share=skipped,
    )


def _losses(model: LanguageModel, states: Tensor, targets: Tensor) -> Tensor:
    """Returns the loss of each token, (B, T), a row at a time."""
    pairs = zip(states, targets, strict=True)
    return torch.stack([F.cross_entropy(model.logits(row), target, reduction="none") for row, target in pairs])


def _edges(context: int) -> list[int]:
    """0, 1, 2, 4, 8, ... and the length."""
    return [0, *(2**i for i in range(31) if 2**i < context), context]


@torch.no_grad()
def own_reads(model: LanguageModel, tokens: Tensor) -> list[tuple[TokenRead, Tensor, TokenSlots]]:
    """Returns each attention read of a pass: its module, its queries (B, H, T, d) and its slots.

    Args:
        model: The model.
        tokens: (B, T) token ids.
    """
    found: list[tuple[TokenRead, Tensor, TokenSlots]] = []

    def keep(module: torch.nn.Module, given: tuple[Any, ...]) -> None:
        assert isinstance(module, TokenRead)
        found.append((module, given[0], given[1]))

    hooks = [read.register_forward_pre_hook(keep) for read in model.modules() if isinstance(read, TokenRead)]
    try:
        model.states(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def skipped_pairs(read: TokenRead, queries: Tensor, slots: TokenSlots) -> float:
    """Returns the share of visible pairs that the CPU kernel skips in a read; see `memory.skipped_share`.

    It is 0 without a gate on the scores, with a window, which the kernel does not take, and where a head adds an
    offset to its scores, which is not bounded here.
    """
    if slots.gate is None or read.gate_on != "scores" or read.offset is not None or read.window is not None:
        return 0.0
    return memory.skipped_share(queries, slots.keys, read.rule, gate=slots.gate)


@torch.no_grad()
def needle(
    model: LanguageModel,
    rows: Tokens,
    context: int,
    *,
    length: int = 8,
    shown: int = 4,
    depth: float = 0.5,
    seed: int = 0,
) -> float:
    """Returns how often the model completes a string of random tokens that stood further up in the text.

    A string of `length` random tokens is written over a row of text at `depth`, and its first `shown` tokens over the
    end of the row. A row counts if greedy decoding gives all others exactly.

    Args:
        model: The model.
        rows: (rows, at least `context`), token ids of text.
        context: Tokens of text that the model reads.
        length: Tokens of the string.
        shown: Tokens that are repeated at the end.
        depth: Where the string stands, from 0, the beginning, to 1.
        seed: Another seed gives other strings.

    Raises:
        ArgumentError: The string does not fit into the row, or `depth` lies outside 0 to 1.
    """
    if not 0 < shown < length or length + shown > context or not 0 <= depth <= 1:
        raise ArgumentError(
            f"a needle of {length} tokens of which {shown} are shown does not fit into {context} tokens at depth "
            f"{depth}; shorten it, or give more context"
        )
    model.eval()
    random = np.random.default_rng(seed)
    text = np.array(rows[:, :context], dtype=np.int64)
    strings = random.integers(UNKNOWN + 1, model.config.vocab_size, (len(text), length))
    place = round(depth * (context - length - shown))
    text[:, place : place + length] = strings
    text[:, context - shown :] = strings[:, :shown]
    state = model.start()
    states = model.step(torch.from_numpy(text), state)[:, -1:]
    right = torch.ones(len(text), dtype=torch.bool)
    for expected in torch.from_numpy(strings[:, shown:]).unbind(1):
        token = model.logits(states[:, -1]).argmax(-1)
        right &= token == expected
        states = model.step(token[:, None], state)
    return float(right.float().mean())
