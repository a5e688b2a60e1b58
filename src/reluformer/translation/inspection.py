"""Read maps: which tokens each token read, and which learned slots fired.

A read map lists the weights that are not exactly zero: those of one kind of attention, and the
greatest of each feed-forward memory. `AttentionMaps` has all weights of all three kinds as arrays.
`tokenize_words` says to which word a token belongs.

Shapes: S source tokens, T target tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reluformer.errors import ArgumentError
from reluformer.layers import Attention, FeedForward, TokenRead
from reluformer.models.blocks import Block
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.alignment import recorded_weights
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.stepper import evaluating
from reluformer.translation.tokenizer import BEGIN, END, SEPARATOR, Tokenizer
from reluformer.translation.windows import TRAINED_WINDOW

Row = tuple[tuple[int, float], ...]
AttentionKind = Literal["cross", "encoder", "decoder"]
"""Which attention is inspected: cross-attention, or the self-attention of encoder or decoder."""
ATTENTION_KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)


@dataclass(frozen=True)
class HeadReads:
    """The reads of one head of attention."""

    layer: int
    head: int
    rows: tuple[Row, ...]
    """For each reading token, the (place among the tokens that can be read, weight) of all that it read."""


@dataclass(frozen=True)
class SlotReads:
    """The reads of one layer's feed-forward memory."""

    layer: int
    slots: int
    """The number of slots of the memory."""
    fired: tuple[int, ...]
    """For each reading token, the number of slots whose weight is not zero."""
    rows: tuple[Row, ...]
    """For each reading token, the (slot, weight) of the greatest weights, in falling order."""


@dataclass(frozen=True)
class ReadMap:
    """The reads of a document and its translation, as plain data.

    In cross-attention the prediction of each target token reads source tokens. In the encoder source tokens read
    source tokens. In the decoder the prediction of a target token reads the begin token and the target so far.
    """

    source: tuple[int, ...]
    target: tuple[int, ...]
    heads: tuple[HeadReads, ...]
    slots: tuple[SlotReads, ...] = ()
    attention: AttentionKind = "cross"

    @property
    def weights(self) -> int:
        """The number of all weights that can differ from zero: of every visible pair, layer and head."""
        source, target = len(self.source), len(self.target)
        pairs = {"cross": source * target, "encoder": source**2, "decoder": target * (target + 1) // 2}
        return len(self.heads) * pairs[self.attention]

    @property
    def zero_fraction(self) -> float:
        """The share of all weights that are exactly zero."""
        listed = sum(len(row) for head in self.heads for row in head.rows)
        return 1 - listed / self.weights if self.weights else 0.0

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
    attention: AttentionKind = "cross",
) -> ReadMap:
    """Returns what the model reads to predict each token of a target, or to encode each token of the source.

    Args:
        model: The model.
        source: The token ids of the source, with its end.
        target: The token ids of the target, with its end.
        layer: The layer of the encoder or decoder to look at, counted from 0; None for all.
        head: The head to read from, counted from 0; None for all.
        slots: The most slots of each feed-forward memory to list for a token.
        attention: The kind of attention to look at; feed-forward memories are those of the same layers.

    Raises:
        ArgumentError: The kind, layer or head does not exist, or a sequence is empty.

    Example:
        >>> import reluformer as rf
        >>> model = rf.ReLUFormer(rf.ModelConfig(vocab_size=20, width=16, heads=2, decoder_layers=1))
        >>> found = read_map(model, source=[7, 8, 2], target=[9, 2], head=0)
        >>> len(found.heads), len(found.heads[0].rows)
        (1, 2)
    """
    if attention not in ATTENTION_KINDS:
        raise ArgumentError(f"unknown attention {attention!r}; valid: {', '.join(ATTENTION_KINDS)}")
    blocks = _blocks(model, attention)
    layers, heads = _chosen("layer", layer, len(blocks)), _chosen("head", head, model.config.heads)
    fired: list[Tensor] = []

    def keep_slots(module: FeedForward, given: tuple[Tensor], output: object) -> None:
        fired.append(module.weights(given[0])[0])

    hooks = [block.ffn.layer.register_forward_hook(keep_slots) for block in blocks] if slots else []
    try:
        weights = _weights(model, source, target, (attention,))[attention]
    finally:
        for hook in hooks:
            hook.remove()
    reads = (HeadReads(i, h, _sparse(weights[i][h])) for i in layers for h in heads)
    memories = (_slot_reads(i, fired[i], slots) for i in layers) if slots else ()
    return ReadMap(tuple(source), tuple(target), tuple(reads), tuple(memories), attention)


