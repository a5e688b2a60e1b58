"""Tabular formats: a line holds one sentence pair (TSV) or one document (JSON lines)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reluformer.errors import DataError
from reluformer.translation.document import Document, DocumentAssembler, SentencePair
from reluformer.translation.formats.plain import (
    BYTE_ORDER_MARK,
    UTF8_MOST_BYTES,
    SentenceGroups,
    TextLine,
    decode_line,
    is_blank,
    numbered_lines,
    split_lines,
)
from reluformer.translation.formats.skeleton import (
    CorpusFormat,
    FillReport,
    Skeleton,
    TextPart,
    TextSkeleton,
    TextUnit,
    on_one_line,
)

MOST_NESTED = 100
"""A line of JSON may nest lists and objects this deep."""
HALF_PAIR = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which JSON can write but UTF-8 cannot."""
_NESTED_TOO_DEEP = object()


class _TsvUnit(TextUnit):
    """The translation goes into a column of its own, so the source is never replaced."""

    def fill(self, translation: str, report: FillReport | None = None) -> str:
        super().fill(translation, report)
        return on_one_line(translation).replace("\t", " ")


class Tsv(CorpusFormat):
    """TSV has the source in the first column; blank lines part documents; there is no heading line.

    The translation goes into the second column where that is empty, else into a new last
    column, so that a reference is never lost. A corpus has exactly two columns.
    """

    name = "tsv"
    suffixes = (".tsv",)

    def skeleton(self, text: str) -> Skeleton:
        parts: list[TextPart] = []
        groups = SentenceGroups()
        for line in split_lines(text):
            columns = line.body.split("\t")
            sentence = columns[0].removeprefix(BYTE_ORDER_MARK).strip()
            unit = _TsvUnit(sentence, sentence)
            if not sentence:
                parts.append(line.body + line.ending)
            elif len(columns) > 1 and not columns[1].strip():
                rest = "".join("\t" + column for column in columns[2:])
                parts += [columns[0] + "\t", unit, rest + line.ending]
            else:
                parts += [line.body + "\t", unit, line.ending]
            if sentence or not line.body.strip():
                groups.add(sentence)
        return TextSkeleton(parts, groups.documents())

    def read_corpus(self, files: Sequence[Path], assembler: DocumentAssembler) -> Iterator[Document]:
        (path,) = files
        most_bytes = 2 * assembler.limits.sentence_characters * UTF8_MOST_BYTES + 1
        return assembler.documents(_tsv_pairs(path, most_bytes), path)


def _tsv_pairs(path: Path, most_bytes: int) -> Iterator[SentencePair | None]:
    for number, line in numbered_lines(path, most_bytes):
        if line is None:
            yield SentencePair(number, None, None)
            continue
        text = decode_line(line, path, number)
        columns = text.split("\t")
        if is_blank(text):
            yield None
        elif len(columns) == 2:
            yield SentencePair(number, *columns)
        else:
            raise DataError(f"{path}:{number}: expected source<TAB>target, got {len(columns)} columns")


class Jsonl(CorpusFormat):
    """JSON lines have one document a line, `{"id": ..., "src": [sentences]}`; the translation is added as "tgt".

    A document that has a "tgt" already (a reference) keeps it and gets a "hyp" instead.
    Whatever else the line holds stays as it is written. Blank sentences are not translated.
    A document of a corpus has as many sentences in "tgt" as in "src".
    """

    name = "jsonl"
    suffixes = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")

    def skeleton(self, text: str) -> Skeleton:
        return _JsonlSkeleton(split_lines(text))

    def read_corpus(self, files: Sequence[Path], assembler: DocumentAssembler) -> Iterator[Document]:
        (path,) = files
        limits = assembler.limits
        for number, line in numbered_lines(path, limits.document_bytes):
            place = f"{path}:{number}"
            if line is None:
                raise DataError(f"{place}: longer than limits.document_bytes={limits.document_bytes}")
            text = decode_line(line, path, number)
            if is_blank(text):
                continue
            record = _aligned_record(text, place)
            if len(record["src"]) > limits.document_sentences:
                raise DataError(f"{place}: more than limits.document_sentences={limits.document_sentences} sentences")
            id = str(record.get("id", f"{path.name}:{number}"))
            yield from assembler.document(id, record["src"], record["tgt"], place)


