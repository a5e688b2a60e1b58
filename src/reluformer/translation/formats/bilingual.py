"""Bilingual files: TMX, XLIFF and PO, through translate-toolkit (the extra `formats`).

For translation, entries without a target get one. Kept: every entry that has a
translation, notes, states, order, white space around and between sentences. Placeholders of
programs (`%s`, `{name}`, tags), formulas and inline elements of XLIFF and TMX (`InlineElements`) are marks of
their sentence (see `marks`). The file is written by translate-toolkit, so its layout may change where a target
was added.

A doubtful translation is flagged for a translator: `fuzzy` in PO, the state `needs-translation` in
XLIFF 1.2 and `initial` in XLIFF 2.

For training, every entry is a sentence pair; drafts are skipped. A file is read whole.
"""

from __future__ import annotations

import importlib
import re
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reluformer.errors import ArgumentError, DataError
from reluformer.files import BYTE_ORDER_MARK, decode_line, open_binary
from reluformer.translation.document import Document, DocumentAssembler, Range, SentencePair, Skipped, SkipReason
from reluformer.translation.formats.markup import unescape
from reluformer.translation.formats.skeleton import (
    AnyTranslation,
    CorpusFormat,
    FillReport,
    Skeleton,
    TextPart,
    TextUnit,
    filled,
)
from reluformer.translation.formats.spans import ADDRESS, PLACEHOLDER, Span, formula_spans, pair_tags, split_units

_TAG = r"<(?P<close>/?)(?P<name>[A-Za-z][\w:-]*+)(?P<rest>[^<>]*+)>"
_PLACEHOLDER = re.compile(PLACEHOLDER)
_INLINE = re.compile(rf"{PLACEHOLDER}|(?P<entity>&#?\w{{1,40}}+;)|{_TAG}|{ADDRESS}")
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_DECLARED = re.compile(
    r"\ufeff?<\?xml[^>]*encoding=[\"']([^\"']+)[\"']|(?:[#m\"][^\n]*\n)*\"Content-Type:.*charset=([\w-]+)"
)
_XLIFF_2 = re.compile(rb"<xliff\b[^<>]*\bversion\s*=\s*[\"']2")
MOST_PLURAL_FORMS = 6
"""The most plural forms of a language in gettext; Arabic has six."""
_XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


def message_spans(text: str) -> list[Span]:
    """Finds the marks in a message of a program: placeholders, tags, entities, addresses, formulas, inline elements."""
    spans: list[Span] = []
    entities: list[Range] = []
    tags = list(element_tags(text))
    for match in _INLINE.finditer(text):
        if match["name"]:
            kind = "empty" if match["rest"].endswith("/") else "close" if match["close"] else "open"
            tags.append((*match.span(), match["name"].lower(), kind))
        elif match["entity"]:
            spans.append(Span(*match.span(), text=unescape(match[0])))
            entities.append(match.span())
        else:
            spans.append(Span(*match.span(), text=match[0]))
    formulas = formula_spans(text, sorted([*entities, *(tag[:2] for tag in tags)]))
    return [*spans, *pair_tags(sorted(tags), len(text)), *formulas]


@dataclass(frozen=True)
class MessageUnit(TextUnit):
    """A unit of a message loses the placeholders and tags that a model invents, which would break the program."""

    def escape(self, text: str) -> str:
        return _NOT_XML.sub("", re.sub(_TAG, "", _PLACEHOLDER.sub("", ELEMENT.sub("", text))))


