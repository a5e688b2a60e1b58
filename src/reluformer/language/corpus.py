"""Text on disk: documents, and their tokens as one stream for each split.

A document is `<s>`, its tokens, `</s>`; a stream is one document after the other. `prepare` writes each stream as plain
numbers, which are mapped into memory and never read as a whole. A row is `context` + 1 consecutive tokens: what the
model reads, and one more, because each token predicts the next one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reluformer import files
from reluformer.errors import DataError, StorageError
from reluformer.language.recipe import LanguageDataConfig, TextSource
from reluformer.translation.embedded import generate
from reluformer.translation.recipe import Split
from reluformer.translation.tokenizer import BEGIN, END, Tokenizer

SUMMARY, FORMAT = "language.json", 1
_FIGURES = {"documents": int, "tokens": int, "checksum": str}
"""What the summary has of each split."""
_AT_ONCE = 1000
_MOST_CHARACTERS = 10**8
"""The longest document, in characters, and the longest line, in bytes."""
_MOST_SHOWN = 200
"""So many characters of a line are shown in a message."""

Tokens = npt.NDArray[np.int32]


def documents(sources: Sequence[TextSource], split: str) -> Iterator[str]:
    """Yields the documents of a split, without blank ones.

    Raises:
        DataError: A file cannot be read, is no UTF-8, or a line is no document; the message has its place.
    """
    for source in sources:
        for text in _embedded(source, split) if source.embedded is not None else _read(source):
            if text.strip():
                yield text


def _embedded(source: TextSource, split: str) -> Iterator[str]:
    assert source.embedded is not None
    name: Split = "test" if split == "test" else "valid" if split == "valid" else "train"
    options = source.embedded
    for document in generate(options.documents, seed=options.seed, split=name, sentences=options.sentences):
        yield " ".join(document.document.src)


def _read(source: TextSource) -> Iterator[str]:
    path = source.path
    assert path is not None
    lines = _lines(path)
    yield from _json_lines(lines, source) if source.kind == "jsonl" else _text(lines, source)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in files.numbered_lines(path, _MOST_CHARACTERS):
        if line is None:
            raise DataError(f"{path}:{number}: a line of more than {_MOST_CHARACTERS:,} bytes; split the document")
        yield number, files.decode_line(line, path, number)


def _text(lines: Iterator[tuple[int, str]], source: TextSource) -> Iterator[str]:
    document: list[str] = []
    size = 0
    for number, line in lines:
        if source.documents == "line":
            yield line
        elif line.strip() or source.documents == "file":
            document.append(line)
            size += len(line) + 1
            if size > _MOST_CHARACTERS:
                raise DataError(f"{source.path}:{number}: a document of more than {_MOST_CHARACTERS:,} characters")
        else:
            yield "\n".join(document)
            document, size = [], 0
    if document:
        yield "\n".join(document)


def _json_lines(lines: Iterator[tuple[int, str]], source: TextSource) -> Iterator[str]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            values = files.parse_json(line)
        except ValueError as error:
            raise DataError(f"{source.path}:{number}: is not JSON: {error}") from None
        text = values.get(source.field) if isinstance(values, dict) else None
        if isinstance(text, list) and all(isinstance(sentence, str) for sentence in text):
            text = " ".join(text)
        if not isinstance(text, str):
            known = ", ".join(values) if isinstance(values, dict) else "no keys"
            raise DataError(
                f"{source.path}:{number}: has no text under '{source.field}' (it has {known[:_MOST_SHOWN]}); "
                "set field in the source"
            )
        if files.HALF_PAIR.search(text):
            raise DataError(f"{source.path}:{number}: half of a surrogate pair is no character; repair the line")
        yield text


def prepare(config: LanguageDataConfig, directory: Path) -> dict[str, Any]:
    """Writes tokenizer and streams of a corpus into `directory`, unless the same corpus is there already, undamaged.

    A second process that prepares it at the same time waits for the first. Other files in the directory are kept.

    Args:
        config: The corpus, with absolute paths.
        directory: Where to write.

    Returns:
        The summary: for each split numbers of documents and tokens and a checksum.

    Raises:
        DataError: A file cannot be read.
        StorageError: The directory cannot be written, or the corpus in it is damaged and its files are gone.
    """
    given = {name: value for name, value in config.model_dump(mode="json").items() if name not in ("context", "packed")}
    with files.alone_in(directory):
        state = _state(config)
        if (found := _prepared(directory, given, state)) is not None:
            return found
        (directory / SUMMARY).unlink(missing_ok=True)
        if config.tokenizer.path is not None:
            tokenizer = Tokenizer.load(config.tokenizer.path)
        else:
            tokenizer = Tokenizer.train(documents(config.train, "train"), config.tokenizer)
        tokenizer.save(directory)
        splits = {
            name: _write_stream(directory / f"{name}.tokens", tokenizer, documents(sources, name))
            for name, sources in config.splits.items()
        }
        summary = {"format": FORMAT, "config": given, "files": state, "tokenizer": tokenizer.fingerprint}
        files.write_json(directory / SUMMARY, {**summary, "splits": splits})
    return {**summary, "splits": splits}


def _state(config: LanguageDataConfig) -> dict[str, list[int]] | None:
    """Returns size and time of each file of a corpus, or None if one of them is gone."""
    paths = [source.path for sources in config.splits.values() for source in sources if source.path is not None]
    try:
        return {str(path): [path.stat().st_size, path.stat().st_mtime_ns] for path in paths}
    except OSError:
        return None


def _prepared(directory: Path, given: dict[str, Any], state: dict[str, list[int]] | None) -> dict[str, Any] | None:
    """Returns the summary of a directory that holds the same corpus, whole, else None."""
    if not (directory / SUMMARY).is_file():
        return None
    try:
        corpus = LanguageCorpus(directory)
        summary = corpus.summary
        if summary.get("config") != given or state not in (None, summary.get("files", state)):
            return None
        for split in summary["splits"]:
            corpus.stream(split)
        if corpus.tokenizer.fingerprint != summary["tokenizer"]:
            raise StorageError(f"{directory}: holds another tokenizer than it was prepared with")
    except StorageError as error:
        if state is not None:
            return None
        what = str(error).rpartition("; ")[0] or str(error)
        raise StorageError(
            f"{what}. The files from which it was prepared are not there any more; copy {directory} again from where "
            "it is whole, or bring the files of the corpus back"
        ) from None
    return summary


def _write_stream(path: Path, tokenizer: Tokenizer, texts: Iterator[str]) -> dict[str, Any]:
    """Writes the tokens of all documents and returns their numbers and a checksum."""
    tokens = count = characters = 0
    checksum = hashlib.sha256()
    with files.whole_file(path) as file:
        while part := list(islice(texts, _AT_ONCE)):
            for text, ids in zip(part, tokenizer.encode_batch(part), strict=True):
                content = np.array([BEGIN, *ids, END], dtype="<i4").tobytes()
                checksum.update(content)
                file.write(content)
                count, tokens, characters = count + 1, tokens + len(ids) + 2, characters + len(text)
    return {"documents": count, "tokens": tokens, "characters": characters, "checksum": checksum.hexdigest()}


class LanguageCorpus:
    """A prepared corpus.

    Raises:
        StorageError: The directory holds no prepared corpus, or its summary is damaged.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._streams: dict[str, Tokens] = {}
        path = directory / SUMMARY
        self.summary = files.read_json(path, what="summary of a corpus", version=FORMAT)
        try:
            for found in self.summary["splits"].values():
                for name, kind in _FIGURES.items():
                    if not isinstance(found[name], kind):
                        raise TypeError(f"{name} is no {kind.__name__}")
            if not isinstance(self.summary["tokenizer"], str):
                raise TypeError("tokenizer is no str")
        except (KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"{path}: damaged ({error}); prepare the corpus again") from None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the corpus."""
        return Tokenizer.load(self.directory)

    def has(self, split: str) -> bool:
        """Returns whether the corpus has this split."""
        return split in self.summary["splits"]

    def stream(self, split: str) -> Tokens:
        """Returns the tokens of a split, mapped from disk. The first time all of them are read and checked.

        Raises:
            DataError: The corpus has no such split.
            StorageError: The file is missing, damaged, or was changed.
        """
        if not self.has(split):
            raise DataError(f"the corpus has no {split} split; give data.{split} in the recipe")
        if split not in self._streams:
            self._streams[split] = self._checked_stream(split)
        return self._streams[split]

    def _checked_stream(self, split: str) -> Tokens:
        path, summary = self.directory / f"{split}.tokens", self.summary["splits"][split]
        tokens: Tokens = np.zeros(0, np.int32)
        try:
            files.check_regular(path)
            whole = path.stat().st_size == 4 * summary["tokens"]
            if whole and summary["tokens"]:
                tokens = np.memmap(path, dtype="<i4", mode="r")
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"{path}: cannot be read: {error.strerror}; prepare the corpus again") from None
        if not whole or hashlib.sha256(tokens.data).hexdigest() != summary["checksum"]:
            raise StorageError(f"{path}: damaged, or changed since it was written; prepare the corpus again")
        return tokens

    def rows(self, split: str, context: int) -> Tokens:
        """Returns the rows of a split, (rows, context + 1); what is left at the end is dropped.

        Raises:
            DataError: The split is shorter than one row.
        """
        stream = self.stream(split)
        count = (len(stream) - 1) // context
        if count < 1:
            raise DataError(
                f"the {split} split has {len(stream):,} tokens, and a row takes {context + 1:,}; lower data.context, "
                "or give more text"
            )
        starts = np.lib.stride_tricks.sliding_window_view(stream, context + 1)[::context]
        return starts[:count]


def describe(summary: dict[str, Any]) -> str:
    """Returns the numbers of documents and tokens of each split in one line."""
    splits = summary["splits"].items()
    return "; ".join(f"{name}: {found['documents']:,} documents, {found['tokens']:,} tokens" for name, found in splits)
