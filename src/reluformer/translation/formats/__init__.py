"""Documents for translation: sentences out, translations in, the structure as it was.

    text_format = detect("letter.md")
    sentences, skeleton = text_format.parse(read_text("letter.md"))
    write_text("brief.md", skeleton.fill(translate(sentences)))

A skeleton filled with its own sentences is the text again, byte for byte, in `plain`,
`aligned`, `markdown` and `html`; the other formats only add to what is there. `skeleton.documents`
groups the same sentences by document, for models that read across sentences.
"""

from __future__ import annotations

from pathlib import Path

from reluformer.errors import UnknownNameError, nearest
from reluformer.translation.formats.base import Skeleton, TextFormat, read_text, write_text
from reluformer.translation.formats.catalogues import Catalogue, Po, Tmx, Xliff
from reluformer.translation.formats.corpora import AlignedText, Jsonl, Tsv
from reluformer.translation.formats.html import Html
from reluformer.translation.formats.markdown import Markdown
from reluformer.translation.formats.plain import PlainText
from reluformer.translation.splitters import Splitter

_FORMATS: dict[str, type[TextFormat]] = {
    kind.name: kind for kind in (PlainText, Markdown, Html, AlignedText, Jsonl, Tsv, Tmx, Xliff, Po)
}


def names() -> tuple[str, ...]:
    """Every format that can be named."""
    return tuple(_FORMATS)


def get(name: str, *, splitter: str | Splitter = "simple", source: str = "en", target: str = "de") -> TextFormat:
    """A format by its name; it takes of the options what it needs."""
    if name not in _FORMATS:
        raise UnknownNameError(f"unknown format '{name}'; {nearest(name, _FORMATS)}")
    kind = _FORMATS[name]
    if issubclass(kind, Catalogue):
        return kind(splitter, source=source, target=target)
    if issubclass(kind, PlainText | Markdown | Html):
        return kind(splitter)
    return kind()


def detect(
    path: str | Path, *, splitter: str | Splitter = "simple", source: str = "en", target: str = "de"
) -> TextFormat:
    """The format that the name of a file suggests; plain text where it suggests none."""
    file_name = Path(path).name.lower()
    matching = (kind.name for kind in _FORMATS.values() if file_name.endswith(kind.suffixes))
    return get(next(matching, PlainText.name), splitter=splitter, source=source, target=target)


def is_jsonl(path: str | Path) -> bool:
    """Whether the name of a file says that it holds JSON lines."""
    return isinstance(detect(path), Jsonl)


__all__ = [
    "AlignedText",
    "Html",
    "Jsonl",
    "Markdown",
    "PlainText",
    "Po",
    "Skeleton",
    "TextFormat",
    "Tmx",
    "Tsv",
    "Xliff",
    "detect",
    "get",
    "is_jsonl",
    "names",
    "read_text",
    "write_text",
]
