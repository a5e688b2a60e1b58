"""Text formats: one codec each, for documents to translate and for corpora to train on.

    text_format = detect("letter.md")
    sentences, skeleton = text_format.parse(read_text("letter.md"))
    write_text("brief.md", skeleton.fill(translate(sentences)))

A skeleton filled with its own sentences is the text again, byte for byte, in `plain`,
`aligned`, `markdown`, `html`, `srt` and `vtt`; the other formats only add to what is there. `skeleton.documents`
groups the same sentences by document, for models that read across sentences.

plain      running text, aligned text with one sentence a line, and the files of all formats
markup     Markdown (CommonMark with tables) and HTML pages
tabular    TSV, CSV and JSON lines
bilingual  TMX, XLIFF and PO, with the inline elements of XLIFF
subtitles  SubRip and WebVTT
skeleton   text units, and the skeleton that they are put back into
spans      markup in running text, and the sentences between
marks      the markup of a sentence, and its place in the translation
"""

from __future__ import annotations

from pathlib import Path

from reluformer.errors import UnknownNameError, nearest
from reluformer.translation.formats.bilingual import BilingualFormat, Po, Tmx, Xliff
from reluformer.translation.formats.markup import Html, Markdown
from reluformer.translation.formats.plain import (
    AlignedText,
    PlainText,
    decode_text,
    read_text,
    split_lines,
    write_text,
)
from reluformer.translation.formats.skeleton import (
    AnyTranslation,
    CorpusFormat,
    FillReport,
    Skeleton,
    TextFormat,
    TextSkeleton,
    TextUnit,
    alignment_needs,
    fill_all,
)
from reluformer.translation.formats.subtitles import SubRip, WebVtt
from reluformer.translation.formats.tabular import Csv, Jsonl, Tsv
from reluformer.translation.splitters import Splitter

_FORMATS: dict[str, type[TextFormat]] = {
    kind.name: kind
    for kind in (PlainText, Markdown, Html, AlignedText, Jsonl, Tsv, Csv, Tmx, Xliff, Po, SubRip, WebVtt)
}


def names() -> tuple[str, ...]:
    """Returns the names of all formats."""
    return tuple(_FORMATS)


def get(name: str, *, splitter: str | Splitter = "simple", source: str = "en", target: str = "de") -> TextFormat:
    """Returns a format by its name.

    Args:
        name: A name out of `names()`.
        splitter: The sentence splitter of running text, by name or as an object.
        source: The language of the text.
        target: The language of the translation.

    Raises:
        UnknownNameError: No format or splitter has this name.

    Example:
        >>> from reluformer.translation import formats
        >>> formats.get("plain").parse("One. Two.")[0]
        ('One.', 'Two.')
    """
    if name not in _FORMATS:
        raise UnknownNameError(f"unknown format '{name}'; {nearest(name, _FORMATS)}")
    return _FORMATS[name](splitter, source=source, target=target)


def detect(
    path: str | Path, *, splitter: str | Splitter = "simple", source: str = "en", target: str = "de"
) -> TextFormat:
    """Returns the format that the name of a file suggests; plain text where it suggests none.

    Example:
        >>> from reluformer.translation import formats
        >>> formats.detect("letter.md").name
        'markdown'
    """
    file_name = Path(path).name.lower()
    matching = (kind.name for kind in _FORMATS.values() if file_name.endswith(kind.suffixes))
    return get(next(matching, PlainText.name), splitter=splitter, source=source, target=target)


def is_jsonl(path: str | Path) -> bool:
    """Returns whether the name of a file says that it holds JSON lines."""
    return isinstance(detect(path), Jsonl)


__all__ = [
    "AlignedText",
    "AnyTranslation",
    "BilingualFormat",
    "CorpusFormat",
    "Csv",
    "FillReport",
    "Html",
    "Jsonl",
    "Markdown",
    "PlainText",
    "Po",
    "Skeleton",
    "SubRip",
    "TextFormat",
    "TextSkeleton",
    "TextUnit",
    "Tmx",
    "Tsv",
    "WebVtt",
    "Xliff",
    "alignment_needs",
    "decode_text",
    "detect",
    "fill_all",
    "get",
    "is_jsonl",
    "names",
    "read_text",
    "split_lines",
    "write_text",
]
