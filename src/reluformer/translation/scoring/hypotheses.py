"""Translations and references from files, as the documents that `score` and `compare` take."""

from __future__ import annotations

import json
from pathlib import Path

from reluformer.errors import DataError
from reluformer.translation.formats import is_jsonl, read_text
from reluformer.translation.formats.lines import split_lines
from reluformer.translation.scoring.metrics import Documents


def read_hypotheses(path: str | Path, *, like: Documents | None = None) -> list[list[str]]:
    """Documents of sentences from JSON lines (`.jsonl`, `.ndjson`, also `.gz`), or text with one sentence a line.

    JSONL has one document a line, its sentences under "hyp" (or "tgt" where there is no
    "hyp"). In text a blank line between others ends a document; a file without such lines is
    a list of one-sentence documents. A translation may be empty, which looks like a blank line:
    with `like`, the references, a text with as many lines as they have is cut as they are cut.
    """
    return _read(Path(path), ("hyp", "tgt"), like)


def read_references(path: str | Path) -> list[list[str]]:
    """Documents as of `read_hypotheses`; in JSONL those under "tgt", also where a "hyp" stands beside it."""
    return _read(Path(path), ("tgt",), None)


def _read(path: Path, keys: tuple[str, ...], like: Documents | None) -> list[list[str]]:
    lines = [line.body for line in split_lines(read_text(path).removeprefix("\ufeff"))]
    if is_jsonl(path):
        return [_document(line, keys, f"{path}, line {n}") for n, line in enumerate(lines, 1) if line.strip()]
    sentences = [line.strip() for line in lines]
    within = _without_blank_ends(sentences)
    if like is not None:
        for candidate in (sentences, within):
            if (documents := _cut_like(candidate, like)) is not None:
                return documents
    return _cut_at_blank_lines(within)


def _document(line: str, keys: tuple[str, ...], place: str) -> list[str]:
    """The sentences under the first of `keys` that a line of JSON has."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: not JSON: {error}") from None
    found = [key for key in keys if isinstance(record, dict) and key in record]
    if not found:
        names = " or ".join(f'"{key}"' for key in keys)
        raise DataError(f"{place}: expected an object with {names}: a list of sentences")
    sentences = record[found[0]]
    if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
        raise DataError(f'{place}: "{found[0]}" must be a list of strings, one a sentence')
    return sentences


def _without_blank_ends(lines: list[str]) -> list[str]:
    """Blank lines before the first sentence and after the last part no documents."""
    filled = [number for number, line in enumerate(lines) if line]
    return lines[filled[0] : filled[-1] + 1] if filled else []


def _cut_like(lines: list[str], like: Documents) -> list[list[str]] | None:
    """Documents as long as those of `like`, with or without a blank line between them."""
    for gap in (0, 1):
        if len(lines) != sum(len(document) + gap for document in like) - gap:
            continue
        documents, breaks, start = [], [], 0
        for document in like:
            end = start + len(document)
            documents.append(lines[start:end])
            breaks += lines[end : end + gap]
            start = end + gap
        if not any(breaks):
            return documents
    return None


def _cut_at_blank_lines(lines: list[str]) -> list[list[str]]:
    if all(lines):
        return [[line] for line in lines]
    documents: list[list[str]] = [[]]
    for line in lines:
        if line:
            documents[-1].append(line)
        elif documents[-1]:
            documents.append([])
    return [document for document in documents if document]
