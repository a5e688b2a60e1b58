"""Alignments: what the tokens of a translation read in cross-attention, by sentence and by token.

The compiled search sums what it reads by sentence, which is all that most translations need. Other
decoders do not keep their reads, and nobody keeps them by token. Then a finished translation passes
through the decoder once more, as a whole (forced decoding): it gives the same reads as the search did.
A stepper gives the encoded sources of its search, the logits are left out, and windows are read in small batches.

Which sentence a token read is asked of the last decoder layer alone, and the pass ends there. No weights are
stored for it: the same read with values that say to which sentence a slot belongs gives the weight on each
sentence. Which tokens it read, for marks, is asked of all layers.

Every head has one vote for each target token: its weights are divided by their sum. A head whose row is
zero, as rules with exact zeros allow, does not vote. End and separator tokens, which some heads use as
a place to rest, are left out.

Shapes: B windows, H heads, T target tokens, S source tokens, U source sentences of a window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from reluformer import memory
from reluformer.layers import Attention, TokenRead
from reluformer.models.blocks import Block
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.stepper import Decoder, ModelDecoder, evaluating, in_batches_of_similar_length, padded
from reluformer.translation.tokenizer import BEGIN, END, PAD, SEPARATOR

MOST_TOKENS = 1024
"""A batch has at most this many tokens on either side, unless a single window has more; larger ones were slower."""

Shares = npt.NDArray[np.float32]
"""Shares in what each target token read; rows add up to one or zero."""


@dataclass(frozen=True)
class WindowReads:
    """What each target token of a window read."""

    by_sentence: Shares
    """The share of each source sentence, (T, U)."""
    by_token: Shares | None = None
    """The share of each source token, (T, S), where it was asked for."""


@contextmanager
def recorded_weights(reads: Sequence[TokenRead], keep: Any) -> Iterator[None]:
    """Calls `keep` with the weights (B, H, Tq, Tk) of each of `reads` that happens inside of the block."""

    def record(module: TokenRead, given: tuple[Any, ...], output: object) -> None:
        keep(_weights(module, given))

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
    decoder: Decoder,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    by_token: bool = False,
) -> list[WindowReads] | None:
    """Returns what each target token of finished translations read.

    Args:
        decoder: The decoder that translated them.
        sources: The token ids of each source, with its end.
        targets: The token ids of each translation, without its end.
        by_token: Whether the share of each source token is needed.

    Returns:
        The reads of each translation, or None where the decoder has no model to ask, as in an ONNX export.
    """
    if not isinstance(decoder, ModelDecoder):
        return None
    return in_batches_of_similar_length(
        sources, targets, MOST_TOKENS, lambda some, theirs: _read_batch(decoder, some, theirs, by_token)
    )


@torch.inference_mode()
def _read_batch(
    decoder: ModelDecoder, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], by_token: bool
) -> Iterator[WindowReads]:
    model = decoder.model
    source, _ = padded(sources, decoder.device)
    target, _ = padded([[BEGIN, *target[:-1]] for target in targets], decoder.device)
    words = (source != END) & (source != SEPARATOR) & (source != PAD)
    sentence = (source == SEPARATOR).cumsum(1) + 1
    members = F.one_hot(sentence.where(words, 0))  # (B, S, 1 + U); the first column has what is no word
    votes: Tensor | None = None
    shares = None

    def add_votes(module: TokenRead, given: tuple[Any, ...], output: object) -> None:
        nonlocal votes
        own = _shares(_weights(module, given)).sum(1)
        votes = own if votes is None else votes + own

    def keep_shares(module: TokenRead, given: tuple[Any, ...]) -> None:
        nonlocal shares
        q, slots, *_ = given
        values = members.to(q.dtype)[:, None].expand(-1, q.size(1), -1, -1)
        read = memory.read(q, slots.keys, values, module.rule, key_mask=slots.mask, bias=module.bias)
        shares = _shares(_shares(read).sum(1)[:, :, 1:])
        if not by_token:
            raise _AllReadError

    reads = cross_reads_of(model)
    hooks = [reads[-1].register_forward_pre_hook(keep_shares)]
    hooks += [read.register_forward_hook(add_votes) for read in reads] if by_token else []
    try:
        with evaluating(model), suppress(_AllReadError):
            model.decode(target, decoder.encoded(sources))
    finally:
        for hook in hooks:
            hook.remove()
    assert shares is not None
    sentences = shares.float().cpu().numpy()
    tokens = None if votes is None else _shares(votes * words[:, None]).float().cpu().numpy()
    for number, (own, written) in enumerate(zip(sources, targets, strict=True)):
        by_sentence = sentences[number, : len(written), : own.count(SEPARATOR) + 1]
        yield WindowReads(by_sentence, None if tokens is None else tokens[number, : len(written), : len(own)])


class _AllReadError(Exception):
    """The rest of the forward pass is not needed."""


def _weights(module: TokenRead, given: tuple[Any, ...]) -> Tensor:
    """Returns the weights (B, H, Tq, Tk) of a read, given the arguments of the read."""
    q, slots, *_ = given
    weights, _ = memory.weights(q, slots.keys, module.rule, causal=module.causal, key_mask=slots.mask, bias=module.bias)
    return weights


def _shares(weights: Tensor) -> Tensor:
    """Divides rows by their sums; a row of zeros stays one. What is negative or not finite counts as zero."""
    weights = weights.nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