class BilingualFormat(CorpusFormat):
    """A bilingual file has entries, each with a source and perhaps a target.

    The languages choose the sides of a TMX file; XLIFF and PO know theirs themselves.
    Entries are translate-toolkit's units.
    """

    entries_are_documents = False
    """Messages of a program stand alone; segments of a translation memory follow each other."""

    def skeleton(self, text: str) -> Skeleton:
        return _BilingualSkeleton(self, text)

    def read_corpus(self, files: Sequence[Path], assembler: DocumentAssembler) -> Iterator[Document]:
        (path,) = files
        return assembler.documents(self._pairs(path, assembler.skipped), path)

    def _pairs(self, path: Path, skipped: Skipped) -> Iterator[SentencePair]:
        data = self.read_bytes(path)
        try:
            entries = self.store(data).units
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        translated = (pair for entry in entries if (pair := self.pair(entry)) is not None)
        for number, (source, target, is_draft) in enumerate(translated, start=1):
            if is_draft:
                skipped.add(SkipReason.FUZZY, f"{path} unit {number}")
            else:
                yield SentencePair(number, source, target)

    def read_bytes(self, path: Path) -> bytes:
        """Reads a file of a corpus; `.gz` is unpacked."""
        try:
            with open_binary(path) as file:
                return file.read()
        except DataError:
            raise
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: cannot be read: {error}") from None

    def store(self, data: bytes) -> Any:
        """Parses a file into a store of translate-toolkit.

        Raises:
            DataError: It is no file of this format.
            ArgumentError: translate-toolkit is not installed.
        """
        try:
            return self.parse_store(data)
        except ArgumentError:
            raise
        except Exception as error:  # the toolkit passes on whatever its parsers raise
            reason = str(error) or type(error).__name__
            raise DataError(f"not a valid {self.name} file: {reason}") from None

    @abstractmethod
    def parse_store(self, data: bytes) -> Any:
        """Calls the parser of translate-toolkit."""

    def pair(self, entry: Any) -> tuple[str, str, bool] | None:
        """Returns source, target and whether it is a draft; None for what is no text to translate.

        Of plural forms, the singular stands on both sides.
        """
        if not entry.istranslatable() or entry.isheader() or entry.isobsolete():
            return None
        return str(entry.source or ""), str(entry.target or ""), self.is_draft(entry)

    def is_draft(self, entry: Any) -> bool:
        """Returns whether a translation is marked as unfinished."""
        return bool(entry.isfuzzy())

    def is_empty(self, entry: Any) -> bool:
        """Returns whether the entry waits for a translation."""
        return bool(entry.istranslatable()) and not any(form.strip() for form in self.forms(entry.target))

    def forms(self, text: Any) -> list[str]:
        """Returns the singular and plural forms of a text; mostly it is one form only."""
        return [str(form) for form in getattr(text, "strings", [text or ""])]

    def plural_forms(self, store: Any) -> int | None:
        """Returns the number of plural forms in the target language, or None if the file does not say it.

        Raises:
            DataError: The file says a number that no language has.
        """
        return None

    def source_forms(self, entry: Any) -> list[str]:
        """Returns the singular and plural forms of the source, with marks for inline elements."""
        return self.forms(entry.source)

    def fill_entry(self, entry: Any, forms: list[str], plural_forms: int | None, doubtful: bool) -> None:
        """Sets the target of an entry.

        Args:
            entry: An entry of a store.
            forms: The translations of its singular and plural.
            plural_forms: The number of plural forms of the target, if the file says it.
            doubtful: Whether a translator should look at it.
        """
        entry.target = forms[0]


