"""Texts that are translated: which files are read, how they are parsed, and where translations are written."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from reluformer.errors import ArgumentError, DataError, StorageError

if TYPE_CHECKING:
    from reluformer.translation.formats import Skeleton, TextFormat

STDIN = "standard input"
STANDARD = "-"
"""In place of a file: standard input, or standard output."""
_NOT_TEXT = {
    **dict.fromkeys((".docx", ".doc", ".odt", ".rtf", ".pages"), "a document of a word processor"),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "a spreadsheet"),
    **dict.fromkeys((".pptx", ".ppt", ".odp"), "a presentation"),
    **dict.fromkeys((".pdf", ".epub"), "a file with a layout"),
}
"""What files are that people want translated, but that are not text, by the ends of their names."""


@dataclass(frozen=True)
class TextFile:
    """A text to translate, and where its translation goes.

    Attributes:
        source: The file to read, or None for standard input.
        destination: The file to write, or None for standard output.
    """

    source: Path | None = None
    destination: Path | None = None

    @property
    def name(self) -> str:
        """The name of the text in messages."""
        return STDIN if self.source is None else str(self.source)


@dataclass(frozen=True)
class FormatChoice:
    """How the format of a file is chosen: by the option `--format`, or else by the name of the file."""

    format: str | None = None
    splitter: str = "simple"
    languages: tuple[str, str] = ("en", "de")

    def format_of(self, source: Path | None) -> TextFormat:
        """Returns the format of a file, or of standard input if the source is None."""
        from reluformer.translation import formats, splitters

        language, target = self.languages
        splitter = splitters.get(self.splitter, language)
        if self.format is not None:
            return formats.get(self.format, splitter=splitter, source=language, target=target)
        return formats.detect(_unpacked_name(source or Path()), splitter=splitter, source=language, target=target)

    def parse(self, source: Path | None) -> Skeleton:
        """Read a file, or standard input, and return its skeleton: the text with its sentences taken out."""
        from reluformer.translation.formats import read_text

        if source is not None and self.format is None:
            _refuse_not_text(source)
        text = read_stdin() if source is None else read_text(source)
        try:
            return self.format_of(source).skeleton(text)
        except DataError as error:
            raise DataError(f"{STDIN if source is None else source}: {error}") from None


def _refuse_not_text(path: Path) -> None:
    """Raise an error for a file that is not text by its name; it says how to make text of it."""
    kind = _NOT_TEXT.get(path.suffix.lower())
    if kind is None:
        return
    target = "csv" if kind == "a spreadsheet" else "html"
    how = f"pdftotext {path.name}" if path.suffix.lower() == ".pdf" else f"export it as {target} or plain text"
    if target == "html" and path.suffix.lower() not in (".pdf", ".pages"):
        how = f"save it as HTML or plain text, e.g. with: soffice --headless --convert-to html {path.name}"
    raise DataError(f"{path}: is {kind}, not text; {how}, and translate the result")


def read_stdin() -> str:
    """Returns all of standard input. At a terminal, tell the user how to end it."""
    from reluformer.translation.formats import decode_text
    from reluformer.translation.formats.plain import read_limited

    if sys.stdin.isatty():
        typer.echo("Type or paste the text; Ctrl-D on a line of its own ends it.", err=True)
    return decode_text(read_limited(typer.get_binary_stream("stdin"), STDIN), STDIN)


def write(text: str, destination: Path | None) -> None:
    """Write a text to standard output, or to a file that appears only when it is complete.

    A file whose name ends in `.gz` is compressed.
    """
    data = text.encode("utf-8")
    if destination is None:
        typer.echo(data, nl=False)
        return
    from reluformer.files import whole_file

    with whole_file(destination) as file:
        file.write(gzip.compress(data, mtime=0) if destination.suffix == ".gz" else data)


def find_texts(inputs: Sequence[Path], to: str | None, *, any_name: bool, force: bool) -> tuple[list[TextFile], int]:
    """Find the texts to translate and their destinations.

    Files of folders keep their relative paths below `to`.

    Args:
        inputs: Files and folders; standard input if there are none, or for `-` alone.
        to: The folder or file for the result, or None for standard output.
        any_name: Take every file of a folder, not only those whose names say that they are text.
        force: Allow destinations that exist.

    Returns:
        The texts, and the number of files in folders that were skipped.

    Raises:
        ArgumentError: The inputs do not go together with `to`.
        DataError: An input does not exist, or a folder holds no text.
        StorageError: A destination exists and `force` is not set.
    """
    if Path(STANDARD) in inputs:
        if len(inputs) > 1:
            raise ArgumentError("- is standard input, which is translated alone; leave it or the other files out")
        inputs = ()
    for path in inputs:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder")
    if not inputs:
        found, skipped = [TextFile(None, None if to is None else Path(to))], 0
    elif to is None:
        if len(inputs) > 1 or inputs[0].is_dir():
            raise ArgumentError("several files go into a folder; name it with --to DIR")
        found, skipped = [TextFile(inputs[0])], 0
    elif len(inputs) == 1 and not inputs[0].is_dir() and not (to.endswith(os.sep) or Path(to).is_dir()):
        found, skipped = [TextFile(inputs[0], Path(to))], 0
    else:
        found, skipped = _texts_into_folder(inputs, Path(to), any_name)
    _check_destinations(found, force)
    return found, skipped


def _texts_into_folder(inputs: Sequence[Path], to: Path, any_name: bool) -> tuple[list[TextFile], int]:
    found, skipped = [], 0
    if to.is_file():
        raise ArgumentError(f"--to {to}: is a file, but there are several texts; name a folder")
    for path in inputs:
        if not path.is_dir():
            found.append(TextFile(path, to / path.name))
            continue
        if to.resolve().is_relative_to(path.resolve()):
            raise ArgumentError(f"--to {to}: lies inside {path}, which is translated; name another folder")
        for file in _files_below(path):
            if any_name or _is_text(file):
                found.append(TextFile(file, to / file.relative_to(path)))
            else:
                skipped += 1
    if not found:
        folders = ", ".join(map(str, inputs))
        raise DataError(f"{folders}: no file has the name of a text; name the format with --format")
    return found, skipped


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder in sorted order, without hidden ones."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _is_text(path: Path) -> bool:
    from reluformer.translation import formats

    suffixes = tuple(suffix for name in formats.names() for suffix in formats.get(name).suffixes)
    return _unpacked_name(path).lower().endswith(suffixes)


def _unpacked_name(path: Path) -> str:
    return path.stem if path.suffix == ".gz" else path.name


def _check_destinations(found: Sequence[TextFile], force: bool) -> None:
    taken: dict[Path, TextFile] = {}
    for text in found:
        if (place := text.destination) is None:
            continue
        if place in taken:
            raise ArgumentError(
                f"{taken[place].name} and {text.name} would both become {place}; translate them one by one"
            )
        taken[place] = text
        if text.source is not None and place.resolve() == text.source.resolve():
            raise ArgumentError(f"{place}: is the text itself; name another place with --to")
        if place.is_dir():
            raise StorageError(f"{place}: is a folder; remove it or choose another --to")
        if place.exists() and not force:
            raise StorageError(f"{place}: exists already; --force overwrites it")
