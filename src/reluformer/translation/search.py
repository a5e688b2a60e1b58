"""What a search is: the outlines that constrain its targets, the hypotheses that it finds, and its interface.

An outline says how many sentences a target has, how long they may become, and with which tokens it
begins. The compiled search has the same constraints (kernels/native/search.cpp).

Shapes: B sources, K beams of each, R = B * K rows, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reluformer.errors import ArgumentError
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.tokenizer import BEGIN, END, PAD, SEPARATOR

NEVER = float("-inf")


@dataclass(frozen=True)
class Outline:
    """The constraints on one target: its sentences, their lengths, and its first tokens.

    An aligned target has exactly len(limits) sentences, none of them empty. A separator is
    forced where a sentence has reached its limit, and forbidden in the last sentence. The
    end is forbidden before the last sentence. In a target that is not aligned, the separator
    is a token like any other.

    Args:
        limits: The most tokens of each sentence; of a target that is not aligned, limits[0] is that of the whole.
        aligned: Whether the target has one sentence for each limit.
        prefix: The tokens that the target must begin with.

    Raises:
        ArgumentError: A limit is not positive, or the prefix holds too many separators.
    """

    limits: tuple[int, ...]
    aligned: bool = False
    prefix: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.limits or min(self.limits) < 1 or (len(self.limits) > 1 and not self.aligned):
            raise ArgumentError(f"an outline needs one positive limit for each sentence, got {self.limits}")
        if self.aligned and self.prefix.count(SEPARATOR) >= len(self.limits):
            raise ArgumentError(
                f"the prefix holds {self.prefix.count(SEPARATOR)} separators, but the outline has only "
                f"{len(self.limits)} sentences"
            )

    @classmethod
    def of(
        cls, source: Sequence[int], config: DecodingConfig, prefix: Sequence[int] = (), aligned: bool = True
    ) -> Outline:
        """Returns the outline of the translation of `source` (with its end): a sentence for each of its sentences."""
        lengths = [0]
        for token in source:
            if token == SEPARATOR and aligned:
                lengths.append(0)
            elif token != END:
                lengths[-1] += 1
        limits = (int(config.length_ratio * length) + config.length_offset for length in lengths)
        return cls(tuple(limits), aligned, tuple(prefix))

    @property
    def most_tokens(self) -> int:
        """The greatest length after the prefix, with separators and end."""
        first = self.prefix.count(SEPARATOR) if self.aligned else 0
        return sum(self.limits[first:]) + len(self.limits) - first


class OutlineState:
    """The place of each beam in the outline of its source, which decides what is forbidden next; (B, K) each.

    Args:
        outlines: The outline of each source.
        decoded: The number of prefix tokens that are decoded already.
        min_length: The least number of tokens after the prefix.
        device: The device of the tokens.
    """

    def __init__(self, outlines: Sequence[Outline], decoded: int, min_length: int, device: torch.device) -> None:
        sentences = max(len(outline.limits) for outline in outlines)
        limits = [[*outline.limits, *[0] * (sentences - len(outline.limits))] for outline in outlines]
        self._limits = torch.tensor(limits, device=device)
        self._last = torch.tensor([[len(outline.limits) - 1] for outline in outlines], device=device)
        self._aligned = torch.tensor([[outline.aligned] for outline in outlines], device=device)
        self._prefix = torch.tensor([[len(outline.prefix)] for outline in outlines], device=device)
        self._min_length = min_length
        begun = torch.tensor([outline.prefix[:decoded] for outline in outlines], dtype=torch.long, device=device)
        self._sentence = torch.zeros_like(self._last)
        self._within = torch.zeros_like(self._last)
        self._decoded = 0
        for tokens in begun.view(len(outlines), decoded).unbind(1):
            self.follow(torch.zeros_like(self._last), tokens[:, None])

    def follow(self, parents: Tensor, tokens: Tensor) -> None:
        """Notes that the beams `parents` (B, K) were continued with `tokens` (B, K)."""
        self._decoded += 1
        ends = (tokens == SEPARATOR) & self._aligned
        counts = ends | ~self._aligned & (self._decoded <= self._prefix)
        # beams without a finite score may do what is forbidden; they must only not leave the table
        self._sentence = torch.minimum(self._sentence.gather(1, parents) + ends, self._last)
        self._within = (self._within.gather(1, parents) + 1).masked_fill_(counts, 0)

    def select(self, sources: Tensor) -> None:
        """Keeps these of the B sources."""
        for name in ("_limits", "_last", "_aligned", "_prefix", "_sentence", "_within"):
            setattr(self, name, getattr(self, name).index_select(0, sources))

    def forbid(self, log_probabilities: Tensor) -> None:
        """Writes -inf into log_probabilities (R, V) where a token is forbidden."""
        log_probabilities[:, PAD] = NEVER
        log_probabilities[:, BEGIN] = NEVER
        last, empty = self._sentence == self._last, self._within == 0
        full = self._within >= self._limits.gather(1, self._sentence)
        early = self._decoded - self._prefix < self._min_length
        no_separator = self._aligned & (last | empty)
        no_end = ~last | self._aligned & empty | early & ~full
        for token, forbidden in ((SEPARATOR, no_separator), (END, no_end)):
            log_probabilities[:, token].masked_fill_(forbidden.flatten(), NEVER)
        if full.any():
            rows = full.flatten().nonzero().squeeze(1)
            closing = torch.where(last.flatten()[rows], END, SEPARATOR)
            kept = log_probabilities[rows, closing]
            log_probabilities[rows] = NEVER
            log_probabilities[rows, closing] = kept


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation."""

    tokens: tuple[int, ...]
    """The tokens without begin and end, with the forced prefix."""
    score: float
    """The log-probability of what follows the prefix, with the end."""
    normalised: float
    """The score after the length penalty, by which hypotheses are ranked."""
    reads: npt.NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    """What each token read of each source sentence, (T, U), where the search was asked and the decoder tells;
    zeros for the tokens of the prefix."""