class _BilingualSkeleton(Skeleton):
    """The parts of every entry without a target, by the number of the entry."""

    def __init__(self, codec: BilingualFormat, text: str) -> None:
        self.codec = codec
        self.text = text
        self.entries: dict[int, list[list[TextPart]]] = {}
        groups: list[list[str]] = []
        store = self._open()
        self.plural_forms = codec.plural_forms(store)
        for index, entry in enumerate(store.units):
            if not codec.is_empty(entry):
                continue
            forms = [
                split_units(form, codec.splitter, message_spans, MessageUnit) for form in codec.source_forms(entry)
            ]
            self.entries[index] = forms
            units = [part for form in forms for part in form if isinstance(part, TextUnit)]
            sources = [unit.source for unit in units]
            self.has_marks = self.has_marks or any(unit.marks for unit in units)
            if codec.entries_are_documents or not groups:
                groups.append(sources)
            else:
                groups[-1].extend(sources)
        self.documents = tuple(
            Document(str(number), tuple(sources)) for number, sources in enumerate(groups, 1) if sources
        )

    def _open(self) -> Any:
        """Parses the text; the toolkit would read another encoding than UTF-8 if one is declared."""
        declared = _DECLARED.match(self.text)
        encoding = (declared[1] or declared[2]) if declared else "utf-8"
        if encoding.lower() not in ("utf-8", "utf8", "ascii", "us-ascii", "charset"):  # gettext's own placeholder
            raise DataError(f"{self.codec.name}: the file declares the encoding {encoding}; convert it to UTF-8 first")
        return self.codec.store(self.text.removeprefix(BYTE_ORDER_MARK).encode("utf-8"))

    def _fill(self, translations: Iterator[AnyTranslation], report: FillReport) -> str:
        if not self.entries:
            return self.text
        store = self._open()
        for index, forms in self.entries.items():
            own = FillReport()
            texts = ["".join(filled(form, translations, own)) for form in forms]
            report.include(own)
            self.codec.fill_entry(store.units[index], texts, self.plural_forms, own.doubtful)
        return bytes(store).decode("utf-8")


class Tmx(BilingualFormat):
    """TMX is a translation memory; entries that lack a segment in the target language get one."""

    name = "tmx"
    suffixes = (".tmx",)

    def parse_store(self, data: bytes) -> Any:
        return _toolkit("tmx").tmxfile.parsestring(data, self.source, self.target)

    def pair(self, entry: Any) -> tuple[str, str, bool]:
        return _text_in(entry, self.source), _text_in(entry, self.target), False

    def source_forms(self, entry: Any) -> list[str]:
        return [_inline_of_segment(entry, entry.source_dom, str(entry.source or "")).text]

    def fill_entry(self, entry: Any, forms: list[str], plural_forms: int | None, doubtful: bool) -> None:
        inline = _inline_of_segment(entry, entry.source_dom, str(entry.source or ""))
        entry.target = inline.without_codes(forms[0])
        inline.fill(entry.target_dom.find(entry.namespaced(entry.textNode)), forms[0])


class Xliff(BilingualFormat):
    """XLIFF has versions 1.2 and 2; entries without a target get one."""

    name = "xliff"
    suffixes = (".xlf", ".xliff")

    def parse_store(self, data: bytes) -> Any:
        if _XLIFF_2.search(data):
            return _toolkit("xliff2").Xliff2File.parsestring(data)
        return _toolkit("xliff").xlifffile.parsestring(data)

    def is_draft(self, entry: Any) -> bool:
        """Returns whether `approved="no"` or a state speaks against a translation.

        XLIFF 1.2 need not say `approved`, and translate-toolkit takes all that do not for fuzzy.
        """
        if not isinstance(entry, _toolkit("xliff").xliffunit):
            return super().is_draft(entry)
        target = entry.target_dom
        state = "" if target is None else target.get("state", "")
        marked = entry.xmlelement.get("approved") == "no" or state == "new" or state.startswith("needs-")
        return marked and bool(entry.target)

    def source_forms(self, entry: Any) -> list[str]:
        return [self._inline(entry).text]

    def _inline(self, entry: Any) -> InlineElements:
        return InlineElements(entry.xmlelement.find(entry.namespaced("source")), str(entry.source or ""))

    def fill_entry(self, entry: Any, forms: list[str], plural_forms: int | None, doubtful: bool) -> None:
        inline = self._inline(entry)
        entry.target = inline.without_codes(forms[0])
        inline.fill(entry.xmlelement.find(entry.namespaced("target")), forms[0])
        entry.markapproved(False)  # nobody has read it yet
        if doubtful and isinstance(entry, _toolkit("xliff").xliffunit):
            entry.target_dom.set("state", "needs-translation")
        elif doubtful:
            entry.markfuzzy()


