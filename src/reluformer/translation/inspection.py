"""Read maps: which source tokens each output token read, and which learned slots fired.

A read map lists the weights that are not exactly zero: those of cross attention, and the
greatest of each feed-forward memory. `tokenize_words` says to which word a token belongs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from reluformer import memory
from reluformer.errors import ArgumentError
from reluformer.layers import Attention, FeedForward, TokenRead, TokenSlots
from reluformer.models.blocks import Block
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.stepper import evaluating
from reluformer.translation.tokenizer import BEGIN, END, SEPARATOR, Tokenizer
from reluformer.translation.windows import TRAINED_WINDOW

Row = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class HeadReads:
    """The reads of one head of cross attention."""

    layer: int
    head: int
    rows: tuple[Row, ...]
    """For each target token, the (place in the source, weight) of all that its prediction read."""


@dataclass(frozen=True)
class SlotReads:
    """The reads of one decoder layer's feed-forward memory."""

    layer: int
    slots: int
    """The number of slots of the memory."""
    fired: tuple[int, ...]
    """For each target token, the number of slots whose weight is not zero."""
    rows: tuple[Row, ...]
    """For each target token, the (slot, weight) of the greatest weights, in falling order."""


@dataclass(frozen=True)
class ReadMap:
    """The reads of a document and its translation, as plain data."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    heads: tuple[HeadReads, ...]
    slots: tuple[SlotReads, ...] = ()

    @property
    def zero_fraction(self) -> float:
        """The share of all weights that are exactly zero."""
        weights = len(self.heads) * len(self.source) * len(self.target)
        listed = sum(len(row) for head in self.heads for row in head.rows)
        return 1 - listed / weights if weights else 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {**asdict(self), "zero_fraction": self.zero_fraction}


@torch.inference_mode()
def read_map(
    model: ReLUFormer,
    source: Sequence[int],
    target: Sequence[int],
    layer: int | None = None,
    head: int | None = None,
    slots: int = 0,
) -> ReadMap:
    """Returns what the model reads to predict each token of a target.

    Args:
        model: The model.
        source: The token ids of the source, with its end.
        target: The token ids of the target, with its end.
        layer: The decoder layer to read from, counted from 0; None for all.
        head: The head to read from, counted from 0; None for all.
        slots: The most slots of each feed-forward memory to list for a token.

    Raises:
        ArgumentError: The layer or head does not exist, or a sequence is empty.

    Example:
        >>> import reluformer as rf
        >>> model = rf.ReLUFormer(rf.ModelConfig(vocab_size=20, width=16, heads=2, decoder_layers=1))
        >>> found = read_map(model, source=[7, 8, 2], target=[9, 2], head=0)
        >>> len(found.heads), len(found.heads[0].rows)
        (1, 2)
    """
    layers = _chosen("layer", layer, model.config.decoder_layers)
    heads = _chosen("head", head, model.config.heads)
    if not source or not target:
        raise ArgumentError("source and target need at least their end token")
    weights: list[Tensor] = []

    def keep(module: TokenRead, given: tuple[Tensor, TokenSlots, bool], output: object) -> None:
        q, slots, *_ = given
        dense, _ = memory.weights(
            q, slots.keys, module.rule, causal=module.causal, key_mask=slots.mask, bias=module.bias
        )
        weights.append(dense[0])

    fired: list[Tensor] = []

    def keep_slots(module: FeedForward, given: tuple[Tensor], output: object) -> None:
        fired.append(module.weights(given[0])[0])

    blocks = [block for block in model.decoder if isinstance(block, Block)]
    hooks = [_cross_read(block).register_forward_hook(keep) for block in blocks]
    if slots:
        hooks += [block.ffn.layer.register_forward_hook(keep_slots) for block in blocks]
    device = model.output_embedding.weight.device
    try:
        with evaluating(model):
            model(torch.tensor([source], device=device), torch.tensor([[BEGIN, *target[:-1]]], device=device))
    finally:
        for hook in hooks:
            hook.remove()
    reads = (HeadReads(i, h, _sparse(weights[i][h])) for i in layers for h in heads)
    memories = (_slot_reads(i, fired[i], slots) for i in layers) if slots else ()
    return ReadMap(tuple(source), tuple(target), tuple(reads), tuple(memories))


def _cross_read(block: Block) -> TokenRead:
    assert block.cross is not None and isinstance(block.cross.layer, Attention)
    return block.cross.layer.read


def _sparse(weights: Tensor) -> tuple[Row, ...]:
    """Returns the places and values of weights (T, S) that are not zero, row by row."""
    rows: list[list[tuple[int, float]]] = [[] for _ in range(weights.size(0))]
    places = weights.nonzero()
    for (row, place), value in zip(places.tolist(), weights[places[:, 0], places[:, 1]].tolist(), strict=True):
        rows[row].append((place, value))
    return tuple(map(tuple, rows))


def _slot_reads(layer: int, weights: Tensor, most: int) -> SlotReads:
    """Returns the greatest of the weights (T, slots) of each row."""
    values, places = weights.topk(min(most, weights.size(1)), dim=1)
    rows = (
        tuple((place, value) for place, value in zip(*row, strict=True) if value != 0)
        for row in zip(places.tolist(), values.tolist(), strict=True)
    )
    fired = (weights != 0).sum(1).tolist()
    return SlotReads(layer, weights.size(1), tuple(fired), tuple(rows))


def _chosen(name: str, number: int | None, count: int) -> range:
    if number is None:
        return range(count)
    if not 0 <= number < count:
        raise ArgumentError(f"{name} {number} does not exist; the model has {name}s 0 to {count - 1}")
    return range(number, number + 1)


SENTENCE_END, DOCUMENT_END = "<sep>", "<end>"


@dataclass(frozen=True)
class Word:
    """A word, or the mark behind a sentence, with the number of its sentence in the document."""

    text: str
    sentence: int
    is_mark: bool = False
    """Whether this is a token that ends a sentence or the window. The text may hold the same letters."""


def split_into_windows(tokenizer: Tokenizer, sentences: Sequence[str], window: int | str | None) -> Iterator[list[str]]:
    """Yields neighbouring sentences that fit into a window of tokens together; a longer sentence comes alone."""
    most = 0 if window == "sentence" else int(window or TRAINED_WINDOW)
    part: list[str] = []
    room = most
    for sentence, tokens in zip(sentences, tokenizer.encode_batch(sentences), strict=True):
        if part and len(tokens) + 1 > room:
            yield part
            part, room = [], most
        part.append(sentence)
        room -= len(tokens) + 1
    if part:
        yield part


def tokenize_words(
    tokenizer: Tokenizer, sentences: Sequence[str], first: int
) -> tuple[list[tuple[int, int]], list[Word]]:
    """Tokenizes the sentences of a window word by word; the tokenizer never joins text across white space.

    Args:
        tokenizer: The tokenizer.
        sentences: The sentences of the window.
        first: The number of the first sentence in its document.

    Returns:
        The tokens, each with the index of its word, and the words.
    """
    tokens: list[tuple[int, int]] = []
    words: list[Word] = []
    for number, sentence in enumerate(sentences, first):
        split = sentence.split()
        for word, pieces in zip(split, tokenizer.encode_batch(split), strict=True):
            tokens += [(piece, len(words)) for piece in pieces]
            words.append(Word(word, number))
        last = number == first + len(sentences) - 1
        tokens.append((END if last else SEPARATOR, len(words)))
        words.append(Word(DOCUMENT_END if last else SENTENCE_END, number, is_mark=True))
    return tokens, words
