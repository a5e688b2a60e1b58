"""Segments: documents cut at sentence borders to what a model reads at once, and their store.

    source   src_1 <sep> src_2 <sep> ... src_n </s>
    target   tgt_1 <sep> tgt_2 <sep> ... tgt_n </s>

A sentence of k tokens costs k + 1 on its side, and a segment is full when either side is.

A store is one Arrow file for each split. It is written by record batches and read
memory-mapped. Token ids are uint16 where the vocabulary allows it, else int32. Lengths need
no column of their own: they are the differences of the list offsets that Arrow stores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from reluformer.errors import ArgumentError, StorageError
from reluformer.files import whole_file
from reluformer.translation.document import Document, Skipped, SkipReason
from reluformer.translation.recipe import Limits, SegmentConfig
from reluformer.translation.tokenizer import END, SEPARATOR, Tokenizer

Tokens = npt.NDArray[np.integer]
EncodedPair = tuple[Sequence[int], Sequence[int]]
ENCODE_SENTENCES = 4096


@dataclass(frozen=True, eq=False)
class Segment:
    """A segment has the token ids of consecutive sentences of a document.

    There are `sentences` of them, from `first_sentence` (from 0) of `document` on. Where
    documents were joined, the count runs on through the documents that follow.
    """

    document: str
    first_sentence: int
    sentences: int
    source: Tokens
    target: Tokens


@dataclass(frozen=True)
class EncodedDocument:
    """An encoded document has token ids, one pair a sentence."""

    id: str
    pairs: list[EncodedPair]


def encode_documents(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[EncodedDocument]:
    """Encodes documents, a few thousand sentences at a time.

    Raises:
        ArgumentError: A document has no translation.
    """
    waiting: list[Document] = []
    sentences = 0
    for document in documents:
        waiting.append(document)
        sentences += len(document.src)
        if sentences >= ENCODE_SENTENCES:
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
    """Cuts documents into segments, in order.

    A document that fits into one segment is never cut. A sentence that fits into none is
    dropped and counted, never truncated; the segment before it ends there. The documents
    whose sentences are to stand alone are spread evenly.

    Args:
        documents: The encoded documents.
        config: How long a segment is, and which documents share one.
        limits: The longest sentence, where segments are single sentences.
        skipped: The tally that counts the sentences that are dropped.

    Example:
        >>> from reluformer.translation.recipe import SegmentConfig
        >>> from reluformer.translation.segments import EncodedDocument, cut
        >>> document = EncodedDocument("a", [([10, 11], [20]), ([12, 13, 14, 15], [21])])
        >>> [segment.source.tolist() for segment in cut([document], SegmentConfig(segment_tokens=8))]
        [[10, 11, 3, 12, 13, 14, 15, 2]]
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
                skipped.add(SkipReason.OVER_SEGMENT, f"document {document.id} sentence {index + 1}")
                yield from segment.close()
                continue
            if single or not segment.has_room_for([pair], most):
                yield from segment.close()
            segment.add(document.id, index, pair)
        if single:
            yield from segment.close()
    yield from segment.close()


def _group(document_id: str) -> str:
    """Returns what joined documents share: the id up to its last '/', or all of it where there is none."""
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
        """Yields the segment, unless it is empty, and begins the next."""
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


FORMAT = 1
_FORMAT_KEY, _VOCABULARY_KEY = b"reluformer.segments", b"reluformer.vocab_size"
BATCH_ROWS, BATCH_TOKENS = 4096, 2**20

TokenCounts = npt.NDArray[np.int32]


def write_segments(segments: Iterable[Segment], path: Path, vocab_size: int) -> int:
    """Writes a store, whole or not at all, a few thousand segments at a time; returns their number."""
    schema = _schema(vocab_size)
    count = 0
    with whole_file(path) as file, pa.ipc.new_file(file, schema) as writer:
        for rows in _groups(segments):
            writer.write_batch(_record_batch(rows, schema))
            count += len(rows)
    return count


