"""TMX, XLIFF and PO through translate-toolkit (the extra `formats`): empty targets are filled.

Kept: every entry that has a translation, notes, states, order, place-holders of programs
(`%s`, `{name}`, tags; see `spans`), white space around and between sentences. Not kept:
inline elements of XLIFF and TMX segments, whose text is translated without them. The file
is written by translate-toolkit, so its layout may change where a target was added.
"""

from __future__ import annotations

import importlib
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from reluformer.errors import ArgumentError, DataError
from reluformer.translation import splitters
from reluformer.translation.document import Document
from reluformer.translation.formats.base import Part, Skeleton, Slot, TextFormat
from reluformer.translation.formats.spans import ADDRESS, MARK, TAG, Span, segment
from reluformer.translation.splitters import Splitter

_PLACEHOLDER = re.compile(
    r"%(?:\([^()\s]+\))?[-+#0]*\d*(?:\.\d+)?(?:ll?|h)?[diouxXeEfFgGcrs%]|\$?\{[^{}\s]*\}|&#?\w+;"
    rf"|{TAG}|{MARK.pattern}|{ADDRESS}"
)
_DECLARED = re.compile(
    r"\ufeff?<\?xml[^>]*encoding=[\"']([^\"']+)[\"']|(?:[#m\"][^\n]*\n)*\"Content-Type:.*charset=([\w-]+)"
)
_XLIFF_2 = re.compile(r"<xliff\b[^>]*\bversion=[\"']2")


def placeholder_spans(text: str) -> list[Span]:
    """Place-holders, tags, entities and addresses in a message of a program."""
    return [Span(*match.span()) for match in _PLACEHOLDER.finditer(text)]


class Catalogue(TextFormat):
    """A file of entries, each with a source and perhaps a target.

    The languages are codes such as `en` and `de`; XLIFF and PO know theirs themselves.
    """

    entries_are_documents = False
    """Messages of a program stand alone; segments of a translation memory follow each other."""

    def __init__(self, splitter: str | Splitter = "simple", *, source: str = "en", target: str = "de") -> None:
        self.splitter = splitters.get(splitter, source)
        self.source = source
        self.target = target

    def skeleton(self, text: str) -> Skeleton:
        return _CatalogueSkeleton(self, text)

    def open(self, text: str) -> Any:
        """The file as translate-toolkit's store."""
        declared = _DECLARED.match(text)
        encoding = (declared[1] or declared[2]) if declared else "utf-8"
        if encoding.lower() not in ("utf-8", "utf8", "ascii", "us-ascii", "charset"):  # gettext's own place-holder
            raise DataError(f"{self.name}: the file declares the encoding {encoding}; convert it to UTF-8 first")
        try:
            return self.store(text.removeprefix("\ufeff").encode("utf-8"))
        except ArgumentError:
            raise
        except Exception as error:  # the toolkit passes on whatever its parsers raise
            raise DataError(f"{self.name}: cannot be read: {error}") from error

    @abstractmethod
    def store(self, data: bytes) -> Any: ...

    def is_empty(self, unit: Any) -> bool:
        """Whether the entry waits for a translation."""
        return bool(unit.istranslatable()) and not any(str(form).strip() for form in self.forms(unit.target))

    def forms(self, text: Any) -> list[str]:
        """The singular and plural forms of a text; one only, mostly."""
        return [str(form) for form in getattr(text, "strings", [text or ""])]

    def fill_unit(self, store: Any, unit: Any, forms: list[str]) -> None:
        """Set the target of an entry."""
        unit.target = forms[0]


class _CatalogueSkeleton(Skeleton):
    def __init__(self, catalogue: Catalogue, text: str) -> None:
        self.catalogue = catalogue
        self.text = text
        self.entries: dict[int, list[list[Part]]] = {}
        groups: list[tuple[str, list[str]]] = []
        for index, unit in enumerate(catalogue.open(text).units):
            if not catalogue.is_empty(unit):
                continue
            forms = [segment(form, catalogue.splitter, placeholder_spans) for form in catalogue.forms(unit.source)]
            self.entries[index] = forms
            sources = [part.source for form in forms for part in form if isinstance(part, Slot)]
            if catalogue.entries_are_documents or not groups:
                groups.append((str(len(groups) + 1), sources))
            else:
                groups[-1][1].extend(sources)
        self.documents = tuple(Document(name, tuple(sources)) for name, sources in groups if sources)

    def _fill(self, translations: Sequence[str]) -> str:
        if not self.entries:
            return self.text
        remaining = iter(translations)
        store = self.catalogue.open(self.text)
        for index, forms in self.entries.items():
            filled = ["".join(_written(form, remaining)) for form in forms]
            self.catalogue.fill_unit(store, store.units[index], filled)
        return bytes(store).decode("utf-8")


def _written(parts: Sequence[Part], translations: Iterator[str]) -> Iterator[str]:
    for part in parts:
        yield part.fill(next(translations)) if isinstance(part, Slot) else part


class Tmx(Catalogue):
    """Translation memory: units that lack a segment in the target language get one."""

    name = "tmx"
    suffixes = (".tmx",)

    def store(self, data: bytes) -> Any:
        return _toolkit("tmx").tmxfile.parsestring(data, self.source, self.target)


class Xliff(Catalogue):
    """XLIFF 1.2 and 2: units without a target get one."""

    name = "xliff"
    suffixes = (".xlf", ".xliff")

    def store(self, data: bytes) -> Any:
        if _XLIFF_2.search(data.decode("utf-8")):
            return _toolkit("xliff2").Xliff2File.parsestring(data)
        return _toolkit("xliff").xlifffile.parsestring(data)

    def fill_unit(self, store: Any, unit: Any, forms: list[str]) -> None:
        super().fill_unit(store, unit, forms)
        unit.markapproved(False)  # nobody has read it yet


class Po(Catalogue):
    """gettext messages: entries without a translation get one, each plural form its own."""

    name = "po"
    suffixes = (".po",)
    entries_are_documents = True

    def store(self, data: bytes) -> Any:
        return _toolkit("po").pofile.parsestring(data)

    def is_empty(self, unit: Any) -> bool:
        return not unit.isheader() and not unit.isobsolete() and super().is_empty(unit)

    def fill_unit(self, store: Any, unit: Any, forms: list[str]) -> None:
        if len(forms) == 1:
            unit.target = forms[0]
            return
        nplurals, _ = store.getheaderplural()
        count = int(nplurals) if nplurals and nplurals.isdigit() else len(forms)
        unit.target = [forms[min(number, len(forms) - 1)] for number in range(count)]


def _toolkit(module: str) -> Any:
    try:
        return importlib.import_module(f"translate.storage.{module}")
    except ImportError:
        raise ArgumentError(
            "TMX, XLIFF and PO need translate-toolkit, which is not installed: pip install 'reluformer[formats]'"
        ) from None
