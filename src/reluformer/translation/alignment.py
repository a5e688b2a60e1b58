"""Alignments: which source tokens each target token read, over all layers and heads of cross-attention.

The compiled decoder does not keep its reads. So a finished translation passes through the model once
more, as a whole (forced decoding): the decoder then gives the same reads as the search did. The logits,
which cost most, are left out. Windows are read in batches.

Every head of every layer has one vote for each target token: its weights are divided by their sum. A
head whose row is zero, as rules with exact zeros allow, does not vote. End and separator tokens, which
some heads use as a place to rest, are left out.

Shapes: B windows, H heads, T target tokens, S source tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reluformer import memory
from reluformer.layers import Attention, TokenRead
from reluformer.models.blocks import Block
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.stepper import AnyStepper, ModelStepper, evaluating, padded
from reluformer.translation.tokenizer import BEGIN, END, PAD, SEPARATOR

MOST_WEIGHTS = 2**23
"""A batch has at most this many weights in each layer, B * H * T * S, unless a single window has more."""

Reads = npt.NDArray[np.float32]
"""The share of each source token in the reads of each target token, (T, S); rows add up to one or zero."""


@contextmanager
def recorded_weights(reads: Sequence[TokenRead], keep: Any) -> Iterator[None]:
    """Calls `keep` with the weights (B, H, Tq, Tk) of each of `reads` that happens inside of the block."""

    def record(module: TokenRead, given: tuple[Any, ...], output: object) -> None:
        q, slots, *_ = given
        dense, _ = memory.weights(
            q, slots.keys, module.rule, causal=module.causal, key_mask=slots.mask, bias=module.bias
        )
        keep(dense)

    hooks = [read.register_forward_hook(record) for read in reads]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def cross_reads_of(model: ReLUFormer) -> list[TokenRead]:
    """Returns the read of each decoder layer's cross-attention."""
    found = []
    for block in model.decoder:
        assert isinstance(block, Block) and block.cross is not None and isinstance(block.cross.layer, Attention)
        found.append(block.cross.layer.read)
    return found


def read_windows(
    stepper: AnyStepper, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[Reads] | None:
    """Returns what each target token of finished translations read.

    Args:
        stepper: The decoder that translated them.
        sources: The token ids of each source, with its end.
        targets: The token ids of each translation, without its end.

    Returns:
        The reads (T, S) of each translation, or None where the decoder has no model to ask, as in an ONNX export.
    """
    if not isinstance(stepper, ModelStepper):
        return None
    heads = stepper.model.config.heads
    sizes = [(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
    order = sorted(range(len(sizes)), key=lambda number: sizes[number], reverse=True)
    found: dict[int, Reads] = {}
    while order:
        longest_source, longest_target = 1, 1
        batch: list[int] = []
        for number in order:
            longest_source, longest_target = (
                max(longest_source, sizes[number][0]),
                max(longest_target, sizes[number][1]),
            )
            if batch and (len(batch) + 1) * heads * longest_source * longest_target > MOST_WEIGHTS:
                break
            batch.append(number)
        order = order[len(batch) :]
        reads = _read_batch(stepper.model, [sources[n] for n in batch], [targets[n] for n in batch])
        found.update(zip(batch, reads, strict=True))
    return [found[number] for number in range(len(sizes))]


@torch.inference_mode()
def _read_batch(
    model: ReLUFormer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> Iterator[Reads]:
    device = model.output_embedding.weight.device
    source, mask = padded(sources, device)
    target, _ = padded([[BEGIN, *target[:-1]] for target in targets], device)
    votes: Tensor | float = 0.0

    def add(weights: Tensor) -> None:
        nonlocal votes
        votes = votes + _shares(weights.float().clamp(min=0)).sum(1)

    with evaluating(model), recorded_weights(cross_reads_of(model), add):
        model.decode(target, model.encode(source, mask))
    assert isinstance(votes, Tensor)
    words = (source != END) & (source != SEPARATOR) & (source != PAD)
    shares: npt.NDArray[np.float32] = _shares(votes * words[:, None]).cpu().numpy()
    return (
        shares[number, : len(target), : len(source)]
        for number, (source, target) in enumerate(zip(sources, targets, strict=True))
    )


def _shares(weights: Tensor) -> Tensor:
    """Divides rows by their sums; a row of zeros stays one. What is not finite counts as zero."""
    weights = weights.nan_to_num(0.0, 0.0, 0.0)
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