class Po(BilingualFormat):
    """PO has the messages of gettext; entries without a translation get one, each plural form its own."""

    name = "po"
    suffixes = (".po",)
    entries_are_documents = True

    def parse_store(self, data: bytes) -> Any:
        return _toolkit("pypo").pofile.parsestring(data)

    def read_bytes(self, path: Path) -> bytes:
        """Reads a file and checks every line: the toolkit would guess another encoding than UTF-8."""
        data = super().read_bytes(path)
        for number, line in enumerate(data.split(b"\n"), start=1):
            decode_line(line, path, number)
        return data

    def is_empty(self, entry: Any) -> bool:
        return not entry.isheader() and not entry.isobsolete() and super().is_empty(entry)

    def plural_forms(self, store: Any) -> int | None:
        declared = str(store.parseheader().get("Plural-Forms") or "")
        nplurals, ended, _ = declared.partition("nplurals=")[2].partition(";")
        nplurals = nplurals.strip()
        if not ended or nplurals == "INTEGER":  # gettext's own placeholder
            return None
        if nplurals not in map(str, range(1, MOST_PLURAL_FORMS + 1)):
            raise DataError(
                f"{self.name}: the header says nplurals={nplurals[:20]}, but a language has 1 to {MOST_PLURAL_FORMS} "
                "plural forms; correct the line Plural-Forms"
            )
        return int(nplurals)

    def fill_entry(self, entry: Any, forms: list[str], plural_forms: int | None, doubtful: bool) -> None:
        if len(forms) == 1:
            super().fill_entry(entry, forms, plural_forms, doubtful)
        else:
            entry.target = [forms[min(number, len(forms) - 1)] for number in range(plural_forms or len(forms))]
        if doubtful:
            entry.markfuzzy()


def _text_in(entry: Any, language: str) -> str:
    """Returns the text of a TMX entry in `language`: `en` also finds `en-GB`; empty where it has none."""
    wanted = language.lower().replace("_", "-")
    for node in entry.getlanguageNodes():
        found = (node.get(_XML_LANGUAGE) or node.get("lang") or "").lower().replace("_", "-")
        if found == wanted or found.startswith(f"{wanted}-"):
            inline = _inline_of_segment(entry, node, str(entry.getNodeText(node) or ""))
            return ELEMENT.sub("", inline.text)
    return ""


def _inline_of_segment(entry: Any, node: Any, text: str) -> InlineElements:
    """Returns the inline elements of the segment in a `tuv` of TMX, whose text is known without them."""
    return InlineElements(None if node is None else node.find(entry.namespaced(entry.textNode)), text)


def _toolkit(module: str) -> Any:
    try:
        return importlib.import_module(f"translate.storage.{module}")
    except ImportError:
        raise ArgumentError(
            "TMX, XLIFF and PO need translate-toolkit, which is not installed: pip install 'reluformer[formats]'"
        ) from None


ELEMENT = re.compile("\x02([oce])(\\d+)\x03")
_AROUND_TEXT = frozenset(("g", "pc", "mrk", "hi"))
_HALVES = {"bpt": "ept", "bx": "ex", "sc": "ec"}
_KINDS = {"o": "open", "c": "close", "e": "empty"}
_SPACES = re.compile(r"\s+")