@dataclass(frozen=True)
class AttentionMaps:
    """The tokens of a text and its translation, and all weights of all attention, as arrays in float32.

    Row i of a map holds the weights that token i gave to each token. A row of `cross` and `decoder` belongs to the
    prediction of a target token. Column 0 of `decoder` is the begin token, column j the target token j - 1.
    """

    source_sentences: tuple[str, ...]
    target_sentences: tuple[str, ...]
    source: tuple[str, ...]
    """The S tokens of the source as text, with its end."""
    target: tuple[str, ...]
    """The T tokens of the target as text, with its end."""
    encoder: npt.NDArray[np.float32]
    """Self-attention of the encoder: (layers, heads, S, S)."""
    decoder: npt.NDArray[np.float32]
    """Self-attention of the decoder: (layers, heads, T, T); zero above the diagonal."""
    cross: npt.NDArray[np.float32]
    """Cross-attention: (layers, heads, T, S)."""


@torch.inference_mode()
def attention_maps(
    model: ReLUFormer, tokenizer: Tokenizer, source: Sequence[str], target: Sequence[str]
) -> AttentionMaps:
    """Returns all weights of all attention for a document and its translation, read in one piece.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        source: The sentences of the document.
        target: The sentences of the translation.

    Raises:
        ArgumentError: There is no sentence.
    """
    if not source or not target:
        raise ArgumentError("source and target need at least one sentence")
    source_ids, source_texts = _tokens_and_texts(tokenizer, source)
    target_ids, target_texts = _tokens_and_texts(tokenizer, target)
    weights = _weights(model, source_ids, target_ids, ATTENTION_KINDS)
    arrays = {kind: torch.stack(layers).float().cpu().numpy() for kind, layers in weights.items()}
    return AttentionMaps(tuple(source), tuple(target), source_texts, target_texts, **arrays)


def _tokens_and_texts(tokenizer: Tokenizer, sentences: Sequence[str]) -> tuple[list[int], tuple[str, ...]]:
    tokens, words = tokenize_words(tokenizer, sentences, 0)
    texts = (words[place].text if words[place].is_mark else tokenizer.decode([token]) for token, place in tokens)
    return [token for token, _ in tokens], tuple(texts)


def _weights(
    model: ReLUFormer, source: Sequence[int], target: Sequence[int], kinds: Sequence[AttentionKind]
) -> dict[AttentionKind, list[Tensor]]:
    """Returns the weights (H, queries, keys) of every layer, for each kind of attention."""
    if not source or not target:
        raise ArgumentError("source and target need at least their end token")
    weights: dict[AttentionKind, list[Tensor]] = {kind: [] for kind in kinds}
    device = model.output_embedding.weight.device
    with ExitStack() as recording:
        for kind in kinds:

            def keep(dense: Tensor, found: list[Tensor] = weights[kind]) -> None:
                found.append(dense[0])

            reads = [_read_of(block, kind) for block in _blocks(model, kind)]
            recording.enter_context(recorded_weights(reads, keep))
        recording.enter_context(evaluating(model))
        model(torch.tensor([source], device=device), torch.tensor([[BEGIN, *target[:-1]]], device=device))
    return weights


def _blocks(model: ReLUFormer, kind: AttentionKind) -> list[Block]:
    return [block for block in (model.encoder if kind == "encoder" else model.decoder) if isinstance(block, Block)]


def _read_of(block: Block, kind: AttentionKind) -> TokenRead:
    sublayer = block.cross if kind == "cross" else block.attention
    assert sublayer is not None and isinstance(sublayer.layer, Attention)
    return sublayer.layer.read


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


DOCUMENT_BEGIN, SENTENCE_END, DOCUMENT_END = "<begin>", "<sep>", "<end>"


@dataclass(frozen=True)
class Word:
    """A word, or the mark behind a sentence or before a text, with the number of its sentence in the document."""

    text: str
    sentence: int
    is_mark: bool = False
    """Whether this token begins a text or ends a sentence or the window. The text may hold the same letters."""


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


