"""Inline elements of XLIFF: `<g>`, `<x/>`, `<pc>`, `<ph>` and the like, in the source and in the target of an entry.

The text of a source stands for its elements with codes of control characters, which XML itself cannot
hold. A format takes the codes for marks. The translation with its codes then becomes the content of
the target, where every element is a copy of that of the source.

paired      g, pc, mrk; bpt with ept, bx with ex and sc with ec of the same id
standalone  x, ph, it, cp and any other, with all that they hold; a half of a pair whose other half is elsewhere
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import copy, deepcopy
from typing import Any

ELEMENT = re.compile("\x02([oce])(\\d+)\x03")
_AROUND_TEXT = frozenset(("g", "pc", "mrk"))
_HALVES = {"bpt": "ept", "bx": "ex", "sc": "ec"}
_KINDS = {"o": "open", "c": "close", "e": "empty"}
_SPACES = re.compile(r"\s+")


def element_tags(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Yields start, end, name and kind of the codes in a text, for `spans.pair_tags`."""
    for match in ELEMENT.finditer(text):
        yield *match.span(), match[2], _KINDS[match[1]]


class InlineElements:
    """The inline elements in the source of an entry.

    Args:
        entry: A unit of translate-toolkit's XLIFF 1.2 or 2.
    """

    def __init__(self, entry: Any) -> None:
        self._entry = entry
        self._elements: dict[tuple[str, int], Any] = {}
        source = entry.xmlelement.find(entry.namespaced("source"))
        self._source = source if source is not None and any(isinstance(one.tag, str) for one in source) else None
        self.text = str(entry.source or "")
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

    def fill(self, text: str) -> None:
        """Sets the target of the entry: a translation of `text` with its codes."""
        self._entry.target = ELEMENT.sub("", text) or " "
        if self._source is None:
            return
        target = self._entry.xmlelement.find(self._entry.namespaced("target"))
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
            opened[node.getparent(), _HALVES[name], node.get("rid") or node.get("id") or ""] = node
        else:
            id = node.get("startRef") or node.get("rid") or node.get("id") or ""
            first = opened.pop((node.getparent(), name, id), None)
            if first is not None:
                yield first, node
                yield node, first


def _name(node: Any) -> str:
    return str(node.tag).rpartition("}")[2]


def _space(node: Any) -> str | None:
    value = node.get("{http://www.w3.org/XML/1998/namespace}space")
    return None if value is None else str(value)