def _groups(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    rows: list[Segment] = []
    tokens = 0
    for segment in segments:
        rows.append(segment)
        tokens += len(segment.source) + len(segment.target)
        if len(rows) >= BATCH_ROWS or tokens >= BATCH_TOKENS:
            yield rows
            rows, tokens = [], 0
    if rows:
        yield rows


def _schema(vocab_size: int) -> Any:
    token = pa.uint16() if vocab_size <= 2**16 else pa.int32()
    return pa.schema(
        {
            "source": pa.list_(token),
            "target": pa.list_(token),
            "document": pa.string(),
            "first_sentence": pa.int32(),
            "sentences": pa.int32(),
        },
        metadata={_FORMAT_KEY: str(FORMAT), _VOCABULARY_KEY: str(vocab_size)},
    )


def _record_batch(rows: list[Segment], schema: Any) -> Any:
    columns = [
        _token_lists([row.source for row in rows], schema.field("source").type.value_type),
        _token_lists([row.target for row in rows], schema.field("target").type.value_type),
        pa.array([row.document for row in rows], pa.string()),
        pa.array([row.first_sentence for row in rows], pa.int32()),
        pa.array([row.sentences for row in rows], pa.int32()),
    ]
    return pa.record_batch(columns, schema=schema)


def _token_lists(sequences: list[npt.NDArray[np.integer]], token: Any) -> Any:
    offsets = np.zeros(len(sequences) + 1, dtype=np.int32)
    np.cumsum([len(sequence) for sequence in sequences], out=offsets[1:])
    values = np.concatenate(sequences).astype(token.to_pandas_dtype())
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


class SegmentStore:
    """A store gives segments by number, straight from the memory-mapped file.

    Raises:
        StorageError: The file is missing, damaged, or no store of this version.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._reader = pa.ipc.open_file(pa.memory_map(str(self.path)))
            self._check_schema(self._reader.schema)
            self._columns = [_Columns(self._reader.get_batch(n)) for n in range(self._reader.num_record_batches)]
        except FileNotFoundError:
            raise StorageError(f"{self.path}: no such file; prepare the data first") from None
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"{self.path}: damaged or not a segment store ({error}); prepare the data again"
            ) from None
        ends = np.cumsum([0, *(len(columns) for columns in self._columns)])
        self._starts = ends[:-1]
        self._count = int(ends[-1])

    def checksum(self) -> str:
        """Returns a digest of all token ids and lengths; names of documents and the layout of the file do not count."""
        digest = hashlib.sha256()
        for columns in self._columns:
            columns.add_to(digest)
        return digest.hexdigest()

    def _check_schema(self, schema: Any) -> None:
        metadata = schema.metadata or {}
        found = metadata.get(_FORMAT_KEY, b"none").decode("utf-8", "replace")
        if found != str(FORMAT):
            raise StorageError(
                f"{self.path}: segment format {found}, this version reads {FORMAT}; prepare the data again"
            )
        if not schema.equals(_schema(int(metadata.get(_VOCABULARY_KEY, b"0")))):
            raise StorageError(f"{self.path}: its columns are not those of a segment store; prepare the data again")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Segment:
        if not -self._count <= index < self._count:
            raise IndexError(f"segment {index} of {self._count} in {self.path}")
        index %= self._count
        batch = int(np.searchsorted(self._starts, index, side="right")) - 1
        return self._columns[batch].segment(index - int(self._starts[batch]))

    @property
    def source_lengths(self) -> TokenCounts:
        """The number of source tokens of every segment, (N,)."""
        return self._lengths("source")

    @property
    def target_lengths(self) -> TokenCounts:
        """The number of target tokens of every segment, (N,)."""
        return self._lengths("target")

    def _lengths(self, side: str) -> TokenCounts:
        parts = [np.diff(columns.offsets[side]) for columns in self._columns]
        return np.concatenate([np.zeros(0, dtype=np.int32), *parts])


class _Columns:
    """The columns of one record batch as views into the file."""

    def __init__(self, batch: Any) -> None:
        batch.validate(full=True)  # names of documents, too: no checksum covers them
        self._batch = batch
        self.offsets: dict[str, npt.NDArray[np.int32]] = {}
        self._values: dict[str, npt.NDArray[np.integer]] = {}
        for side in ("source", "target"):
            column = batch.column(side)
            offsets, values = column.offsets.to_numpy(), column.values.to_numpy()
            if (
                len(offsets) != len(batch) + 1
                or np.any(np.diff(offsets) < 1)
                or offsets[0] < 0
                or offsets[-1] > len(values)
            ):
                raise ValueError("list offsets out of order")
            self.offsets[side], self._values[side] = offsets, values

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def add_to(self, digest: Any) -> None:
        """Adds lengths and token ids to a digest, in the byte order of Arrow files on every machine."""
        for side in ("source", "target"):
            offsets = self.offsets[side]
            digest.update(np.diff(offsets).astype("<i4").tobytes())
            digest.update(self._values[side][offsets[0] : offsets[-1]].astype("<i4").tobytes())

    def segment(self, row: int) -> Segment:
        source, target = (
            self._values[side][self.offsets[side][row] : self.offsets[side][row + 1]] for side in ("source", "target")
        )
        document, first, sentences = (
            self._batch.column(name)[row].as_py() for name in ("document", "first_sentence", "sentences")
        )
        return Segment(document, first, sentences, source, target)
