"""Sentence pairs that can be read but deserve a second look: copies, duplicates, odd lengths, test data in train.

Every pair of a corpus is checked. What is found is counted in a `Skipped` tally; from the train split it is dropped
where the recipe asks for it (`data.filters`). The embedded corpus is not checked: it repeats sentences on purpose.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from reluformer.translation.document import Document, Skipped, SkipReason
from reluformer.translation.recipe import FilterConfig

LENGTH_RATIO = 9.0
"""A pair is reported if one side has more than so many times the characters of the other."""
SHORT = 20
"""Pairs whose longer side has no more characters have any ratio."""
REMEMBERED = 2**20
"""Duplicates are looked for among so many different pairs, which bounds the memory."""


def pair_digest(src: str, tgt: str) -> bytes:
    """Returns 8 bytes that stand for a pair; they are the same on every machine.

    Example:
        >>> pair_digest("a", "b") == pair_digest("a", "b") != pair_digest("ab", "")
        True
    """
    return hashlib.blake2b(f"{src}\n{tgt}".encode(), digest_size=8).digest()


def pair_digests(documents: Iterable[Document]) -> Iterator[bytes]:
    """Yields the digest of every pair of the documents."""
    for document in documents:
        for src, tgt in zip(document.src, document.tgt or (), strict=True):
            yield pair_digest(src, tgt)


@dataclass
class PairChecks:
    """The checks of one split.

    Args:
        found: The tally of what is found and kept.
        skipped: The tally of what is dropped.
        filters: What is dropped; None only counts.
        held_out: Digests of the pairs of valid and test, for the train split.
    """

    found: Skipped
    skipped: Skipped
    filters: FilterConfig | None = None
    held_out: Collection[bytes] = ()
    _seen: set[bytes] = field(default_factory=set)

    def documents(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Yields the documents without the pairs that the filters drop; a document may become empty and is left out."""
        for document in documents:
            pairs = list(zip(document.src, document.tgt or (), strict=True))
            places = (f"document {document.id} sentence {number}" for number in range(1, len(pairs) + 1))
            kept = [pair for pair, place in zip(pairs, places, strict=True) if self._keeps(*pair, place)]
            if len(kept) == len(pairs):
                yield document
            elif kept:
                src, tgt = zip(*kept, strict=True)
                yield Document(document.id, src, tgt)

    def _keeps(self, src: str, tgt: str, place: str) -> bool:
        """Counts what is odd about a pair, and returns whether it stays."""
        if not all(unicodedata.is_normalized("NFC", sentence) for sentence in (src, tgt)):
            self.found.add(SkipReason.NOT_NFC, place)
        filters = self.filters or FilterConfig()
        dropped = self._odd(src, tgt, filters)
        for kept, drops, asked in dropped:
            if asked:
                self.skipped.add(drops, place)
                return False
            self.found.add(kept, place)
        return True

    def _odd(self, src: str, tgt: str, filters: FilterConfig) -> list[tuple[SkipReason, SkipReason, bool]]:
        """Returns for each finding its reason if it is kept, if it is dropped, and whether the recipe drops it."""
        digest = pair_digest(src, tgt)
        odd = []
        if src == tgt:
            odd.append((SkipReason.COPY_KEPT, SkipReason.COPY, filters.drop_copies))
        if digest in self._seen:
            odd.append((SkipReason.DUPLICATE_KEPT, SkipReason.DUPLICATE, filters.drop_duplicates))
        elif len(self._seen) < REMEMBERED:
            self._seen.add(digest)
        longer, shorter = max(len(src), len(tgt)), min(len(src), len(tgt))
        limit = LENGTH_RATIO if filters.max_length_ratio is None else filters.max_length_ratio
        if longer > SHORT and longer > limit * shorter:
            odd.append((SkipReason.RATIO_KEPT, SkipReason.RATIO, filters.max_length_ratio is not None))
        if digest in self.held_out:
            odd.append((SkipReason.HELD_OUT_KEPT, SkipReason.HELD_OUT, filters.drop_held_out))
        return odd
