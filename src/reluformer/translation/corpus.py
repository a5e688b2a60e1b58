"""A corpus: read as documents, prepared once as segments of token ids, and opened for training.

Everything streams: a corpus of any size passes through a few thousand sentences at a time.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import reluformer
from reluformer.errors import ArgumentError, DataError, StorageError
from reluformer.files import alone_in, read_json, whole_file, write_text
from reluformer.translation import formats
from reluformer.translation.corpus_summary import CorpusSummary, PairChecks, SplitSummary, pair_digests
from reluformer.translation.document import Document, DocumentAssembler, Skipped
from reluformer.translation.embedded import generate
from reluformer.translation.formats import AlignedText, CorpusFormat
from reluformer.translation.joins import join_encoded, join_texts
from reluformer.translation.recipe import CorpusMixture, CorpusSource, DataConfig, EmbeddedOptions, Limits, Split
from reluformer.translation.segments import Segment, SegmentStore, cut, encode_documents, write_segments
from reluformer.translation.tokenizer import Tokenizer

FORMAT = 1
MANIFEST = "manifest.json"
_PROGRESS_EVERY = 1000
_NO_LIMITS = Limits(sentence_characters=10**9, document_sentences=10**9, document_bytes=2**31)

PrepareProgress = Callable[[str, int, int | None], None]
"""Called with what is being done ("tokenizer" or a split), the sentence pairs read so far, and about how many there
are, or None."""


def read_documents(
    source: CorpusSource | CorpusMixture,
    *,
    limits: Limits | None = None,
    skipped: Skipped | None = None,
    languages: tuple[str, str] = ("en", "de"),
    split: Split = "train",
) -> Iterator[Document]:
    """Reads the documents of a split, one at a time.

    Args:
        source: The files of the split, or the options of the embedded corpus. A mixture is read source by source.
        limits: How long a sentence and a document may be.
        skipped: The tally that counts what is dropped or changed.
        languages: Source and target language; they choose the sides of a TMX file.
        split: Which documents of the embedded corpus are generated.

    Raises:
        DataError: A file is damaged or misaligned; the message has file and line.

    Example:
        >>> from reluformer.translation.corpus import read_documents
        >>> from reluformer.translation.recipe import CorpusSource
        >>> source = CorpusSource(embedded={"documents": 2, "sentences": (3, 3)})
        >>> [len(document.src) for document in read_documents(source)]
        [3, 3]
    """
    if isinstance(source, CorpusMixture):
        options: dict[str, Any] = {"limits": limits, "skipped": skipped, "languages": languages, "split": split}
        return chain.from_iterable(read_documents(one, **options) for one in source.sources)
    if source.embedded is not None:
        return _generated_documents(source.embedded, split)
    assembler = DocumentAssembler(
        limits or Limits(), Skipped() if skipped is None else skipped, source.documents == "line"
    )
    name = AlignedText.name if source.kind == "lines" else source.kind
    codec = formats.get(name, source=languages[0], target=languages[1])
    assert isinstance(codec, CorpusFormat)
    return codec.read_corpus(source.files, assembler)


def _generated_documents(options: EmbeddedOptions, split: Split) -> Iterator[Document]:
    for generated in generate(options.documents, seed=options.seed, split=split, sentences=options.sentences):
        yield generated.document


class PreparedCorpus:
    """A prepared corpus is what `prepare` wrote into a directory: manifest, tokenizer and segments.

    Raises:
        StorageError: The directory holds no prepared corpus, or a damaged one.
    """

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
            self._checksums = dict(manifest.get("checksums", {}))  # version 0.1 wrote none
            splits: dict[Split, SplitSummary] = {
                name: SplitSummary.from_json(manifest["splits"][name]) for name in self.config.splits
            }
            self.summary = CorpusSummary(
                self.directory, splits, int(manifest["vocab_size"]), str(manifest["tokenizer"])
            )
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
        """Opens the segments of a split."""
        self._check_split(split)
        store = SegmentStore(self.directory / store_name(split))
        if len(store) != self.summary.splits[split].segments:
            raise StorageError(f"{store.path}: {len(store)} segments are not those of the manifest; prepare it again")
        return store

    def checksum(self, split: Split) -> str:
        """Returns the checksum of the segments of a split, after reading all of them.

        Raises:
            StorageError: It is not the checksum that the manifest has.
        """
        store = self.store(split)
        found = store.checksum()
        if self._checksums.get(split, found) != found:
            raise StorageError(f"{store.path}: damaged, its checksum is not that of the manifest; prepare it again")
        return found

    def documents(self, split: Split) -> Iterator[Document]:
        """Reads the texts of a split; `summary` counted their problems.

        Those of valid and test are kept beside the segments. Others come from the files of the configuration.
        Random joins of the valid and test splits are documents, too.
        """
        self._check_split(split)
        config = self.config
        if texts_name(split) in self._bytes:
            texts = CorpusSource(path=self.directory / texts_name(split))
            found = read_documents(texts, limits=_NO_LIMITS)
        else:
            languages = (config.source_lang, config.target_lang)
            found = read_documents(config.splits[split], limits=config.limits, languages=languages, split=split)
        how = config.segments
        if how.join_documents != "random" or split == "train":
            return found
        return join_texts(found, self.tokenizer, int(how.segment_tokens), how.join_seed)

    def _check_split(self, split: Split) -> None:
        if split not in self.summary.splits:
            raise ArgumentError(f"{self.directory} has no split '{split}'; prepared: {', '.join(self.summary.splits)}")


def store_name(split: Split) -> str:
    """Returns the file name of the segments of a split."""
    return f"{split}.arrow"


def texts_name(split: Split) -> str:
    """Returns the file name of the texts of a split, which only valid and test have."""
    return f"{split}.texts.jsonl.gz"


def write_manifest(summary: CorpusSummary, config: DataConfig, key: str) -> None:
    """Writes the manifest, which declares a directory finished; it is written last."""
    files = [store_name(split) for split in summary.splits]
    files += [texts_name(split) for split, source in config.splits.items() if _keeps_texts(split, source)]
    manifest = {
        "format": FORMAT,
        "key": key,
        "config": config.model_dump(mode="json"),
        "bytes": {name: (summary.directory / name).stat().st_size for name in files},
        "checksums": {
            split: SegmentStore(summary.directory / store_name(split)).checksum() for split in summary.splits
        },
        **replace(summary, reused=False).to_json(),
    }
    del manifest["directory"], manifest["reused"]
    write_text(summary.directory / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")


def prepare(config: DataConfig, directory: str | Path, progress: PrepareProgress | None = None) -> CorpusSummary:
    """Tokenizes all splits of a corpus and cuts them into segments.

    A directory that holds the result of the same configuration and files is left as it is. So
    is one whose files are gone, if the configuration names the same files in any folder.
    A second process that prepares it at the same time waits for the first.

    Args:
        config: The corpus. Its tokenizer is learned from the train split unless it names one.
        directory: Where the segments, the tokenizer and the manifest are written.
        progress: Called with what is being done, the sentence pairs read so far, and about how many there are, or None.

    Returns:
        The figures of every split, with what was skipped and why.

    Raises:
        DataError: A file cannot be read as it is; the message has file and line.
        StorageError: The directory cannot be written, or the corpus in it is damaged and its files are gone.
    """
    directory = Path(directory)
    config = config.resolved()
    report = progress or (lambda _what, _pairs, _total: None)
    with alone_in(directory):
        if (found := _prepared_alone(directory, config)) is not None:
            return found
        key = _key(config)
        if (found := _already_prepared(directory, key)) is not None:
            return found
        (directory / MANIFEST).unlink(missing_ok=True)
        tokenizer, pairs = _tokenizer(config, report)
        tokenizer.save(directory)
        splits = {
            split: _prepare_split(config, split, tokenizer, directory, report, pairs if split == "train" else None)
            for split in config.splits
        }
        summary = CorpusSummary(directory, splits, tokenizer.vocab_size, tokenizer.fingerprint)
        write_manifest(summary, config, key)
    return summary


def _key(config: DataConfig) -> str:
    """Returns a hash that changes with the configuration, the files that it names, and the format."""
    inputs: dict[str, Any] = {split: _split_state(source) for split, source in config.splits.items()}
    if config.tokenizer.path is not None:
        inputs["tokenizer"] = Tokenizer.load(config.tokenizer.path).fingerprint
    state = {"format": FORMAT, "config": config.identity(), "inputs": inputs}
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode("utf-8")).hexdigest()


def _split_state(split: CorpusSource | CorpusMixture) -> Any:
    if isinstance(split, CorpusMixture):
        return [_state(source) for source in split.sources]
    return _state(split)


def _state(source: CorpusSource) -> Any:
    """Returns size and time of each file; for generated documents, the version that generates them."""
    if source.embedded is not None:
        return reluformer.__version__
    try:
        return [(stat.st_size, stat.st_mtime_ns) for stat in map(Path.stat, source.files)]
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}; check the paths of the data configuration") from None


def _already_prepared(directory: Path, key: str) -> CorpusSummary | None:
    """Returns the summary of a directory that was prepared from the same configuration and files, else None."""
    try:
        found = _verified(directory)
    except StorageError:
        return None
    return replace(found.summary, reused=True) if found.key == key else None


def _prepared_alone(directory: Path, config: DataConfig) -> CorpusSummary | None:
    """Returns the summary of a prepared corpus whose files are not there any more, as in a run that was moved.

    Raises:
        StorageError: The prepared corpus is damaged and cannot be prepared again.
    """
    files = [file for split in config.splits.values() for file in split.files]
    if config.tokenizer.path is not None:
        files.append(config.tokenizer.path)
    missing = next((file for file in files if not file.exists()), None)
    if missing is None or not (directory / MANIFEST).exists():
        return None
    try:
        found = _verified(directory)
    except StorageError as error:
        what = str(error).rpartition("; ")[0] or str(error)
        raise StorageError(
            f"{what}. The prepared corpus is damaged, and {missing}, which it was made from, is not there any more; "
            f"copy {directory} again from where it is whole, or bring the files of the corpus back"
        ) from None
    if _without_folders(found.config) != _without_folders(config):
        return None
    return replace(found.summary, reused=True, missing=missing)


def _verified(directory: Path) -> PreparedCorpus:
    """Returns the prepared corpus of a directory; raises `StorageError` if there is none, or it is damaged."""
    found = PreparedCorpus(directory)
    for split in found.summary.splits:
        found.checksum(split)
    return found


def _without_folders(config: DataConfig) -> Any:
    """Returns what decides a corpus, with the names of its files instead of their paths."""

    def named(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {inner: named(part, inner) for inner, part in value.items()}
        if isinstance(value, list):
            return [named(part) for part in value]
        return Path(value).name if key in ("path", "src", "tgt") and value is not None else value

    return named(config.identity())


def _tokenizer(config: DataConfig, report: PrepareProgress) -> tuple[Tokenizer, int | None]:
    """Returns the tokenizer, and the number of sentence pairs if it was learned from all of them."""
    if config.tokenizer.path is not None:
        return Tokenizer.load(config.tokenizer.path), None
    count: list[int] = []
    summary = SplitSummary()
    checks = _checks(config, "train", summary)
    sources = config.splits["train"].sources
    read = [_read(config, "train", source, summary.skipped) for source in sources]
    documents = _by_turns(read)
    if checks is not None:
        documents = checks.documents(documents)
    reported = _reported(documents, "tokenizer", report, count=count)
    return Tokenizer.train(_sentences(reported), config.tokenizer), count[0] if count else None


def _by_turns(streams: Sequence[Iterator[Document]]) -> Iterator[Document]:
    """Yields a document of each source in turn, so that a tokenizer of the first sentences sees all sources."""
    for documents in zip_longest(*streams):
        yield from (document for document in documents if document is not None)


def _read(config: DataConfig, split: Split, source: CorpusSource, skipped: Skipped) -> Iterator[Document]:
    """Reads the documents of one source of a split; raises a `DataError` if there are none."""
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


def _reported(
    documents: Iterable[Document],
    what: str,
    report: PrepareProgress,
    before: int = 0,
    total: int | None = None,
    count: list[int] | None = None,
) -> Iterator[Document]:
    """Yields documents and reports how many pairs they have; at their end `count` receives this number."""
    pairs = told = before
    for document in documents:
        pairs += len(document.src)
        if pairs - told >= _PROGRESS_EVERY:
            report(what, pairs, total)
            told = pairs
        yield document
    report(what, pairs, total)
    if count is not None:
        count.append(pairs)


def _prepare_split(
    config: DataConfig, split: Split, tokenizer: Tokenizer, directory: Path, report: PrepareProgress, pairs: int | None
) -> SplitSummary:
    summary = SplitSummary()
    how = config.segments if split == "train" else config.segments.replace(lone_sentences=0.0)
    joins = how.join_documents == "random"
    cuts = how
    if joins:  # training joins the train split itself, anew each epoch
        cuts = how.replace(join_documents=False, join_seed=0, join_shortest=None, lone_sentences=0.0)
    checks = _checks(config, split, summary)

    def segments() -> Iterator[Segment]:
        """Yields those of one source after the other; no segment holds documents of two."""
        for number, source in enumerate(config.splits[split].sources):
            read = _reported(_read(config, split, source, summary.skipped), split, report, summary.sentences, pairs)
            documents = _counted(read if checks is None else checks.documents(read), summary)
            if texts is not None:
                documents = _written(documents, texts)
            encoded = encode_documents(documents, tokenizer)
            if joins and split != "train":
                encoded = join_encoded(encoded, int(how.segment_tokens), how.join_seed)
            summary.segments_by_source.append(0)
            for segment in cut(encoded, cuts, limits=config.limits, skipped=summary.skipped):
                summary.segments_by_source[number] += 1
                yield segment

    with ExitStack() as stack:
        texts = None
        if _keeps_texts(split, config.splits[split]):
            file = stack.enter_context(whole_file(directory / texts_name(split)))
            texts = stack.enter_context(gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0))
        write_segments(_measured(segments(), summary), directory / store_name(split), tokenizer.vocab_size)
    if not summary.segments:
        most, alone = config.segments.segment_tokens, config.limits.sentence_tokens
        limit = f"limits.sentence_tokens={alone}" if most == "sentence" else f"segment_tokens={most}"
        raise DataError(f"{split}: every sentence is longer than {limit}; raise it")
    return summary


def _keeps_texts(split: Split, source: CorpusSource | CorpusMixture) -> bool:
    """Returns whether the texts of a split are kept: those that translations are compared with, unless generated."""
    return split != "train" and source.embedded is None


def _written(documents: Iterable[Document], texts: gzip.GzipFile) -> Iterator[Document]:
    for document in documents:
        entry = {"id": document.id, "src": document.src, "tgt": document.tgt}
        texts.write(json.dumps(entry, ensure_ascii=False).encode("utf-8") + b"\n")
        yield document


def _checks(config: DataConfig, split: Split, summary: SplitSummary) -> PairChecks | None:
    """Returns what counts odd pairs of a split, and drops from the train split what the recipe asks for."""
    if config.splits[split].embedded is not None:
        return None
    if split != "train":
        return PairChecks(summary.found, summary.skipped)
    held_out = {
        digest
        for other, given in config.splits.items()
        if other != "train" and given.embedded is None
        for source in given.sources
        for digest in pair_digests(_read(config, other, source, Skipped()))
    }
    return PairChecks(summary.found, summary.skipped, config.filters, held_out)


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
