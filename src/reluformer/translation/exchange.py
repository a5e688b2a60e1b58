"""TMX, XLIFF and PO through translate-toolkit, which reads a whole file at once."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reluformer.errors import DataError
from reluformer.translation.lines import decode, open_binary

_XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_XLIFF_2 = re.compile(rb"<xliff[^>]*\bversion\s*=\s*[\"']2")


@dataclass(frozen=True)
class Unit:
    """A text and its translation; `draft` when it is marked fuzzy or to be reviewed."""

    source: str
    target: str
    draft: bool = False


def read_units(path: Path, kind: str, languages: tuple[str, str]) -> Iterator[Unit]:
    """The translatable units of a file, in order."""
    parse = _parser(kind)
    try:
        with open_binary(path) as file:
            content = file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    if kind == "po":
        for number, line in enumerate(content.split(b"\n"), start=1):
            decode(line, path, number)
    try:
        units = list(parse(content).units)
    # translate-toolkit passes on whatever its parsers raise, StopIteration and SyntaxError among them
    except Exception as error:
        raise DataError(f"{path}: not a valid {kind} file: {error or type(error).__name__}") from None
    for unit in units:
        if kind == "tmx":
            source, target = (_text_in(unit, language) for language in languages)
            yield Unit(source, target)
        elif unit.istranslatable() and not unit.isheader() and not unit.isobsolete():
            # of plural forms, str() takes the singular on both sides
            yield Unit(str(unit.source or ""), str(unit.target or ""), draft=_is_draft(unit))


def _is_draft(unit: Any) -> bool:
    """Whether a translation is marked as unfinished.

    XLIFF 1.2 need not say `approved`, and translate-toolkit takes all that do not for fuzzy;
    what speaks against one is `approved="no"` or a state.
    """
    from translate.storage.xliff import xliffunit

    if not isinstance(unit, xliffunit):
        return bool(unit.isfuzzy())
    target = unit.target_dom
    state = "" if target is None else target.get("state", "")
    marked = unit.xmlelement.get("approved") == "no" or state == "new" or state.startswith("needs-")
    return marked and bool(unit.target)


def _parser(kind: str) -> Callable[[bytes], Any]:
    try:
        from translate.storage import pypo, tmx, xliff, xliff2
    except ImportError:
        raise DataError(f"reading {kind} files needs translate-toolkit: pip install 'reluformer[formats]'") from None

    def parse_xliff(content: bytes) -> Any:
        reader: Any = xliff2.Xliff2File if _XLIFF_2.search(content) else xliff.xlifffile
        return reader.parsestring(content)

    parsers: dict[str, Callable[[bytes], Any]] = {
        "tmx": tmx.tmxfile.parsestring,
        "xliff": parse_xliff,
        "po": pypo.pofile.parsestring,
    }
    return parsers[kind]


def _text_in(unit: Any, language: str) -> str:
    """The text of a TMX unit in `language`: `en` also finds `en-GB`, `en_GB` is `en-GB`; empty where it has none."""
    wanted = language.lower().replace("_", "-")
    for node in unit.getlanguageNodes():
        found = (node.get(_XML_LANGUAGE) or node.get("lang") or "").lower().replace("_", "-")
        if found == wanted or found.startswith(f"{wanted}-"):
            return str(unit.getNodeText(node) or "")
    return ""
