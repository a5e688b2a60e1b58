"""`reluformer translate`: text in, text out, files and folders likewise."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reluformer.cli import forced, models, texts
from reluformer.cli.options import (
    AsJson,
    Beam,
    Device,
    LengthPenalty,
    Plugins,
    Run,
    Settings,
    SplitterName,
    decoding_changes,
)
from reluformer.cli.progress import sentence_bar
from reluformer.cli.texts import Errand
from reluformer.errors import ArgumentError

if TYPE_CHECKING:
    from reluformer.translation.document import Document
    from reluformer.translation.documents import Translation
    from reluformer.translation.formats import Skeleton
    from reluformer.translation.translator import Translator

FORMATS = "plain, markdown, html, aligned (one sentence a line), jsonl, tsv, tmx, xliff or po"
"""The names of `data.formats`, which `--help` is too quick to import."""
TOGETHER = 256
"""Small files are translated together until they have so many sentences, then written."""


def translate(
    run: Run,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Files or folders; none: standard input.")
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="PLACE", help="Folder, or file for a single text.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what exists.")] = False,
    format: Annotated[str | None, typer.Option(metavar="NAME", help=f"{FORMATS}; else by the names of files.")] = None,
    splitter: SplitterName = "simple",
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    n_best: Annotated[
        int | None, typer.Option(min=1, help="Print so many translations of each document with their scores.")
    ] = None,
    score: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Print how likely the model finds this translation.")
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print each sentence as soon as it is settled.")] = False,
    settings: Settings = [],  # noqa: B006
    device: Device = "auto",
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Translate text, Markdown, HTML, JSONL, TSV, TMX, XLIFF and PO.

    Everything that is not a sentence is left untouched.

    --n-best prints document, rank, log-probability and translation, tab
    separated; --score prints document, sentence number, log-probability and
    sentence. A file is written when all of it is finished.

    Example: reluformer translate runs/demo/reluformer letters/ --to briefe/
    """
    _check_together(stream=stream, score=score, n_best=n_best, json=as_json, to=to)
    models.check_model(run)
    listing = as_json or n_best is not None or score is not None
    found, left_out = texts.errands(files or [], to, any_name=format is not None, force=force)
    if listing and len(found) > 1:
        raise ArgumentError("--n-best, --score and --json take one text at a time")
    layouts = texts.Layouts(format, splitter, models.languages(run))
    works = [Work(errand, layouts.read(errand.origin)) for errand in found]
    changes = decoding_changes(settings, beam=beam, length_penalty=length_penalty)
    if not listing:
        _tell_what_is_missing(works, left_out)
    pairs = None if score is None else forced.pairs(works[0].skeleton, score, layouts, works[0].errand.name)
    translator = models.open_translator(run, device, **changes)
    if stream:
        _stream(translator, works[0])
    elif pairs is not None:
        texts.write(forced.report(translator, pairs, as_json), works[0].errand.destination)
    elif listing:
        text = _listing(translator, works[0].skeleton.documents, n_best or 1, as_json)
        texts.write(text, works[0].errand.destination)
    else:
        _translate_files(translator, works)


@dataclass(frozen=True)
class Work:
    """A text that was read and waits for its translations."""

    errand: Errand
    skeleton: Skeleton

    @property
    def size(self) -> int:
        """Its sentences."""
        return sum(len(document.src) for document in self.skeleton.documents)


def _check_together(*, stream: bool, score: Path | None, n_best: int | None, json: bool, to: str | None) -> None:
    """Refuse options that contradict each other."""
    others = {"--score": score is not None, "--n-best": n_best is not None, "--json": json, "--to": to is not None}
    for name, given in others.items():
        if stream and given:
            raise ArgumentError(f"--stream prints one translation as it comes; leave it or {name} out")
    if score is not None and n_best is not None:
        raise ArgumentError("--score judges a translation that is given, --n-best makes some; leave one out")


def _tell_what_is_missing(works: Sequence[Work], left_out: int) -> None:
    for work in works:
        if not work.size:
            typer.echo(f"{work.errand.name}: nothing to translate in it", err=True)
    if left_out:
        typer.echo(f"left out {left_out} files that are no text by their names; --format takes all", err=True)


def _translate_files(translator: Translator, works: Sequence[Work]) -> None:
    """Each text as soon as it is finished; Ctrl-C keeps those that are."""
    written: list[Path] = []
    total = sum(work.size for work in works)
    try:
        with sentence_bar("translating", total) as report:
            for done, group in _groups(works):
                documents = [document.src for work in group for document in work.skeleton.documents]
                tell = None if report is None else lambda now, _, done=done: report(done + now, total)
                translations = iter(translator.translate_documents(documents, tell))
                for work in group:
                    sentences = chain.from_iterable(next(translations) for _ in work.skeleton.documents)
                    texts.write(work.skeleton.fill(list(sentences)), work.errand.destination)
                    if work.errand.destination is not None:
                        written.append(work.errand.destination)
    except KeyboardInterrupt:
        kept = "".join(f"\n  {path}" for path in written)
        typer.echo(f"interrupted; finished {len(written)} of {len(works)} texts{kept and ':' + kept}", err=True)
        raise typer.Exit(1) from None


def _groups(works: Sequence[Work]) -> Iterator[tuple[int, list[Work]]]:
    """Works to translate together, each group with the sentences before it."""
    group: list[Work] = []
    before = 0
    for work in works:
        group.append(work)
        size = sum(member.size for member in group)
        if size >= TOGETHER:
            yield before, group
            group, before = [], before + size
    if group:
        yield before, group


def _stream(translator: Translator, work: Work) -> None:
    """Text between sentences and sentences in turn, each as soon as nothing can change it."""
    from reluformer.translation.formats.base import Slot, TextSkeleton

    if not isinstance(work.skeleton, TextSkeleton):
        raise ArgumentError("--stream is for plain text, Markdown, aligned text and TSV; leave it out")
    sentences = chain.from_iterable(translator.stream(document.src) for document in work.skeleton.documents)
    for part in work.skeleton.parts:
        piece = part.fill(next(sentences)) if isinstance(part, Slot) else part
        typer.echo(piece.encode("utf-8"), nl=False)


def _listing(translator: Translator, documents: Sequence[Document], n: int, as_json: bool) -> str:
    """The n best translations of each document with their scores, as JSON or in columns."""
    with sentence_bar("translating", sum(len(document.src) for document in documents)) as report:
        ranked = translator.translate_n_best([document.src for document in documents], n, report)
    if as_json:
        entries = [_entry(document, found) for document, found in zip(documents, ranked, strict=True)]
        return json.dumps({"documents": entries}, indent=2, ensure_ascii=False) + "\n"
    return "".join(
        f"{document.id}\t{rank}\t{translation.score:.4f}\t{_on_one_line(translation)}\n"
        for document, found in zip(documents, ranked, strict=True)
        for rank, translation in enumerate(found, 1)
    )


def _entry(document: Document, found: Sequence[Translation]) -> dict[str, Any]:
    translations = [{"score": one.score, "sentences": list(one.sentences)} for one in found]
    return {"id": document.id, "src": list(document.src), "translations": translations}


def _on_one_line(translation: Translation) -> str:
    return " ".join(" ".join(translation.sentences).split())
