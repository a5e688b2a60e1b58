"""Segments: documents cut at sentence borders to what the model reads at once.

    source   src_1 <sep> src_2 <sep> ... src_n </s>
    target   tgt_1 <sep> tgt_2 <sep> ... tgt_n </s>

A sentence of k tokens so costs k + 1 on its side, and a segment is full when either side is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from reluformer.errors import ArgumentError
from reluformer.translation import skipped as reasons
from reluformer.translation.document import Document
from reluformer.translation.recipe import Limits, SegmentConfig
from reluformer.translation.skipped import Skipped
from reluformer.translation.tokenizer import END, SEPARATOR, Tokenizer

Tokens = npt.NDArray[np.integer]
EncodedPair = tuple[Sequence[int], Sequence[int]]
_ENCODE_SENTENCES = 4096


@dataclass(frozen=True, eq=False)
class Segment:
    """Token ids of consecutive sentences: `sentences` of them from `first_sentence` (from 0) of `document` on.

    Where documents were joined, the count runs on through the documents that follow.
    """

    document: str
    first_sentence: int
    sentences: int
    source: Tokens
    target: Tokens


@dataclass(frozen=True)
class EncodedDocument:
    """A document as token ids, one pair a sentence."""

    id: str
    pairs: list[EncodedPair]


def encode_documents(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[EncodedDocument]:
    """Documents as token ids, encoded a few thousand sentences at a time."""
    waiting: list[Document] = []
    sentences = 0
    for document in documents:
        waiting.append(document)
        sentences += len(document.src)
        if sentences >= _ENCODE_SENTENCES:
            yield from _encode(waiting, tokenizer)
            waiting, sentences = [], 0
    yield from _encode(waiting, tokenizer)


def _encode(documents: Sequence[Document], tokenizer: Tokenizer) -> Iterator[EncodedDocument]:
    for document in documents:
        if document.tgt is None:
            raise ArgumentError(f"document '{document.id}' has no translation to learn from")
    sources = iter(tokenizer.encode_batch(list(chain.from_iterable(document.src for document in documents))))
    targets = iter(tokenizer.encode_batch(list(chain.from_iterable(document.tgt or () for document in documents))))
    for document in documents:
        yield EncodedDocument(document.id, [(next(sources), next(targets)) for _ in document.src])


def cut(
    documents: Iterable[EncodedDocument],
    config: SegmentConfig,
    *,
    limits: Limits | None = None,
    skipped: Skipped | None = None,
) -> Iterator[Segment]:
    """The segments of `documents`, in order.

    A document that fits into one segment is never cut. A sentence that fits into none is
    dropped and counted, never truncated; the segment before it ends there. The documents
    whose sentences are to stand alone are spread evenly.
    """
    skipped = Skipped() if skipped is None else skipped
    sentences = config.segment_tokens == "sentence"
    most = (limits or Limits()).sentence_tokens if sentences else int(config.segment_tokens)
    segment = _OpenSegment()
    group: str | None = None
    for number, document in enumerate(documents):
        single = sentences or int((number + 1) * config.lone_sentences) > int(number * config.lone_sentences)
        joins = config.join_documents and (config.join_across_groups or _group(document.id) == group)
        if single or not joins or not segment.has_room_for(document.pairs, most):
            yield from segment.close()
        group = _group(document.id)
        for index, pair in enumerate(document.pairs):
            if max(len(pair[0]), len(pair[1])) + 1 > most:
                skipped.add(reasons.OVER_SEGMENT, f"document {document.id} sentence {index + 1}")
                yield from segment.close()
                continue
            if single or not segment.has_room_for([pair], most):
                yield from segment.close()
            segment.add(document.id, index, pair)
        if single:
            yield from segment.close()
    yield from segment.close()


def _group(document_id: str) -> str:
    """What documents share that may be joined: the id up to its last '/', or all of it where there is none."""
    return document_id.rpartition("/")[0] or document_id


@dataclass
class _OpenSegment:
    """The segment that is being filled."""

    document: str = ""
    first_sentence: int = 0
    pairs: list[EncodedPair] = field(default_factory=list)
    source_tokens: int = 0
    target_tokens: int = 0

    def has_room_for(self, pairs: Sequence[EncodedPair], most: int) -> bool:
        source = self.source_tokens + sum(len(pair[0]) + 1 for pair in pairs)
        target = self.target_tokens + sum(len(pair[1]) + 1 for pair in pairs)
        return max(source, target) <= most

    def add(self, document: str, index: int, pair: EncodedPair) -> None:
        if not self.pairs:
            self.document, self.first_sentence = document, index
        self.pairs.append(pair)
        self.source_tokens += len(pair[0]) + 1
        self.target_tokens += len(pair[1]) + 1

    def close(self) -> Iterator[Segment]:
        """The segment, unless it is empty, and begin the next."""
        if self.pairs:
            source, target = (_sequence([pair[side] for pair in self.pairs]) for side in (0, 1))
            yield Segment(self.document, self.first_sentence, len(self.pairs), source, target)
        self.pairs, self.source_tokens, self.target_tokens = [], 0, 0


def _sequence(sentences: Sequence[Sequence[int]]) -> Tokens:
    tokens: list[int] = []
    for sentence in sentences:
        tokens.extend(sentence)
        tokens.append(SEPARATOR)
    tokens[-1] = END
    return np.array(tokens, dtype=np.int32)
