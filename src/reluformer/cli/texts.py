"""Texts on their way through a translator: where they come from, where they go, how they are laid out."""

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


@dataclass(frozen=True)
class Errand:
    """A file to translate and where to write the result; no file: standard input, no place: standard output."""

    origin: Path | None = None
    destination: Path | None = None

    @property
    def name(self) -> str:
        """For messages."""
        return STDIN if self.origin is None else str(self.origin)


@dataclass(frozen=True)
class Layouts:
    """Which format a file has: the one that was named, or the one that its name suggests."""

    format: str | None = None
    splitter: str = "simple"
    languages: tuple[str, str] = ("en", "de")

    def of(self, origin: Path | None) -> TextFormat:
        """The format of a file, or of standard input."""
        from reluformer.translation import formats, splitters

        source, target = self.languages
        splitter = splitters.get(self.splitter, source)
        if self.format is not None:
            return formats.get(self.format, splitter=splitter, source=source, target=target)
        return formats.detect(_unpacked_name(origin or Path()), splitter=splitter, source=source, target=target)

    def read(self, origin: Path | None) -> Skeleton:
        """A file, or standard input, without its sentences."""
        text = read_stdin() if origin is None else _read(origin)
        try:
            return self.of(origin).skeleton(text)
        except DataError as error:
            raise DataError(f"{STDIN if origin is None else origin}: {error}") from None


def read_stdin() -> str:
    """All of standard input; a person at a terminal is told how to end it."""
    from reluformer.translation.formats.base import decode

    if sys.stdin.isatty():
        typer.echo("Type or paste the text; Ctrl-D on a line of its own ends it.", err=True)
    return decode(typer.get_binary_stream("stdin").read(), STDIN)


def _read(path: Path) -> str:
    from reluformer.translation.formats import read_text

    return read_text(path)


def write(text: str, destination: Path | None) -> None:
    """To a file, whole or not at all, packed for `.gz`; or to standard output, byte for byte."""
    data = text.encode("utf-8")
    if destination is None:
        typer.echo(data, nl=False)
        return
    from reluformer.files import whole_file

    with whole_file(destination) as file:
        file.write(gzip.compress(data, mtime=0) if destination.suffix == ".gz" else data)


def errands(inputs: Sequence[Path], to: str | None, *, any_name: bool, force: bool) -> tuple[list[Errand], int]:
    """What is to be translated into what, and how many files of folders were left out.

    Files of folders keep their places below `to`; of them only those are taken whose names
    say that they are text, unless `any_name`. Nothing that exists is overwritten without `force`.
    """
    for path in inputs:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder")
    if not inputs:
        found, left_out = [Errand(None, None if to is None else Path(to))], 0
    elif to is None:
        if len(inputs) > 1 or inputs[0].is_dir():
            raise ArgumentError("several files go into a folder; name it with --to DIR")
        found, left_out = [Errand(inputs[0])], 0
    elif len(inputs) == 1 and not inputs[0].is_dir() and not (to.endswith(os.sep) or Path(to).is_dir()):
        found, left_out = [Errand(inputs[0], Path(to))], 0
    else:
        found, left_out = _into_folder(inputs, Path(to), any_name)
    _check_destinations(found, force)
    return found, left_out


def _into_folder(inputs: Sequence[Path], to: Path, any_name: bool) -> tuple[list[Errand], int]:
    found, left_out = [], 0
    if to.is_file():
        raise ArgumentError(f"--to {to}: is a file, but there are several texts; name a folder")
    for path in inputs:
        if not path.is_dir():
            found.append(Errand(path, to / path.name))
            continue
        if to.resolve().is_relative_to(path.resolve()):
            raise ArgumentError(f"--to {to}: lies inside {path}, which is translated; name another folder")
        for file in _files_below(path):
            if any_name or _is_text(file):
                found.append(Errand(file, to / file.relative_to(path)))
            else:
                left_out += 1
    if not found:
        folders = ", ".join(map(str, inputs))
        raise DataError(f"{folders}: no text in it by the names of its files; name their format with --format")
    return found, left_out


def _files_below(folder: Path) -> Iterator[Path]:
    """The files of a folder, hidden ones left out, in an order that is the same everywhere."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _is_text(path: Path) -> bool:
    from reluformer.translation import formats

    suffixes = tuple(suffix for name in formats.names() for suffix in formats.get(name).suffixes)
    return _unpacked_name(path).lower().endswith(suffixes)


def _unpacked_name(path: Path) -> str:
    return path.stem if path.suffix == ".gz" else path.name


def _check_destinations(found: Sequence[Errand], force: bool) -> None:
    taken: dict[Path, Errand] = {}
    for errand in found:
        if (place := errand.destination) is None:
            continue
        if place in taken:
            raise ArgumentError(f"{taken[place].name} and {errand.name} would both become {place}; translate one later")
        taken[place] = errand
        if errand.origin is not None and place.resolve() == errand.origin.resolve():
            raise ArgumentError(f"{place}: is the text itself; name another place with --to")
        if place.is_dir():
            raise StorageError(f"{place}: is a folder; remove it or choose another --to")
        if place.exists() and not force:
            raise StorageError(f"{place}: exists already; --force overwrites it")
