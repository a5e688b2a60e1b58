"""What every format does: take the sentences out of a text, and put translations back."""

from __future__ import annotations

import gzip
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from reluformer.errors import DataError
from reluformer.translation.document import Document
from reluformer.translation.formats.lines import on_one_line


class Skeleton(ABC):
    """A text without its sentences: where they stood, and all that stood between them."""

    documents: tuple[Document, ...]
    """The sentences to translate, grouped by the documents that they belong to."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences of all documents in order: what `fill` wants translations of."""
        return tuple(sentence for document in self.documents for sentence in document.src)

    def fill(self, translations: Sequence[str]) -> str:
        """The text with `translations` in place of its sentences, one for each, in order."""
        expected = sum(len(document.src) for document in self.documents)
        if len(translations) != expected:
            raise DataError(
                f"the text has {expected} sentences but {len(translations)} translations were given; "
                "give exactly one for each, in order (it may be an empty string)"
            )
        return self._fill(translations)

    @abstractmethod
    def _fill(self, translations: Sequence[str]) -> str: ...


class TextFormat(ABC):
    """How a kind of text holds sentences. Subclasses hold the options of their format."""

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()

    def parse(self, text: str) -> tuple[tuple[str, ...], Skeleton]:
        """The sentences to translate, and the skeleton to fill with their translations."""
        skeleton = self.skeleton(text)
        return skeleton.sentences, skeleton

    @abstractmethod
    def skeleton(self, text: str) -> Skeleton:
        """The skeleton alone; it knows the sentences, too."""


@dataclass(frozen=True)
class Slot:
    """The place of one sentence: `raw` as it stands in the text, `source` as a model reads it."""

    raw: str
    source: str

    def fill(self, translation: str) -> str:
        """What to write there; the raw text itself where the translation left the source as it was."""
        return self.raw if translation == self.source else self.adapt(on_one_line(translation))

    def adapt(self, translation: str) -> str:
        """The translation, on one line, as the format wants it written."""
        return translation


Part = str | Slot


class TextSkeleton(Skeleton):
    """Literal text and slots in turn: whatever is no sentence comes back byte for byte."""

    def __init__(self, parts: Sequence[Part], documents: Sequence[Document] | None = None) -> None:
        self.parts = tuple(parts)
        if documents is None:
            sources = tuple(part.source for part in parts if isinstance(part, Slot))
            documents = [Document("1", sources)] if sources else []
        self.documents = tuple(documents)

    def _fill(self, translations: Sequence[str]) -> str:
        remaining = iter(translations)
        return "".join(part.fill(next(remaining)) if isinstance(part, Slot) else part for part in self.parts)


def decode(data: bytes, where: str) -> str:
    """UTF-8 text, a byte order mark kept as its first character; `where` names it in errors."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{where}: not valid UTF-8 at byte {error.start} (line {line}): {error.reason}; "
            "convert it first, e.g. iconv -f latin1 -t utf-8"
        ) from None


def read_text(path: str | Path) -> str:
    """The text of a file exactly as it is, line endings included; `.gz` is unpacked."""
    path = Path(path)
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file: {error}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    return decode(data, str(path))


def write_text(path: str | Path, text: str) -> None:
    """Write `text` exactly as it is, packed for `.gz` (the same text gives the same bytes)."""
    path = Path(path)
    data = text.encode("utf-8")
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
