"""Preparation: from the files of a configuration to segments of token ids, once.

Everything streams: a corpus of any size passes through a few thousand sentences at a time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import reluformer
from reluformer.errors import DataError, StorageError
from reluformer.files import alone_in
from reluformer.translation.document import Document
from reluformer.translation.prepared import (
    FORMAT,
    MANIFEST,
    PreparedCorpus,
    SplitSummary,
    Summary,
    store_name,
    write_manifest,
)
from reluformer.translation.readers import read_documents
from reluformer.translation.recipe import CorpusSource, DataConfig, Split
from reluformer.translation.segments import Segment, cut, encode_documents
from reluformer.translation.skipped import Skipped
from reluformer.translation.store import write_segments
from reluformer.translation.tokenizer import Tokenizer

Progress = Callable[[str, int], None]
"""Called with what is being done ("tokenizer" or a split) and the sentence pairs read so far."""

_PROGRESS_EVERY = 1000


def prepare(config: DataConfig, directory: str | Path, progress: Progress | None = None) -> Summary:
    """Tokenise and cut all splits of a corpus into `directory`.

    The tokenizer is learned from the train split unless the configuration names one. A
    directory that holds the result of the same configuration and files is left as it is;
    a second process that prepares it at the same time waits for the first.
    """
    directory = Path(directory)
    config = config.resolved()
    report = progress or (lambda _what, _pairs: None)
    with alone_in(directory):
        key = _key(config)
        if (found := _already_prepared(directory, key)) is not None:
            return found
        (directory / MANIFEST).unlink(missing_ok=True)
        tokenizer = _tokenizer(config, report)
        tokenizer.save(directory)
        splits = {split: _prepare_split(config, split, tokenizer, directory, report) for split in config.splits}
        summary = Summary(directory, splits, tokenizer.vocab_size, tokenizer.fingerprint)
        write_manifest(summary, config, key)
    return summary


def _key(config: DataConfig) -> str:
    """Changes whenever the configuration, a file it names, or the format does."""
    inputs: dict[str, Any] = {split: _state(source) for split, source in config.splits.items()}
    if config.tokenizer.path is not None:
        inputs["tokenizer"] = Tokenizer.load(config.tokenizer.path).fingerprint
    state = {"format": FORMAT, "config": config.model_dump(mode="json"), "inputs": inputs}
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode("utf-8")).hexdigest()


def _state(source: CorpusSource) -> Any:
    """Size and time of each file; for generated documents, the version that generates them."""
    if source.embedded is not None:
        return reluformer.__version__
    try:
        return [(stat.st_size, stat.st_mtime_ns) for stat in map(Path.stat, source.files)]
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}; check the paths of the data configuration") from None


def _already_prepared(directory: Path, key: str) -> Summary | None:
    """What is there already, if it can be read and is of the same configuration and files."""
    try:
        found = PreparedCorpus(directory)
        for split in found.summary.splits:
            found.store(split)
    except StorageError:
        return None
    return replace(found.summary, reused=True) if found.key == key else None


def _tokenizer(config: DataConfig, report: Progress) -> Tokenizer:
    if config.tokenizer.path is not None:
        return Tokenizer.load(config.tokenizer.path)
    documents = _read(config, "train", Skipped())
    return Tokenizer.train(_sentences(_reported(documents, "tokenizer", report)), config.tokenizer)


def _read(config: DataConfig, split: Split, skipped: Skipped) -> Iterator[Document]:
    """The documents of a split; a `DataError` if there are none."""
    source = config.splits[split]
    languages = (config.source_lang, config.target_lang)
    count = 0
    for document in read_documents(source, limits=config.limits, skipped=skipped, languages=languages, split=split):
        count += 1
        yield document
    if not count:
        left_out = "".join(f"; {reason}: {number}" for reason, number in skipped.counts.items())
        raise DataError(f"{split}: no documents in {' and '.join(map(str, source.files)) or 'it'}{left_out}")


def _sentences(documents: Iterable[Document]) -> Iterator[str]:
    for document in documents:
        for src, tgt in zip(document.src, document.tgt or (), strict=True):
            yield src
            yield tgt


def _reported(documents: Iterable[Document], what: str, report: Progress) -> Iterator[Document]:
    pairs = told = 0
    for document in documents:
        pairs += len(document.src)
        if pairs - told >= _PROGRESS_EVERY:
            report(what, pairs)
            told = pairs
        yield document
    report(what, pairs)


def _prepare_split(
    config: DataConfig, split: Split, tokenizer: Tokenizer, directory: Path, report: Progress
) -> SplitSummary:
    summary = SplitSummary()
    documents = _counted(_reported(_read(config, split, summary.skipped), split, report), summary)
    encoded = encode_documents(documents, tokenizer)
    how = config.segments if split == "train" else config.segments.replace(lone_sentences=0.0)
    segments = cut(encoded, how, limits=config.limits, skipped=summary.skipped)
    write_segments(_measured(segments, summary), directory / store_name(split), tokenizer.vocab_size)
    if not summary.segments:
        most, alone = config.segments.segment_tokens, config.limits.sentence_tokens
        limit = f"limits.sentence_tokens={alone}" if most == "sentence" else f"segment_tokens={most}"
        raise DataError(f"{split}: every sentence is longer than {limit}; raise it")
    return summary


def _counted(documents: Iterable[Document], summary: SplitSummary) -> Iterator[Document]:
    for document in documents:
        summary.documents += 1
        summary.sentences += len(document.src)
        yield document


def _measured(segments: Iterable[Segment], summary: SplitSummary) -> Iterator[Segment]:
    for segment in segments:
        summary.segments += 1
        summary.source_tokens += len(segment.source)
        summary.target_tokens += len(segment.target)
        yield segment
