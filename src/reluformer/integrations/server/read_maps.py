"""The read maps of `/inspect`: what each token read in one kind of attention, and which slots fired.

A document longer than the model's window is inspected in parts. Each part is read alone,
so the map shows everything that the model saw.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from reluformer.integrations.server.limits import RequestError, ServerLimits, too_large
from reluformer.integrations.server.model_registry import ServedModel
from reluformer.translation import formats
from reluformer.translation.inspection import (
    DOCUMENT_BEGIN,
    AttentionKind,
    ReadMap,
    Word,
    read_map,
    split_into_windows,
    tokenize_words,
)
from reluformer.translation.tokenizer import BEGIN

TOP_SLOTS = 32
MAX_WEIGHTS = 2_000_000
"""The number of weights, over all layers and heads, that a browser can still display."""


@dataclass(frozen=True)
class TokenizedPart:
    """The words of one part of a text, and its tokens, each with the index of its word."""

    tokens: list[tuple[int, int]]
    words: list[Word]

    @property
    def ids(self) -> list[int]:
        """The token ids."""
        return [token for token, _ in self.tokens]


def source_parts(model: ServedModel, text: str) -> list[list[str]]:
    """Splits a text into parts of sentences that fit into a window.

    Raises:
        RequestError: The text has no sentence (400).
    """
    sentences = _sentences(model, text)
    if not sentences:
        raise RequestError(400, "nothing_to_read", "'q' holds no sentence", "send some words")
    return list(split_into_windows(model.translator.tokenizer, sentences, model.translator.config.window_tokens))


def target_parts(model: ServedModel, parts: Sequence[Sequence[str]], text: str | list[str]) -> list[list[str]]:
    """Splits a given translation into parts like those of its source.

    Args:
        model: The model, whose languages choose the sentence splitter.
        parts: The parts of the source.
        text: The translation, or the list of its sentences.

    Raises:
        RequestError: The numbers of sentences differ (422), or there is no sentence (400).
    """
    sentences = _sentences(model, text) if isinstance(text, str) else [" ".join(given.split()) for given in text]
    if not sentences:
        raise RequestError(400, "nothing_to_read", "'text' holds no sentence", "leave it out to have 'q' translated")
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + len(part))
    if len(parts) == 1 and isinstance(text, str):
        return [sentences]
    if ends[-1] != len(sentences):
        one = ", and they do not fit into one window" if isinstance(text, str) else ""
        sentence = f"'q' has {ends[-1]} sentences but 'text' has {len(sentences)}{one}"
        raise RequestError(422, "not_aligned", sentence, "send as many sentences, or fewer of them")
    return [sentences[start:stop] for start, stop in pairwise(ends)]


def _sentences(model: ServedModel, text: str) -> list[str]:
    found, _ = formats.get("plain", source=model.source, target=model.target).parse(text)
    return [" ".join(sentence.split()) for sentence in found]


def tokenize(
    model: ServedModel, parts: Sequence[Sequence[str]], limits: ServerLimits, what: str
) -> list[TokenizedPart]:
    """Tokenizes parts.

    Raises:
        RequestError: There are more tokens than the limit (413).
    """
    tokenized, first = [], 0
    for part in parts:
        tokenized.append(TokenizedPart(*tokenize_words(model.translator.tokenizer, part, first)))
        first += len(part)
    if sum(len(part.tokens) for part in tokenized) > limits.inspected_tokens:
        raise too_large(what, limits.inspected_tokens, "tokens")
    return tokenized


def check_weights(
    model: ServedModel,
    sources: Sequence[TokenizedPart],
    targets: Sequence[TokenizedPart],
    attention: AttentionKind = "cross",
) -> None:
    """Raises an error (413) if there are more weights than a browser can display."""
    rows = sources if attention == "encoder" else targets
    columns = targets if attention == "decoder" else sources
    pairs = sum(len(row.tokens) * len(column.tokens) for row, column in zip(rows, columns, strict=True))
    if pairs * model.translator.model.config.heads * _layers(model, attention) > MAX_WEIGHTS:
        raise too_large("the table of reads", MAX_WEIGHTS, "weights")


def _layers(model: ServedModel, attention: AttentionKind) -> int:
    config = model.translator.model.config
    return config.encoder_layers if attention == "encoder" else config.decoder_layers


def compute(
    model: ServedModel,
    sources: Sequence[TokenizedPart],
    targets: Sequence[TokenizedPart],
    attention: AttentionKind = "cross",
) -> list[ReadMap]:
    """Returns the read map of each part; only the engine's thread may call it."""
    return [
        read_map(model.translator.model, source.ids, target.ids, slots=TOP_SLOTS, attention=attention)
        for source, target in zip(sources, targets, strict=True)
    ]


def _readable(target: TokenizedPart) -> TokenizedPart:
    """Returns what the decoder can read of a part: the begin mark and all tokens of the target but the last."""
    tokens = [(BEGIN, 0), *((token, place + 1) for token, place in target.tokens[:-1])]
    return TokenizedPart(tokens, [Word(DOCUMENT_BEGIN, target.words[0].sentence, is_mark=True), *target.words[:-1]])


def to_json(
    model: ServedModel,
    text: str,
    sources: Sequence[TokenizedPart],
    targets: Sequence[TokenizedPart],
    maps: Sequence[ReadMap],
) -> bytes:
    """Returns the response as JSON; token indices count through all parts."""
    attention = maps[0].attention
    readable = [_readable(target) for target in targets] if attention == "decoder" else sources
    layers, heads = _layers(model, attention), model.translator.model.config.heads
    reads: list[list[list[list[tuple[int, float]]]]] = [[[] for _ in range(heads)] for _ in range(layers)]
    slots: list[list[dict[str, object]]] = [[] for _ in range(layers)]
    first = 0
    for part, found in zip(readable, maps, strict=True):
        for one in found.heads:
            reads[one.layer][one.head] += [[(first + place, _rounded(w)) for place, w in row] for row in one.rows]
        for memory in found.slots:
            slots[memory.layer] += [
                {"fired": fired, "of": memory.slots, "top": [(slot, _rounded(w)) for slot, w in row]}
                for fired, row in zip(memory.fired, memory.rows, strict=True)
            ]
        first += len(part.tokens)
    zeros = sum(found.zero_fraction * found.weights for found in maps) / sum(found.weights for found in maps)
    answer = {
        "model": model.name,
        "text": text,
        "attention": attention,
        "source_tokens": _tokens(model, sources),
        "target_tokens": _tokens(model, targets),
        "read_tokens": _tokens(model, readable),
        "layers": layers,
        "heads": heads,
        "reads": reads,
        "slots": slots,
        "zero_fraction": zeros,
    }
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()


def _tokens(model: ServedModel, parts: Sequence[TokenizedPart]) -> list[dict[str, object]]:
    described: list[dict[str, object]] = []
    first = 0
    for part in parts:
        for token, place in part.tokens:
            word = part.words[place]
            text = word.text if word.is_mark else model.translator.tokenizer.decode([token])
            described.append({"text": text, "word": first + place, "sentence": word.sentence, "mark": word.is_mark})
        first += len(part.words)
    return described


def _rounded(weight: float) -> float:
    """Rounds a weight to four significant digits; only zero becomes zero."""
    return float(f"{weight:.4g}")
