"""Formats with one sentence, or one document of sentences, a line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from reluformer.errors import DataError
from reluformer.translation.document import Document
from reluformer.translation.formats.base import Part, Skeleton, Slot, TextFormat, TextSkeleton
from reluformer.translation.formats.lines import Line, on_one_line, split_lines


class AlignedText(TextFormat):
    """One sentence a line; blank lines part documents and stay where they are.

    Line i of the result translates line i of the text. An empty translation leaves an
    empty line, which looks like a document break.
    """

    name = "aligned"

    def skeleton(self, text: str) -> Skeleton:
        mark = "\ufeff" if text.startswith("\ufeff") else ""
        parts: list[Part] = [mark]
        groups = _Groups()
        for line in split_lines(text.removeprefix(mark)):
            sentence = line.body.strip()
            if sentence:
                start = line.body.index(sentence)
                parts += [line.body[:start], Slot(sentence, sentence), line.body[start + len(sentence) :] + line.ending]
            else:
                parts.append(line.body + line.ending)
            groups.add(sentence)
        return TextSkeleton(parts, groups.documents())


class _TsvSlot(Slot):
    """The translation goes into a column of its own, so the source is never replaced."""

    def fill(self, translation: str) -> str:
        return on_one_line(translation).replace("\t", " ")


class Tsv(TextFormat):
    """The source in the first column; blank lines part documents; no heading line.

    The translation goes into the second column where that is empty, else into a new last
    column, so that a reference is never lost.
    """

    name = "tsv"
    suffixes = (".tsv",)

    def skeleton(self, text: str) -> Skeleton:
        parts: list[Part] = []
        groups = _Groups()
        for line in split_lines(text):
            columns = line.body.split("\t")
            sentence = columns[0].removeprefix("\ufeff").strip()
            slot = _TsvSlot(sentence, sentence)
            if not sentence:
                parts.append(line.body + line.ending)
            elif len(columns) > 1 and not columns[1].strip():
                rest = "".join("\t" + column for column in columns[2:])
                parts += [columns[0] + "\t", slot, rest + line.ending]
            else:
                parts += [line.body + "\t", slot, line.ending]
            if sentence or not line.body.strip():
                groups.add(sentence)
        return TextSkeleton(parts, groups.documents())


class _Groups:
    """Sentences gathered into documents that blank lines part."""

    def __init__(self) -> None:
        self._groups: list[list[str]] = [[]]

    def add(self, sentence: str) -> None:
        """The next sentence; a blank one ends the document."""
        if sentence:
            self._groups[-1].append(sentence)
        elif self._groups[-1]:
            self._groups.append([])

    def documents(self) -> list[Document]:
        groups = [group for group in self._groups if group]
        return [Document(str(number), tuple(group)) for number, group in enumerate(groups, 1)]


class Jsonl(TextFormat):
    """One document a line, `{"id": ..., "src": [sentences]}`; the translation is added as "tgt".

    A document that has a "tgt" already (a reference) keeps it and gets a "hyp" instead.
    Whatever else the line holds stays as it is written. Blank sentences are not translated.
    """

    name = "jsonl"
    suffixes = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")

    def skeleton(self, text: str) -> Skeleton:
        return _JsonlSkeleton(split_lines(text))


class _JsonlSkeleton(Skeleton):
    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines
        self.records: dict[int, dict[str, Any]] = {}
        for index, line in enumerate(lines):
            body = line.body.removeprefix("\ufeff")
            if body.strip():
                self.records[index] = _record(body, index + 1)
        self.documents = tuple(
            Document(str(record.get("id", number)), tuple(_translatable(record)))
            for number, record in enumerate(self.records.values(), 1)
        )

    def _fill(self, translations: Sequence[str]) -> str:
        remaining = iter(translations)
        pieces = []
        for index, (body, ending) in enumerate(self.lines):
            record = self.records.get(index)
            if record is not None:
                filled = [next(remaining) if sentence.strip() else sentence for sentence in record["src"]]
                body = _add(body, record, filled)
            pieces.append(body + ending)
        return "".join(pieces)


def _record(body: str, number: int) -> dict[str, Any]:
    try:
        record = json.loads(body)
    except json.JSONDecodeError as error:
        raise DataError(f"line {number}: not JSON: {error}; expected one document a line") from None
    sentences = record.get("src") if isinstance(record, dict) else None
    if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
        raise DataError(f'line {number}: expected {{"id": ..., "src": [sentences]}}, "src" being a list of strings')
    for place, sentence in enumerate(sentences, 1):
        if any("\ud800" <= character <= "\udfff" for character in sentence):
            raise DataError(f'line {number}: sentence {place} of "src" holds half a surrogate pair, which is no text')
    return dict(record)


def _translatable(record: dict[str, Any]) -> list[str]:
    return [sentence for sentence in record["src"] if sentence.strip()]


def _add(body: str, record: dict[str, Any], translation: list[str]) -> str:
    """The line with the translation under a key of its own, the rest as it was written."""
    if "hyp" in record:
        return json.dumps({**record, "hyp": translation}, ensure_ascii=False)
    key = "hyp" if record.get("tgt") else "tgt"
    if key in record:  # an empty "tgt"
        return json.dumps({**record, key: translation}, ensure_ascii=False)
    end = body.rindex("}")
    return f"{body[:end].rstrip()}, {json.dumps(key)}: {json.dumps(translation, ensure_ascii=False)}{body[end:]}"