def element_tags(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Yields start, end, name and kind of the codes in a text, for `spans.pair_tags`."""
    for match in ELEMENT.finditer(text):
        yield *match.span(), match[2], _KINDS[match[1]]


class InlineElements:
    """The inline elements of XLIFF and TMX (`<g>`, `<x/>`, `<pc>`, `<ph>` and the like) in the source of an entry.

    The text of a source has a code of control characters, which XML itself cannot hold, for each
    element. A format takes the codes for marks. The translation with its codes then becomes the content
    of the target, where every element is a copy of that of the source.

    Paired are g, pc, mrk and hi; bpt with ept, bx with ex and sc with ec of the same id. Standalone are x, ph,
    it, cp and any other with all that they hold, and a half of a pair whose other half is elsewhere.

    Args:
        source: The element that holds the source; None if there is none.
        text: The text of the source as the toolkit reads it, for a source without inline elements.
    """

    def __init__(self, source: Any, text: str) -> None:
        self._elements: dict[tuple[str, int], Any] = {}
        self._source = source if source is not None and any(isinstance(one.tag, str) for one in source) else None
        self.text = text
        """The text of the source, with a code for each element."""
        if self._source is not None:
            self._partners = dict(_partners(self._source))
            text = "".join(self._coded(self._source))
            preserved = any(_space(node) == "preserve" for node in (self._source, *self._source.iterancestors()))
            self.text = text if preserved else _SPACES.sub(" ", text).strip()

    def _coded(self, node: Any) -> Iterator[str]:
        yield node.text or ""
        for child in node:
            if isinstance(child.tag, str):
                yield from self._code(child)
            yield child.tail or ""

    def _code(self, child: Any) -> Iterator[str]:
        number = len(self._elements)
        partner = self._partners.get(child)
        if _name(child) in _AROUND_TEXT:
            self._elements["o", number] = child
            yield f"\x02o{number}\x03"
            yield from self._coded(child)
            yield f"\x02c{number}\x03"
        elif partner is None:
            self._elements["e", number] = child
            yield f"\x02e{number}\x03"
        elif ("h", id(partner)) in self._elements:  # the second half
            number = self._elements["h", id(partner)]
            self._elements["c", number] = child
            yield f"\x02c{number}\x03"
        else:
            self._elements["o", number] = self._elements["h", id(child)] = number
            self._elements["o", number] = child
            yield f"\x02o{number}\x03"

    @staticmethod
    def without_codes(text: str) -> str:
        """Returns a text without the codes of elements; a space where nothing else is left."""
        return ELEMENT.sub("", text) or " "

    def fill(self, target: Any, text: str) -> None:
        """Sets the content of an element: a translation of `text` with its codes."""
        if self._source is None:
            return
        for child in list(target):
            target.remove(child)
        target.text = None
        stack, cursor = [target], 0
        for match in ELEMENT.finditer(text):
            _append(stack[-1], text[cursor : match.start()])
            cursor = match.end()
            key = match[1], int(match[2])
            element = self._elements.get(key)
            if element is None:  # the end of an element around text
                del stack[max(1, len(stack) - 1) :]
                continue
            around = key[0] == "o" and _name(element) in _AROUND_TEXT
            written = copy(element) if around else deepcopy(element)
            if around:
                for child in list(written):
                    written.remove(child)
                written.text = None
            written.tail = None
            stack[-1].append(written)
            if around:
                stack.append(written)
        _append(stack[-1], text[cursor:])


def _append(node: Any, text: str) -> None:
    """Appends text behind the last child of a node."""
    if not text:
        return
    if len(node):
        node[-1].tail = (node[-1].tail or "") + text
    else:
        node.text = (node.text or "") + text


def _partners(source: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the halves of pairs that stand in the same element, each with the other."""
    opened: dict[tuple[Any, str, str], Any] = {}
    for node in source.iter():
        if not isinstance(node.tag, str):
            continue
        name = _name(node)
        if name in _HALVES:
            id = node.get("rid") or node.get("id") or node.get("i") or ""
            opened[node.getparent(), _HALVES[name], id] = node
        else:
            id = node.get("startRef") or node.get("rid") or node.get("id") or node.get("i") or ""
            first = opened.pop((node.getparent(), name, id), None)
            if first is not None:
                yield first, node
                yield node, first


def _name(node: Any) -> str:
    return str(node.tag).rpartition("}")[2]


def _space(node: Any) -> str | None:
    value = node.get("{http://www.w3.org/XML/1998/namespace}space")
    return None if value is None else str(value)