class WholeTranslator(Protocol):
    """A translator whose model can show what it read, such as `translation.translator.Translator`."""

    @property
    def model(self) -> ReLUFormer:
        """The model."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""

    @property
    def config(self) -> DecodingConfig:
        """The decoding settings."""

    def translate_documents(self, documents: Sequence[Sequence[str]]) -> list[list[str]]:
        """Returns the translations of documents, sentence by sentence."""


@dataclass(frozen=True)
class ReadWindow:
    """Sentences that were translated together, and which words each word read."""

    source: tuple[Word, ...]
    target: tuple[Word, ...]
    reads: tuple[dict[int, float], ...]
    """For each word of `readers`, the weight on each word of `readable` that it read."""
    zero_fraction: float
    weights: int
    """The number of all weights, zeros included."""
    attention: AttentionKind = "cross"

    @property
    def readers(self) -> tuple[Word, ...]:
        """The words that read: those of the source in the encoder, otherwise those of the target."""
        return self.source if self.attention == "encoder" else self.target

    @property
    def readable(self) -> tuple[Word, ...]:
        """The words that can be read: those of the source, or in the decoder a begin mark and those of the target."""
        if self.attention != "decoder":
            return self.source
        return (Word(DOCUMENT_BEGIN, self.target[0].sentence, is_mark=True), *self.target)


def read_windows(
    translator: WholeTranslator,
    sentences: Sequence[str],
    layer: int | None = None,
    head: int | None = None,
    attention: AttentionKind = "cross",
) -> list[ReadWindow]:
    """Translates a document and returns what each word of the translation, or of the document, read.

    A document longer than the model's window is cut between sentences, and each part is
    translated alone, so that a window shows everything that the model saw.

    Args:
        translator: The translator, for example that of `reluformer.load`.
        sentences: The sentences of the document.
        layer: The layer of the encoder or decoder to look at, counted from 0; None for all.
        head: The head to read from, counted from 0; None for all.
        attention: The kind of attention to look at.

    Returns:
        One window for each part of the document, in its order.

    Raises:
        ArgumentError: The layer or head does not exist.

    Example:
        >>> import reluformer as rf
        >>> [window] = read_windows(rf.load("runs/demo"), ["The lamp is new."])
        >>> len(window.reads) == len(window.readers)
        True
    """
    tokenizer = translator.tokenizer
    sentences = [" ".join(sentence.split()) for sentence in sentences]
    parts = list(split_into_windows(tokenizer, sentences, translator.config.window_tokens))
    translations = translator.translate_documents(parts)
    windows, first = [], 0
    for part, translation in zip(parts, translations, strict=True):
        source, source_words = tokenize_words(tokenizer, part, first)
        target, target_words = tokenize_words(tokenizer, translation, first)
        source_ids, target_ids = ([token for token, _ in side] for side in (source, target))
        found = read_map(translator.model, source_ids, target_ids, layer, head, attention=attention)
        word_of_source, word_of_target = ([word for _, word in side] for side in (source, target))
        readers = word_of_source if attention == "encoder" else word_of_target
        readable = [0, *(word + 1 for word in word_of_target)] if attention == "decoder" else word_of_source
        reads = _by_word(found, readable, readers)
        windows.append(
            ReadWindow(tuple(source_words), tuple(target_words), reads, found.zero_fraction, found.weights, attention)
        )
        first += len(part)
    return windows


def _by_word(found: ReadMap, readable: Sequence[int], readers: Sequence[int]) -> tuple[dict[int, float], ...]:
    """Adds up weights over heads, and over the tokens of each word on both sides, given the word of each token."""
    reads: tuple[dict[int, float], ...] = tuple({} for _ in range(readers[-1] + 1))
    for one in found.heads:
        for token, row in enumerate(one.rows):
            into = reads[readers[token]]
            for place, weight in row:
                into[readable[place]] = into.get(readable[place], 0.0) + weight
    return reads


def zero_fraction(windows: Sequence[ReadWindow]) -> float:
    """Returns the share of all weights that are exactly zero."""
    return sum(window.zero_fraction * window.weights for window in windows) / sum(window.weights for window in windows)


def windows_as_json(windows: Sequence[ReadWindow]) -> dict[str, Any]:
    """Returns plain data for JSON. A read is [position among the window's readable words, weight]."""

    def window_as_json(window: ReadWindow) -> dict[str, Any]:
        readers = [
            {**asdict(word), "reads": sorted(reads.items(), key=lambda read: -read[1])}
            for word, reads in zip(window.readers, window.reads, strict=True)
        ]
        source, target = ([asdict(word) for word in side] for side in (window.source, window.target))
        return {
            "source": readers if window.attention == "encoder" else source,
            "target": target if window.attention == "encoder" else readers,
            "readable": [asdict(word) for word in window.readable],
            "zero_fraction": window.zero_fraction,
        }

    return {
        "attention": windows[0].attention,
        "zero_fraction": zero_fraction(windows),
        "windows": [window_as_json(window) for window in windows],
    }


def inspect_document(
    translator: WholeTranslator, sentences: Sequence[str], translation: Sequence[str] | None = None
) -> list[AttentionMaps]:
    """Returns all attention weights of a document and its translation, window by window.

    Args:
        translator: The translator, for example that of `reluformer.load`.
        sentences: The sentences of the document.
        translation: The translation of each sentence; by default the model translates them.

    Raises:
        ArgumentError: There is no sentence, or the numbers of sentences differ.
    """
    sentences = [" ".join(sentence.split()) for sentence in sentences]
    if not sentences:
        raise ArgumentError("the text holds no sentence; there is nothing to inspect")
    if translation is not None and len(translation) != len(sentences):
        raise ArgumentError(
            f"{len(sentences)} sentences but {len(translation)} translations; give one for each sentence"
        )
    parts = list(split_into_windows(translator.tokenizer, sentences, translator.config.window_tokens))
    translated = translator.translate_documents(parts) if translation is None else []
    first, maps = 0, []
    for number, part in enumerate(parts):
        own = translated[number] if translation is None else list(translation[first : first + len(part)])
        maps.append(attention_maps(translator.model, translator.tokenizer, part, own))
        first += len(part)
    return maps
