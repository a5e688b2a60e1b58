"""Lines of text with their endings, so that nothing is lost when they are put together again."""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")


class Line(NamedTuple):
    """`body + ending` is the line as it stands in the text; the last ending may be empty."""

    body: str
    ending: str


def split_lines(text: str) -> list[Line]:
    """The lines of `text`. Only CR LF, LF and CR end a line, not the exotic ends of `str.splitlines`."""
    lines = [Line(*match.groups()) for match in _LINE.finditer(text)]
    return lines[:-1] if lines[-1] == ("", "") else lines


def on_one_line(text: str) -> str:
    """`text` with every line break, and the white space around it, turned into one space."""
    return re.sub(r"\s*[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]\s*", " ", text).strip()
