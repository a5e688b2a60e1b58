"""Tabular formats: a row holds one sentence pair (TSV, CSV) or a line one document (JSON lines).

Placeholders, addresses and formulas are marks of their sentence (see `marks`).
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from reluformer.errors import DataError
from reluformer.files import BYTE_ORDER_MARK, HALF_PAIR, decode_line, numbered_lines
from reluformer.translation.document import Document, DocumentAssembler, SentencePair, Skipped, SkipReason
from reluformer.translation.formats.plain import (
    UTF8_MOST_BYTES,
    SentenceGroups,
    TextLine,
    is_blank,
    split_lines,
)
from reluformer.translation.formats.skeleton import (
    AnyTranslation,
    CorpusFormat,
    FillReport,
    Skeleton,
    TextPart,
    TextSkeleton,
    TextUnit,
    on_one_line,
)
from reluformer.translation.formats.spans import text_marks

MOST_NESTED = 100
"""A line of JSON may nest lists and objects this deep."""
FUZZY = "fuzzy"
"""The last column of a row of TSV or CSV whose translation is doubtful; JSON lines number such sentences."""
_NESTED_TOO_DEEP = object()
_TGT_FUZZY = f"tgt_{FUZZY}"


@dataclass(frozen=True)
class _ColumnUnit(TextUnit):
    """The translation goes into a column of its own, so the source is never replaced."""

    separator: ClassVar[str]
    rest: str = ""
    """The columns behind the translation."""

    def fill(self, translation: AnyTranslation, report: FillReport | None = None) -> str:
        own = FillReport()
        text = on_one_line(super().fill(translation, own))
        if report is not None:
            report.include(own)
        return self.cell(text) + self.rest + (f"{self.separator}{FUZZY}" if own.doubtful else "")

    @staticmethod
    @abstractmethod
    def cell(text: str) -> str:
        """Returns the text of a line as a cell."""


@dataclass(frozen=True)
class _TsvUnit(_ColumnUnit):
    separator: ClassVar[str] = "\t"

    @staticmethod
    def cell(text: str) -> str:
        return text.replace("\t", " ")


class Tsv(CorpusFormat):
    """TSV has the source in the first column; blank lines part documents; there is no heading line.

    The translation goes into the second column where that is empty, else into a new last
    column, so that a reference is never lost. A doubtful translation has `fuzzy` in one more last column.
    A corpus has exactly two columns; a third one that says `fuzzy` marks a draft, which is skipped.
    """

    name = "tsv"
    suffixes = (".tsv",)

    def skeleton(self, text: str) -> Skeleton:
        parts: list[TextPart] = []
        groups = SentenceGroups()
        for line in split_lines(text):
            columns = line.body.split("\t")
            sentence = columns[0].removeprefix(BYTE_ORDER_MARK).strip()
            if not sentence:
                parts.append(line.body + line.ending)
            elif len(columns) > 1 and not columns[1].strip():
                rest = "".join("\t" + column for column in columns[2:])
                parts += [columns[0] + "\t", _TsvUnit(sentence, sentence, text_marks(sentence), rest), line.ending]
            else:
                parts += [line.body + "\t", _TsvUnit(sentence, sentence, text_marks(sentence)), line.ending]
            if sentence or not line.body.strip():
                groups.add(sentence)
        return TextSkeleton(parts, groups.documents())

    def read_corpus(self, files: Sequence[Path], assembler: DocumentAssembler) -> Iterator[Document]:
        (path,) = files
        most_bytes = 2 * assembler.limits.sentence_characters * UTF8_MOST_BYTES + 1
        return assembler.documents(_tsv_pairs(path, most_bytes, assembler.skipped), path)


def _tsv_pairs(path: Path, most_bytes: int, skipped: Skipped) -> Iterator[SentencePair | None]:
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
        elif len(columns) == 3 and columns[2] == FUZZY:
            skipped.add(SkipReason.FUZZY, f"{path}:{number}")
        else:
            raise DataError(f"{path}:{number}: expected source<TAB>target, got {len(columns)} columns")


@dataclass(frozen=True)
class _CsvUnit(_ColumnUnit):
    separator: ClassVar[str] = ","

    @staticmethod
    def cell(text: str) -> str:
        return '"' + text.replace('"', '""') + '"' if any(sign in text for sign in ',"') else text


class Csv(CorpusFormat):
    """CSV has the source in the first column; rows without text part documents.

    Commas part the cells. A cell in double quotes may hold commas, line breaks and doubled quotes. A first row that
    names its columns, such as `source,target` or `en,de`, is a heading and no text. The translation goes into the
    second column where that is empty, else into a new last column. A corpus has exactly two columns. As in TSV, one
    more column `fuzzy` marks a doubtful translation, and a draft of a corpus, which is skipped.
    """

    name = "csv"
    suffixes = (".csv",)

    def skeleton(self, text: str) -> Skeleton:
        parts: list[TextPart] = []
        groups = SentenceGroups()
        row = _CsvRow(1)
        mark = BYTE_ORDER_MARK if text.startswith(BYTE_ORDER_MARK) else ""
        if mark:
            parts.append(mark)
        for number, line in enumerate(split_lines(text.removeprefix(mark)), 1):
            row.add(line.body)
            if row.is_open:
                row.add_break(line.ending)
                continue
            self._add(row, line.ending, parts, groups)
            row = _CsvRow(number + 1)
        if row.is_open:
            raise DataError(_unclosed(f"line {row.line}"))
        return TextSkeleton(parts, groups.documents())

    def _add(self, row: _CsvRow, ending: str, parts: list[TextPart], groups: SentenceGroups) -> None:
        """Appends a row to the parts of a skeleton, and its sentence to the groups."""
        sentence, raw = on_one_line(row.cells[0]), row.raw
        if not sentence or self._is_heading(row):
            parts.append(raw + ending)
        elif len(row.cells) > 1 and not row.cells[1].strip():
            unit = _CsvUnit(sentence, sentence, text_marks(sentence), raw[row.ends[1] :])
            parts += [raw[: row.ends[0] + 1], unit, ending]
        else:
            parts += [raw + ",", _CsvUnit(sentence, sentence, text_marks(sentence)), ending]
        if not any(map(str.strip, row.cells)):
            groups.add("")
        elif sentence and not self._is_heading(row):
            groups.add(sentence)

    def read_corpus(self, files: Sequence[Path], assembler: DocumentAssembler) -> Iterator[Document]:
        (path,) = files
        most_bytes = 2 * assembler.limits.sentence_characters * UTF8_MOST_BYTES + 1
        return assembler.documents(self._pairs(path, most_bytes, assembler.skipped), path)

    def _pairs(self, path: Path, most_bytes: int, skipped: Skipped) -> Iterator[SentencePair | None]:
        row = _CsvRow(1)
        for number, line in numbered_lines(path, most_bytes):
            if row.is_open and (line is None or row.length > most_bytes):
                raise DataError(_unclosed(f"{path}:{row.line}"))
            if line is None:
                yield SentencePair(number, None, None)
            else:
                row.add(decode_line(line, path, number))
                if row.is_open:
                    row.add_break("\n")
                    continue
                if len(row.cells) == 3 and row.cells[2] == FUZZY:
                    skipped.add(SkipReason.FUZZY, f"{path}:{row.line}")
                elif not self._is_heading(row):
                    yield _csv_pair(row, path)
            row = _CsvRow(number + 1)
        if row.is_open:
            raise DataError(_unclosed(f"{path}:{row.line}"))

    def _is_heading(self, row: _CsvRow) -> bool:
        names = [cell.strip().lower() for cell in row.cells[:2]]
        sides = ({"source", "src", self.source.lower()}, {"target", "tgt", self.target.lower()})
        return row.line == 1 and all(name in side for name, side in zip(names, sides, strict=False))


class _CsvRow:
    """A row that is read line by line, in time proportional to its length."""

    def __init__(self, line: int) -> None:
        self.line = line
        """The number of its first line."""
        self.is_open = False
        """Whether a quoted cell has not ended yet, so that the row continues on the next line."""
        self.length = 0
        self.ends: list[int] = []
        """Where each cell ends in `raw`."""
        self._lines: list[str] = []
        self._cells: list[list[str]] = [[]]

    @property
    def cells(self) -> list[str]:
        return ["".join(pieces) for pieces in self._cells]

    @property
    def raw(self) -> str:
        return "".join(self._lines)

    def add_break(self, ending: str) -> None:
        """Adds a line break inside of a quoted cell."""
        self._cells[-1].append(ending)
        self._lines.append(ending)
        self.length += len(ending)

    def add(self, line: str) -> None:
        """Adds a line without its ending."""
        place, begins = 0, not self.is_open
        while place < len(line) or begins:
            if begins and line[place : place + 1] == '"':
                self.is_open, begins, place = True, False, place + 1
            elif self.is_open:
                quote = line.find('"', place)
                stop = len(line) if quote < 0 else quote
                doubled = quote >= 0 and line[quote + 1 : quote + 2] == '"'
                self._cells[-1].append(line[place : stop + doubled])
                place = stop + 2 if doubled else stop + 1
                self.is_open = quote < 0 or doubled
            else:
                comma = line.find(",", place)
                stop = len(line) if comma < 0 else comma
                self._cells[-1].append(line[place:stop])
                place, begins = stop + 1, comma >= 0
                if begins:
                    self.ends.append(self.length + stop)
                    self._cells.append([])
        self._lines.append(line)
        self.length += len(line)
        if not self.is_open:
            self.ends.append(self.length)


def _csv_pair(row: _CsvRow, path: Path) -> SentencePair | None:
    cells = row.cells
    if not any(map(str.strip, cells)):
        return None
    if len(cells) != 2:
        raise DataError(
            f"{path}:{row.line}: expected source,target, got {len(cells)} columns; a text with a comma needs quotes, "
            "and columns that are parted by tabs need the name .tsv"
        )
    return SentencePair(row.line, on_one_line(cells[0]), on_one_line(cells[1]))


def _unclosed(place: str) -> str:
    return f"{place}: a cell in quotes that begins here does not end; close it, and double the quotes of the text"


class Jsonl(CorpusFormat):
    """JSON lines have one document a line, `{"id": ..., "src": [sentences]}`; the translation is added as "tgt".

    A document that has a "tgt" already (a reference) keeps it and gets a "hyp" instead.
    Whatever else the line holds stays as it is written. Blank sentences are not translated.
    "tgt_fuzzy" or "hyp_fuzzy" lists the numbers of doubtful translations, from 0 on, if there are any.
    A document of a corpus has as many sentences in "tgt" as in "src"; those of "tgt_fuzzy" are skipped.
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
            drafts = {number for number in record.get(_TGT_FUZZY, ()) if number in range(len(record["src"]))}
            for number in sorted(drafts):
                assembler.skipped.add(SkipReason.FUZZY, f"{place} sentence {number + 1}")
            src, tgt = (
                [sentence for number, sentence in enumerate(record[side]) if number not in drafts]
                for side in ("src", "tgt")
            )
            yield from assembler.document(id, src, tgt, place)


