"""A prepared corpus on disk: its manifest, its tokenizer and its segments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from reluformer.errors import ArgumentError, StorageError
from reluformer.files import read_json, write_text
from reluformer.translation.document import Document
from reluformer.translation.readers import read_documents
from reluformer.translation.recipe import DataConfig, Split
from reluformer.translation.skipped import Skipped
from reluformer.translation.store import SegmentStore
from reluformer.translation.tokenizer import Tokenizer

FORMAT = 1
MANIFEST = "manifest.json"


@dataclass
class SplitSummary:
    """What one split came to; filled while it is read."""

    documents: int = 0
    sentences: int = 0
    segments: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    skipped: Skipped = field(default_factory=Skipped)

    @property
    def mean_length(self) -> float:
        """Tokens of a segment, mean of both sides."""
        return (self.source_tokens + self.target_tokens) / (2 * self.segments) if self.segments else 0.0

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {**vars(self), "mean_length": round(self.mean_length, 2), "skipped": self.skipped.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SplitSummary:
        """Back from `to_json`."""
        return cls(
            documents=int(data["documents"]),
            sentences=int(data["sentences"]),
            segments=int(data["segments"]),
            source_tokens=int(data["source_tokens"]),
            target_tokens=int(data["target_tokens"]),
            skipped=Skipped.from_json(data["skipped"]),
        )


@dataclass(frozen=True)
class Summary:
    """What a preparation made of a corpus. `reused` when it was found already prepared."""

    directory: Path
    splits: dict[Split, SplitSummary]
    vocab_size: int
    tokenizer_fingerprint: str
    reused: bool = False

    def table(self) -> Table:
        """Figures by split."""
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
        """What was left out or changed, why and where first; None when there is nothing to tell."""
        table = Table(title="left out or changed")
        for name in ("split", "reason", "count", "first places"):
            table.add_column(name, justify="right" if name == "count" else "left")
        for split, figures in self.splits.items():
            for reason, count in figures.skipped.counts.items():
                table.add_row(split, reason, f"{count:,}", escape("\n".join(figures.skipped.places[reason])))
        return table if table.row_count else None

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "directory": str(self.directory),
            "vocab_size": self.vocab_size,
            "tokenizer": self.tokenizer_fingerprint,
            "reused": self.reused,
            "splits": {split: figures.to_json() for split, figures in self.splits.items()},
        }


class PreparedCorpus:
    """What `prepare` wrote into a directory."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        path = self.directory / MANIFEST
        if not path.exists():
            raise StorageError(f"{self.directory}: no prepared corpus here; run `reluformer prepare` first")
        manifest = read_json(path, what="manifest", version=FORMAT)
        try:
            self.key = str(manifest["key"])
            self.config = DataConfig.parse(manifest["config"], where=str(path))
            self._bytes = {name: int(size) for name, size in manifest["bytes"].items()}
            splits: dict[Split, SplitSummary] = {
                name: SplitSummary.from_json(manifest["splits"][name]) for name in self.config.splits
            }
            self.summary = Summary(self.directory, splits, int(manifest["vocab_size"]), str(manifest["tokenizer"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StorageError(f"{path}: the manifest is damaged ({error}); prepare the data again") from None
        self._check_files()
        self.tokenizer = Tokenizer.load(self.directory)
        if self.tokenizer.fingerprint != self.summary.tokenizer_fingerprint:
            raise StorageError(f"{self.directory}: holds another tokenizer than it was prepared with; prepare it again")

    def _check_files(self) -> None:
        for name, size in self._bytes.items():
            path = self.directory / name
            found = path.stat().st_size if path.is_file() else None
            if found != size:
                state = "missing" if found is None else f"{found} bytes instead of {size}"
                raise StorageError(f"{path}: {state}; prepare the data again")

    def store(self, split: Split) -> SegmentStore:
        """The segments of a split."""
        self._check_split(split)
        store = SegmentStore(self.directory / store_name(split))
        if len(store) != self.summary.splits[split].segments:
            raise StorageError(f"{store.path}: {len(store)} segments are not those of the manifest; prepare it again")
        return store

    def documents(self, split: Split) -> Iterator[Document]:
        """The texts of a split, from the files that the configuration names; problems were counted in `summary`."""
        self._check_split(split)
        config = self.config
        languages = (config.source_lang, config.target_lang)
        return read_documents(config.splits[split], limits=config.limits, languages=languages, split=split)

    def _check_split(self, split: Split) -> None:
        if split not in self.summary.splits:
            raise ArgumentError(f"{self.directory} has no split '{split}'; prepared: {', '.join(self.summary.splits)}")


def store_name(split: Split) -> str:
    """File name of a split's segments."""
    return f"{split}.arrow"


def write_manifest(summary: Summary, config: DataConfig, key: str) -> None:
    """Declare a directory finished; the last thing that a preparation writes."""
    files = [store_name(split) for split in summary.splits]
    manifest = {
        "format": FORMAT,
        "key": key,
        "config": config.model_dump(mode="json"),
        "bytes": {name: (summary.directory / name).stat().st_size for name in files},
        **replace(summary, reused=False).to_json(),
    }
    del manifest["directory"], manifest["reused"]
    write_text(summary.directory / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
