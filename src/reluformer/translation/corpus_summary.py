"""The summary of a corpus: what it holds, what was left out of it and why, and what is odd about its sentence pairs.

Every pair of a corpus is checked for copies, duplicates, odd lengths and test data in the train split. What is found is
counted in a `Skipped` tally; from the train split it is dropped where the recipe asks for it (`data.filters`). The
embedded corpus is not checked, because it repeats sentences on purpose.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reluformer.translation.document import Document, Skipped, SkipReason
from reluformer.translation.recipe import FilterConfig, Split

LENGTH_RATIO = 9.0
"""A pair is reported if one side has more than so many times the characters of the other."""
SHORT = 20
"""Pairs whose longer side has no more characters have any ratio."""
WARNED_SHARE = 0.05
"""A split that lost more of its pairs is worth a warning."""
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


@dataclass
class SplitSummary:
    """The figures of one split; they are counted while it is read."""

    documents: int = 0
    sentences: int = 0
    segments: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    skipped: Skipped = field(default_factory=Skipped)
    found: Skipped = field(default_factory=Skipped)
    """What is odd and was kept."""
    segments_by_source: list[int] = field(default_factory=list)
    """The number of segments of each source, in the order of the recipe; they add up to `segments`."""

    @property
    def skipped_share(self) -> float:
        """Returns the share of the sentence pairs that were dropped."""
        counts = self.skipped.counts
        dropped = sum(
            count for reason, count in counts.items() if reason.endswith("pair dropped") or reason == SkipReason.COLUMNS
        )
        # sentences that fit into no segment are among those that were read
        total = self.sentences + dropped - counts.get(SkipReason.OVER_SEGMENT, 0)
        return dropped / total if total else 0.0

    @property
    def mean_length(self) -> float:
        """Returns the mean number of tokens of a segment, over both sides."""
        return (self.source_tokens + self.target_tokens) / (2 * self.segments) if self.segments else 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {
            **vars(self),
            "mean_length": round(self.mean_length, 2),
            "skipped": self.skipped.to_json(),
            "found": self.found.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SplitSummary:
        """Reads what `to_json` wrote."""
        return cls(
            documents=int(data["documents"]),
            sentences=int(data["sentences"]),
            segments=int(data["segments"]),
            source_tokens=int(data["source_tokens"]),
            target_tokens=int(data["target_tokens"]),
            skipped=Skipped.from_json(data["skipped"]),
            found=Skipped.from_json(data.get("found", {})),  # version 0.1 did not look
            segments_by_source=[int(n) for n in data.get("segments_by_source", [data["segments"]])],  # nor mixed
        )


@dataclass(frozen=True)
class CorpusSummary:
    """The figures of a prepared corpus. `reused` says that it was found already prepared."""

    directory: Path
    splits: dict[Split, SplitSummary]
    vocab_size: int
    tokenizer_fingerprint: str
    reused: bool = False
    missing: Path | None = None
    """A file of the corpus that is not there any more; the prepared corpus was used without it."""

    def table(self) -> Table:
        """Returns the figures by split as a table."""
        title = f"{escape(str(self.directory))}: vocabulary of {self.vocab_size:,}"
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("split")
        columns = ("documents", "sentences", "segments", "source tokens", "target tokens", "mean", "skipped")
        for name in columns:
            table.add_column(name, justify="right")
        for split, figures in self.splits.items():
            counts = (figures.documents, figures.sentences, figures.segments)
            tokens = (figures.source_tokens, figures.target_tokens)
            cells = [f"{count:,}" for count in (*counts, *tokens)]
            table.add_row(split, *cells, f"{figures.mean_length:.1f}", f"{sum(figures.skipped.counts.values()):,}")
        return table

    def skipped_table(self) -> Table | None:
        """Returns what was left out or changed, why, and where first; None when there is nothing to report."""
        return _tally_table("left out or changed", {split: figures.skipped for split, figures in self.splits.items()})

    def found_table(self) -> Table | None:
        """Returns what is odd about pairs that were kept, and where first; None when there is nothing to report."""
        return _tally_table("odd, but kept", {split: figures.found for split, figures in self.splits.items()})

    def warnings(self) -> list[str]:
        """Returns a sentence for each split that lost more than `WARNED_SHARE` of its pairs."""
        return [
            f"warning: {figures.skipped_share:.0%} of the pairs of the {split} split were skipped; check its files"
            for split, figures in self.splits.items()
            if figures.skipped_share > WARNED_SHARE
        ]

    def report(self) -> str | None:
        """Returns both tables and the warnings as text; None when there is nothing to report."""
        tables = [table for table in (self.skipped_table(), self.found_table()) if table is not None]
        if not tables:
            return None
        console = Console(file=StringIO(), width=80, color_system=None)
        with console.capture() as captured:
            for table in tables:
                console.print(table)
        return "\n".join([captured.get().rstrip("\n"), *self.warnings()])

    def to_json(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {
            "directory": str(self.directory),
            "vocab_size": self.vocab_size,
            "tokenizer": self.tokenizer_fingerprint,
            "reused": self.reused,
            "splits": {split: figures.to_json() for split, figures in self.splits.items()},
        }


def _tally_table(title: str, tallies: Mapping[Split, Skipped]) -> Table | None:
    table = Table(title=title)
    for name in ("split", "reason", "count", "first places"):
        table.add_column(name, justify="right" if name == "count" else "left")
    for split, tally in tallies.items():
        for reason, count in tally.counts.items():
            table.add_row(split, reason, f"{count:,}", escape("\n".join(tally.places[reason])))
    return table if table.row_count else None