class _JsonlSkeleton(Skeleton):
    """The lines with their records; a translation is written into the text of its line."""

    def __init__(self, lines: Sequence[TextLine]) -> None:
        self.lines = lines
        self.records: dict[int, dict[str, Any]] = {}
        self.units: dict[int, list[TextUnit]] = {}
        """The sentences of each record, without blank ones."""
        for index, line in enumerate(lines):
            body = line.body.removeprefix(BYTE_ORDER_MARK)
            if body.strip():
                record = self.records[index] = _source_record(body, f"line {index + 1}")
                sentences = (sentence for sentence in record["src"] if sentence.strip())
                self.units[index] = [TextUnit(sentence, sentence, text_marks(sentence)) for sentence in sentences]
        self.documents = tuple(
            Document(str(record.get("id", number)), tuple(unit.source for unit in self.units[index]))
            for number, (index, record) in enumerate(self.records.items(), 1)
        )
        self.has_marks = any(unit.marks for units in self.units.values() for unit in units)

    def _fill(self, translations: Iterator[AnyTranslation], report: FillReport) -> str:
        pieces = []
        for index, (body, ending) in enumerate(self.lines):
            record = self.records.get(index)
            if record is not None:
                units = iter(self.units[index])
                texts: list[str] = []
                flagged: list[int] = []
                for sentence in record["src"]:
                    own = FillReport()
                    text = next(units).fill(next(translations), own) if sentence.strip() else sentence
                    report.include(own)
                    if own.doubtful:
                        flagged.append(len(texts))
                    texts.append(text)
                body = _with_translation(body, record, texts, flagged)
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
    drafts = record.get(_TGT_FUZZY, [])
    if not isinstance(drafts, list) or not all(isinstance(number, int) for number in drafts):
        raise DataError(f"{place}: '{_TGT_FUZZY}' must be a list of numbers of sentences, from 0 on")
    if len(record["src"]) != len(record["tgt"]):
        raise DataError(
            f"{place}: {len(record['src'])} source but {len(record['tgt'])} target sentences; "
            "tgt[i] must translate src[i]"
        )
    return record


def _with_translation(body: str, record: dict[str, Any], translation: list[str], flagged: list[int]) -> str:
    """Returns the line with the translation under a key of its own, the rest as it was written.

    Args:
        body: The line.
        record: The object that it holds.
        translation: The translated sentences.
        flagged: The numbers of the doubtful ones.
    """
    key = "hyp" if "hyp" in record or record.get("tgt") else "tgt"
    flag = f"{key}_{FUZZY}"
    added = {key: translation, **({flag: flagged} if flagged else {})}
    if key in record or flag in record:  # a translation of before, or an empty one
        kept = {name: value for name, value in record.items() if name != flag}
        return json.dumps({**kept, **added}, ensure_ascii=False)
    end = body.rindex("}")
    return f"{body[:end].rstrip()}, {json.dumps(added, ensure_ascii=False)[1:-1]}{body[end:]}"
