"""Calibration texts as token ids, and the batches made of them.

Shapes: B examples, S source tokens, T target tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reluformer.errors import ArgumentError
from reluformer.translation.batches import BatchPlan, sorted_batches

Texts = Sequence[str] | Sequence[tuple[str, str]]
"""Sentences for an encoder, (source, target) for an encoder-decoder."""


class Example(NamedTuple):
    """One text."""

    source: list[int]
    target: list[int]
    """With its end token; empty for an encoder."""


class Batch(NamedTuple):
    """Padded on the right; masks are True at tokens."""

    source: Tensor  # (B, S)
    source_mask: Tensor
    target: Tensor  # (B, T): what the decoder is given, a start token first
    labels: Tensor  # (B, T): what it should say
    target_mask: Tensor


class ExampleSet:
    """Examples with what it takes to make batches of them."""

    def __init__(self, examples: Sequence[Example], pad: int, start: int, batch_tokens: int) -> None:
        self.examples = examples
        self.pad, self.start, self.batch_tokens = pad, start, batch_tokens
        self._lengths = (
            [len(example.source) for example in examples],
            [max(1, len(example.target)) for example in examples],
        )

    def in_order(self) -> Iterator[Batch]:
        """Every example once, in batches of like length."""
        for rows in sorted_batches(*self._lengths, self.batch_tokens):
            yield self.batch(rows)

    def plan(self, seed: int) -> BatchPlan:
        """Which examples make up which step of a training."""
        return BatchPlan(*self._lengths, self.batch_tokens, seed)

    def batch(self, rows: Sequence[int]) -> Batch:
        """These examples."""
        chosen = [self.examples[row] for row in rows]
        source, source_mask = self._padded([example.source for example in chosen])
        labels, target_mask = self._padded([example.target for example in chosen])
        target = torch.cat([torch.full_like(labels[:, :1], self.start), labels[:, :-1]], 1)
        return Batch(source, source_mask, target, labels, target_mask)

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        length = max(map(len, rows))
        ids = torch.full((len(rows), length), self.pad, dtype=torch.long)
        mask = torch.zeros(len(rows), length, dtype=torch.bool)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row, dtype=torch.long)
            mask[i, : len(row)] = True
        return ids, mask


def checked_texts(texts: Texts, pairs: bool) -> tuple[list[str], list[str]]:
    """Sources and targets (none for an encoder), refused if there are none or they are of the wrong kind."""
    if isinstance(texts, str):
        raise ArgumentError("calibration_texts is one string; write [text]")
    if not len(texts):
        raise ArgumentError("calibration_texts is empty; give some hundreds of texts like those the model will read")
    wanted = "(source, target) pairs of strings, as the model has a decoder" if pairs else "strings"
    sources, targets = [], []
    for number, text in enumerate(texts):
        fits = isinstance(text, str) != pairs
        if pairs and fits:
            fits = len(text) == 2 and all(isinstance(side, str) for side in text)
        if not fits:
            raise ArgumentError(f"calibration_texts[{number}] is {text!r:.60}; expected {wanted}")
        source, target = (text[0], text[1]) if pairs else (str(text), "")
        if not source.strip() or (pairs and not target.strip()):
            raise ArgumentError(f"calibration_texts[{number}] is blank; leave blank texts out")
        sources.append(source)
        targets.append(target)
    return sources, targets if pairs else []
