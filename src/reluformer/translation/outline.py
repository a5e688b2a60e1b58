"""What a target must look like, and the tokens that this forbids at each step.

Shapes: B sources, K beams of each, R = B * K rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reluformer.errors import ArgumentError
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.tokenizer import BEGIN, END, PAD, SEPARATOR

NEVER = float("-inf")


@dataclass(frozen=True)
class Outline:
    """The sentences of one target.

    limits[i] is the most tokens of sentence i. When `aligned`, the target has exactly
    len(limits) sentences, none of them empty: a separator is forced where a sentence has
    reached its limit and forbidden in the last one, and the end is forbidden before that.
    Otherwise the separator is a token like any other and limits[0] is that of the whole
    target. `prefix` are the tokens that it must begin with.
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
        """For the translation of `source` (with its end): a sentence for each of its sentences."""
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
        """The greatest length after the prefix, separators and end included."""
        first = self.prefix.count(SEPARATOR) if self.aligned else 0
        return sum(self.limits[first:]) + len(self.limits) - first


class Progress:
    """Where each beam stands in the outline of its source, and what it may not do next; (B, K) each."""

    def __init__(self, outlines: Sequence[Outline], decoded: int, min_length: int, device: torch.device) -> None:
        """`decoded` tokens of every prefix are decoded already."""
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
        """The beams `parents` (B, K) were chosen and went on with `tokens` (B, K)."""
        self._decoded += 1
        ends = (tokens == SEPARATOR) & self._aligned
        counts = ends | ~self._aligned & (self._decoded <= self._prefix)
        # beams without a finite score may do what is forbidden; they must only not leave the table
        self._sentence = torch.minimum(self._sentence.gather(1, parents) + ends, self._last)
        self._within = (self._within.gather(1, parents) + 1).masked_fill_(counts, 0)

    def select(self, sources: Tensor) -> None:
        """Keep these of the B sources."""
        for name in ("_limits", "_last", "_aligned", "_prefix", "_sentence", "_within"):
            setattr(self, name, getattr(self, name).index_select(0, sources))

    def forbid(self, log_probabilities: Tensor) -> None:
        """Put -inf where a token may not follow; log_probabilities: (R, V)."""
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
