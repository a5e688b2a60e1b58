"""Translations from a file, as the documents that `score` and `compare` take."""

from __future__ import annotations

import json
from pathlib import Path

from reluformer.data.formats import read_text
from reluformer.data.formats.lines import split_lines
from reluformer.errors import DataError
from reluformer.scoring.metrics import Documents


def read_hypotheses(path: str | Path, *, like: Documents | None = None) -> list[list[str]]:
    """Documents of sentences from `.jsonl`, `.jsonl.gz`, or text with one sentence a line.

    JSONL has one document a line, its sentences under "hyp" (or "tgt" where there is no
    "hyp"). In text a blank line ends a document; a file without blank lines is a list of
    one-sentence documents. A translation may be empty, which looks like a blank line: with
    `like`, the references, a text with as many lines as they have is cut as they are cut.
    """
    path = Path(path)
    text = read_text(path)
    if ".jsonl" in path.suffixes[-2:]:
        return _from_jsonl(text, path)
    lines = [line.body.strip() for line in split_lines(text.removeprefix("\ufeff"))]
    documents = None if like is None else _cut_like(lines, like)
    return _cut_at_blank_lines(lines) if documents is None else documents


def _from_jsonl(text: str, path: Path) -> list[list[str]]:
    documents = []
    for number, line in enumerate(split_lines(text.removeprefix("\ufeff")), 1):
        if not line.body.strip():
            continue
        try:
            record = json.loads(line.body)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}: not JSON: {error}") from None
        if not isinstance(record, dict) or not {"hyp", "tgt"} & record.keys():
            raise DataError(f'{path}, line {number}: expected an object with "hyp" or "tgt": a list of sentences')
        sentences = record["hyp"] if "hyp" in record else record["tgt"]
        if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
            raise DataError(f"{path}, line {number}: the translation must be a list of strings, one a sentence")
        documents.append(sentences)
    return documents


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