class Settled(NamedTuple):
    """The tokens with which every hypothesis of a source begins that can still win."""

    tokens: tuple[int, ...]
    reads: npt.NDArray[np.float32] | None = None
    """What they read, as in `Hypothesis.reads`."""


class Search(ABC):
    """A search for the translations of sources, which may be added at any time; each has a number.

    No source is influenced by its neighbours, nor by when it was added. A subclass puts the hypotheses of a source that
    is finished into `found`.
    """

    def __init__(self) -> None:
        self.found: dict[int, list[Hypothesis]] = {}

    @abstractmethod
    def add(self, source: Sequence[int], outline: Outline, reads: bool = False) -> int:
        """Adds the token ids of a source, with its end, and returns its number.

        Args:
            source: The token ids.
            outline: The constraints on its target.
            reads: Whether to tell what the target read of each sentence; not every decoder can.
        """

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether every source is finished."""

    @abstractmethod
    def advance(self, positions: int = 1) -> None:
        """Decodes at most so many more positions of every source.

        Raises:
            ArgumentError: The model gives no translation a finite probability.
        """

    @abstractmethod
    def run(self) -> list[int]:
        """Decodes until sources have finished, or for a moment, and returns the numbers of those that have.

        Raises:
            ArgumentError: The model gives no translation a finite probability.
        """

    def ended(self, source: int) -> bool:
        """Returns whether a source is finished, even if others are not."""
        return source in self.found

    def hypotheses(self, source: int) -> list[Hypothesis]:
        """Returns the n best hypotheses of a source that is finished, best first."""
        return self.found[source]

    @abstractmethod
    def settled(self, source: int) -> Settled:
        """Returns the tokens with which every hypothesis of a source begins that can still win."""


NOT_FINITE = "the model gives no translation a finite probability; its weights may hold NaN"
