"""Forced decoding: how likely a model finds a translation that is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from reluformer.errors import ArgumentError
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.documents import padded
from reluformer.translation.stepper import evaluating
from reluformer.translation.tokenizer import BEGIN, END, SEPARATOR


@dataclass(frozen=True)
class TargetScore:
    """Log-probabilities of a target given its source."""

    tokens: tuple[float, ...]
    """Of each token given those before it, the end included."""
    sentences: tuple[float, ...]
    """Of each sentence with the separator or end behind it."""

    @property
    def total(self) -> float:
        """Of the whole target."""
        return sum(self.tokens)


@torch.inference_mode()
def score(
    model: ReLUFormer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], batch_tokens: int = 8192
) -> list[TargetScore]:
    """The log-probability of each target given its source; both with their end tokens."""
    if len(sources) != len(targets):
        raise ArgumentError(f"{len(sources)} sources but {len(targets)} targets; give one target for each source")
    for number, target in enumerate(targets):
        if not target or target[-1] != END:
            raise ArgumentError(f"target {number} does not finish with the end token {END}; append it")
    sizes = [max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
    order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
    scores: dict[int, TargetScore] = {}
    while order:
        count = max(1, batch_tokens // max(1, sizes[order[0]]))
        batch, order = order[:count], order[count:]
        rows = _score_batch(model, [sources[number] for number in batch], [targets[number] for number in batch])
        scores.update(zip(batch, rows, strict=True))
    return [scores[number] for number in range(len(sizes))]


def _score_batch(
    model: ReLUFormer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[TargetScore]:
    device = model.output_embedding.weight.device
    source, mask = padded(sources, device)
    target, _ = padded(targets, device)
    begin = torch.full_like(target[:, :1], BEGIN)
    with evaluating(model):
        logits = model(source, torch.cat([begin, target[:, :-1]], 1), mask).logits
    chosen = logits.gather(2, target[:, :, None]).squeeze(2) - torch.logsumexp(logits, 2)
    return [_target_score(row, values) for row, values in zip(targets, chosen.tolist(), strict=True)]


def _target_score(target: Sequence[int], values: Sequence[float]) -> TargetScore:
    sentences = [0.0]
    for token, value in zip(target, values, strict=False):
        sentences[-1] += value
        if token == SEPARATOR:
            sentences.append(0.0)
    return TargetScore(tuple(values[: len(target)]), tuple(sentences))
