"""Random joins: short documents put together, in random order, to texts as long as a segment allows.

    join_documents: random

Joined documents need no context. They test whether a model finds the few right slots among many.
The train split is stored unjoined, and each epoch joins it anew, as a function of (seed, epoch).
The other splits are joined once, as a function of `join_seed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from reluformer.translation.batches import Indices, Lengths, TokenPair
from reluformer.translation.document import Document
from reluformer.translation.segments import EncodedDocument, Tokens, encode_documents
from reluformer.translation.tokenizer import END, SEPARATOR, Tokenizer

_ENTROPY_OF_JOINS, _ENTROPY_OF_LIMITS = 1, 2  # the batches of the same seed and epoch draw other numbers


def random_order(count: int, *seeds: int) -> Indices:
    """Returns the numbers from 0 to `count` - 1 in an order that depends on `seeds` alone, (count,)."""
    # raw bits, because numpy keeps those equal between versions, but not its own shuffling
    bits = np.random.PCG64(np.random.SeedSequence([*seeds, _ENTROPY_OF_JOINS]))
    return np.argsort(bits.random_raw(count), kind="stable").astype(np.int64)


def random_limits(count: int, shortest: int, most: int, *seeds: int) -> Indices:
    """Returns lengths from `shortest` to `most`, drawn evenly on a logarithmic scale, (count,)."""
    bits = np.random.PCG64(np.random.SeedSequence([*seeds, _ENTROPY_OF_LIMITS]))
    shares = (bits.random_raw(count) >> np.uint64(11)) / 2.0**53
    return np.floor(shortest * ((most + 1) / shortest) ** shares).astype(np.int64)


def fill(
    source_lengths: Lengths, target_lengths: Lengths, order: Sequence[int] | Indices, most: int | Indices
) -> list[Indices]:
    """Puts texts together in the given order, as long as neither side has more than `most` tokens.

    Args:
        source_lengths: Source tokens of every text with its end, (N,).
        target_lengths: Target tokens of every text with its end, (N,).
        order: The numbers of the texts to join, in the order of the joins.
        most: The most tokens of a join on either side, or of each join, (N,). A longer text stands alone.

    Returns:
        The numbers of the texts of each join. Together they are `order`.

    Example:
        >>> from reluformer.translation.joins import fill
        >>> [join.tolist() for join in fill([3, 4, 5], [3, 4, 5], [2, 0, 1], most=8)]
        [[2, 0], [1]]
    """
    order = np.asarray(order, dtype=np.int64)
    sources, targets = (np.asarray(side)[order].tolist() for side in (source_lengths, target_lengths))
    limits = np.broadcast_to(most, len(order)).tolist()
    cuts, source, target = [0], 0, 0
    for place, (s, t) in enumerate(zip(sources, targets, strict=True)):
        source, target = source + s, target + t
        if place > cuts[-1] and max(source, target) > limits[len(cuts) - 1]:
            cuts.append(place)
            source, target = s, t
    return [order[start:end] for start, end in pairwise([*cuts, len(order)])] if len(order) else []


def join_encoded(documents: Iterable[EncodedDocument], most: int, seed: int) -> Iterator[EncodedDocument]:
    """Yields random joins of encoded documents; each has the id of its first document."""
    known = list(documents)
    for join in _joins(known, most, seed):
        yield EncodedDocument(known[join[0]].id, [pair for number in join for pair in known[number].pairs])


def join_texts(documents: Iterable[Document], tokenizer: Tokenizer, most: int, seed: int) -> Iterator[Document]:
    """Yields the random joins of `join_encoded` as text; each has the id of its first document."""
    known = list(documents)
    for join in text_joins(known, tokenizer, most, seed):
        members = [known[number] for number in join]
        target = tuple(sentence for member in members for sentence in member.tgt or ())
        yield Document(members[0].id, tuple(s for member in members for s in member.src), target)


def text_joins(documents: Sequence[Document], tokenizer: Tokenizer, most: int, seed: int) -> list[Indices]:
    """Returns the numbers of the documents of each random join.

    Args:
        documents: Documents with their translations.
        tokenizer: The tokenizer that counts their tokens.
        most: The most tokens of a join on either side.
        seed: Another seed gives other joins.
    """
    return _joins(list(encode_documents(documents, tokenizer)), most, seed)


def _joins(documents: Sequence[EncodedDocument], most: int, seed: int) -> list[Indices]:
    lengths = [[sum(len(pair[side]) + 1 for pair in document.pairs) for document in documents] for side in (0, 1)]
    return fill(lengths[0], lengths[1], random_order(len(documents), seed), most)


class Segments(Protocol):
    """Pairs by number, with their lengths; a `SegmentStore` is one."""

    @property
    def source_lengths(self) -> Lengths: ...
    @property
    def target_lengths(self) -> Lengths: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> TokenPair: ...


@dataclass(frozen=True, eq=False)
class JoinedPair:
    """A joined pair has the token ids of several units, with separators between them."""

    source: Tokens
    """(S,), ends with the end token."""
    target: Tokens
    """(T,), ends with the end token."""


class RandomJoins:
    """Random joins of the units of a store, anew in each epoch.

    Args:
        units: The texts that are joined.
        most: The most tokens of a join on either side.
        seed: Another seed gives other joins.
        lone: The share of the units that an epoch cuts into single sentences instead.
        shortest: Joins get lengths from this one up to `most`; None makes all as long as possible.

    Example:
        >>> import numpy as np
        >>> from reluformer.translation.joins import JoinedPair, RandomJoins
        >>> class Store(list):
        ...     source_lengths = target_lengths = [3, 3, 3]
        >>> store = Store(JoinedPair(np.array([n, n, 2]), np.array([n, n, 2])) for n in (7, 8, 9))
        >>> len(RandomJoins(store, most=6, seed=0).epoch(0))
        2
    """

    def __init__(self, units: Segments, most: int, seed: int, lone: float = 0.0, shortest: int | None = None) -> None:
        self._units = units
        self._most, self._seed, self._lone, self._shortest = most, seed, lone, shortest

    def epoch(self, number: int) -> JoinedEpoch:
        """Returns the joins of an epoch, counted from 0; every unit occurs in it once."""
        order = random_order(len(self._units), self._seed, number)
        lone = round(self._lone * len(order))
        most: int | Indices = self._most
        if self._shortest is not None:
            most = random_limits(len(order) - lone, self._shortest, self._most, self._seed, number)
        return JoinedEpoch(self._units, order[:lone], order[lone:], most)


class JoinedEpoch:
    """The pairs of one epoch: first the sentences that stand alone, then the joins."""

    def __init__(self, units: Segments, lone: Indices, joined: Indices, most: int | Indices) -> None:
        self._units = units
        sources, targets = np.asarray(units.source_lengths), np.asarray(units.target_lengths)
        self._sentences = [pair for number in lone for pair in _sentences(units[int(number)])]
        self._joins = fill(sources, targets, joined, most)
        self.source_lengths: npt.NDArray[np.int64] = np.array(
            [*(len(p.source) for p in self._sentences), *(sources[join].sum() for join in self._joins)], dtype=np.int64
        )
        """Source tokens of every pair, (N,)."""
        self.target_lengths: npt.NDArray[np.int64] = np.array(
            [*(len(p.target) for p in self._sentences), *(targets[join].sum() for join in self._joins)], dtype=np.int64
        )
        """Target tokens of every pair, (N,)."""

    def __len__(self) -> int:
        return len(self._sentences) + len(self._joins)

    def __getitem__(self, index: int) -> JoinedPair:
        if index < len(self._sentences):
            return self._sentences[index]
        members = [self._units[int(number)] for number in self._joins[index - len(self._sentences)]]
        return JoinedPair(_joined([m.source for m in members]), _joined([m.target for m in members]))


def _joined(sequences: Sequence[Tokens]) -> Tokens:
    """Returns the sequences as one, (sum of their lengths,): the end of each but the last becomes a separator."""
    tokens: Tokens = np.concatenate(sequences)
    tokens[np.cumsum([len(sequence) for sequence in sequences])[:-1] - 1] = SEPARATOR
    return tokens


def _sentences(unit: TokenPair) -> Iterator[JoinedPair]:
    """Yields the sentences of a unit, each with its end token."""
    sides = [np.split(side, np.flatnonzero(side == SEPARATOR) + 1) for side in (unit.source, unit.target)]
    for source, target in zip(*sides, strict=True):
        pair = JoinedPair(source.copy(), target.copy())
        pair.source[-1] = pair.target[-1] = END
        yield pair