class _JsonlSkeleton(Skeleton):
    """The lines with their records; a translation is written into the text of its line."""

    def __init__(self, lines: Sequence[TextLine]) -> None:
        self.lines = lines
        self.records: dict[int, dict[str, Any]] = {}
        for index, line in enumerate(lines):
            body = line.body.removeprefix(BYTE_ORDER_MARK)
            if body.strip():
                self.records[index] = _source_record(body, f"line {index + 1}")
        self.documents = tuple(
            Document(str(record.get("id", number)), tuple(sentence for sentence in record["src"] if sentence.strip()))
            for number, record in enumerate(self.records.values(), 1)
        )

    def _fill(self, translations: Iterator[str], report: FillReport) -> str:
        pieces = []
        for index, (body, ending) in enumerate(self.lines):
            record = self.records.get(index)
            if record is not None:
                for sentence in filter(str.strip, record["src"]):
                    report.add(sentence)
                texts = [next(translations) if sentence.strip() else sentence for sentence in record["src"]]
                body = _with_translation(body, record, texts)
            pieces.append(body + ending)
        return "".join(pieces)


def parse_json_line(line: str, place: str) -> Any:
    """Parses a line of JSON.

    Args:
        line: The line.
        place: What error messages call it: the file and the number of the line.

    Returns:
        The value, whose lists and objects are nested at most `MOST_NESTED` deep.

    Raises:
        DataError: It is no JSON, is nested too deep, or holds a number of thousands of digits.

    Example:
        >>> parse_json_line('{"id": 1}', "a.jsonl:1")
        {'id': 1}
    """
    try:
        value = json.loads(line)
    except RecursionError:
        value = _NESTED_TOO_DEEP
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: not JSON: {error}; expected one document a line") from None
    except ValueError:  # Python's own limit on the digits of an integer
        raise DataError(f"{place}: a number has too many digits; write it as a string") from None
    if value is _NESTED_TOO_DEEP or _depth(value) > MOST_NESTED:
        raise DataError(f"{place}: lists and objects are nested more than {MOST_NESTED} deep; a document needs two")
    return value


def _depth(value: Any) -> int:
    """Returns how deep lists and objects are nested, without recursion."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, (list, dict))]:
        depth += 1
        level = [part for item in level for part in (item.values() if isinstance(item, dict) else item)]
    return depth


def is_sentence_list(value: Any) -> bool:
    """Returns whether a value of JSON is a list of strings."""
    return isinstance(value, list) and all(isinstance(sentence, str) for sentence in value)


def _source_record(body: str, place: str) -> dict[str, Any]:
    """Parses a line for translation: it needs "src" only."""
    record = parse_json_line(body, place)
    if not isinstance(record, dict) or not is_sentence_list(record.get("src")):
        raise DataError(f'{place}: expected {{"id": ..., "src": [sentences]}}, "src" being a list of strings')
    for number, sentence in enumerate(record["src"], 1):
        if HALF_PAIR.search(sentence):
            raise DataError(f'{place}: sentence {number} of "src" holds half a surrogate pair, which is no text')
    if HALF_PAIR.search(json.dumps(record, ensure_ascii=False)):
        raise DataError(f"{place}: holds half a surrogate pair, which is no text")
    return record


def _aligned_record(text: str, place: str) -> dict[str, Any]:
    """Parses a line of a corpus: it needs "src" and "tgt" of one length."""
    record = parse_json_line(text, place)
    if not isinstance(record, dict):
        raise DataError(f'{place}: expected {{"id": ..., "src": [...], "tgt": [...]}}, got {type(record).__name__}')
    if HALF_PAIR.search(str(record.get("id", ""))):
        raise DataError(f"{place}: 'id' holds half a surrogate pair, which is no text")
    for side in ("src", "tgt"):
        if not is_sentence_list(record.get(side)):
            raise DataError(f"{place}: '{side}' must be a list of sentences")
    if len(record["src"]) != len(record["tgt"]):
        raise DataError(
            f"{place}: {len(record['src'])} source but {len(record['tgt'])} target sentences; "
            "tgt[i] must translate src[i]"
        )
    return record


def _with_translation(body: str, record: dict[str, Any], translation: list[str]) -> str:
    """Returns the line with the translation under a key of its own, the rest as it was written."""
    if "hyp" in record:
        return json.dumps({**record, "hyp": translation}, ensure_ascii=False)
    key = "hyp" if record.get("tgt") else "tgt"
    if key in record:  # an empty "tgt"
        return json.dumps({**record, key: translation}, ensure_ascii=False)
    end = body.rindex("}")
    return f"{body[:end].rstrip()}, {json.dumps(key)}: {json.dumps(translation, ensure_ascii=False)}{body[end:]}"
