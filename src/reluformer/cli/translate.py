"""`reluformer translate`: translates text from standard input, files and folders, and scores given translations."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reluformer.cli.options import (
    AsJson,
    Beam,
    Device,
    Int8,
    LengthPenalty,
    Plugins,
    RunArgument,
    Settings,
    SplitterName,
    check_model,
    decoding_changes,
    languages,
)
from reluformer.cli.text_files import STANDARD, FormatChoice, TextFile, find_texts, write
from reluformer.errors import ArgumentError, DataError
from reluformer.training.progress import Report, activity, counted

if TYPE_CHECKING:
    from reluformer.translation.document import Document
    from reluformer.translation.formats import FillReport, Skeleton
    from reluformer.translation.translator import TargetScore, Translator
    from reluformer.translation.windows import Translation


FORMATS = "plain, markdown, html, aligned (one sentence a line), jsonl, tsv, csv, tmx, xliff, po, srt or vtt"
"""The names of `translation.formats`, which is not imported here because `--help` must be quick."""
SENTENCES_TOGETHER = 256
"""Small files are translated together until they have this many sentences."""

Pair = tuple["Document", tuple[str, ...]]
"""A document and its given translation, sentence by sentence."""


def translate(
    run: RunArgument,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Files or folders. Default, and -: standard input.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Folder, or file for a single text. Default, and -: standard output."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
    format: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"{FORMATS}. Default: by the names of files.")
    ] = None,
    splitter: SplitterName = "simple",
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    n_best: Annotated[
        int | None, typer.Option(min=1, help="Print this many translations of each document with their scores.")
    ] = None,
    score: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Print the log-probabilities of the translation in this file.")
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print each sentence as soon as it is final.")] = False,
    settings: Settings = [],  # noqa: B006
    device: Device = "auto",
    int8: Int8 = False,
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Translate text, Markdown, HTML, JSONL, TSV, CSV, TMX, XLIFF, PO and subtitles.

    Everything that is not a sentence is kept unchanged. Inline markup and
    placeholders are placed beside the words that read them. What was copied,
    translated anew or placed by position is reported on standard error.

    --n-best prints document, rank, log-probability and translation, separated
    by tabs; --score prints document, sentence number, log-probability and
    sentence. A file is written when its whole translation is finished.

    Example: reluformer translate runs/demo/reluformer letters/ --to briefe/
    """
    to = None if to == STANDARD else to
    _check_options(stream=stream, score=score, n_best=n_best, json=as_json, to=to)
    check_model(run)
    listing = as_json or n_best is not None or score is not None
    found, skipped = find_texts(files or [], to, any_name=format is not None, force=force)
    if listing and len(found) > 1:
        raise ArgumentError("--n-best, --score and --json take one text at a time")
    formats = FormatChoice(format, splitter, languages(run))
    texts = [ParsedText(file, formats.parse(file.source)) for file in found]
    changes = decoding_changes(settings, beam=beam, length_penalty=length_penalty)
    if not listing:
        _report_skipped(texts, skipped)
    pairs = None if score is None else _pair_documents(texts[0].skeleton, score, formats, texts[0].file.name)
    from reluformer.loading import load_translator

    translator = load_translator(run, device, int8=int8, **changes)
    if stream:
        _stream(translator, texts[0])
    elif pairs is not None:
        write(_score_listing(translator, pairs, as_json), texts[0].file.destination)
    elif listing:
        listed = _n_best_listing(translator, texts[0].skeleton, n_best or 1, as_json)
        write(listed, texts[0].file.destination)
    else:
        _translate_texts(translator, texts)


@dataclass(frozen=True)
class ParsedText:
    """A text that was read, with its sentences taken out for translation."""

    file: TextFile
    skeleton: Skeleton

    @property
    def size(self) -> int:
        """The number of its sentences."""
        return sum(len(document.src) for document in self.skeleton.documents)


def _check_options(*, stream: bool, score: Path | None, n_best: int | None, json: bool, to: str | None) -> None:
    """Raise an error for options that contradict each other."""
    others = {"--score": score is not None, "--n-best": n_best is not None, "--json": json, "--to": to is not None}
    for name, given in others.items():
        if stream and given:
            raise ArgumentError(f"--stream prints one translation as it comes; leave it or {name} out")
    if score is not None and n_best is not None:
        raise ArgumentError("--score judges a translation that is given, --n-best makes some; leave one out")


def _report_skipped(texts: Sequence[ParsedText], skipped: int) -> None:
    """Report texts without sentences and files that were skipped on standard error."""
    for text in texts:
        if not text.size:
            typer.echo(f"{text.file.name}: nothing to translate in it", err=True)
    if skipped:
        typer.echo(f"skipped {skipped} files whose names are not those of texts; --format takes all", err=True)


def _translate_texts(translator: Translator, texts: Sequence[ParsedText]) -> None:
    """Write each translation as soon as it is finished. Ctrl-C keeps those that are."""
    from reluformer.translation.formats import FillReport, alignment_needs

    written: list[Path] = []
    filling = FillReport()
    total = sum(text.size for text in texts)
    try:
        with counted("translating", "sentences", total) as report:
            for done, group in _groups(texts):
                documents = [document.src for text in group for document in text.skeleton.documents]
                needs = alignment_needs(text.skeleton for text in group)
                tell = partial(_report_after, report, done, total)
                translations = iter(translator.translate_n_best(documents, 1, tell, needs))
                for text in group:
                    sentences = chain.from_iterable(next(translations)[0].translated for _ in text.skeleton.documents)
                    write(text.skeleton.fill(list(sentences), filling), text.file.destination)
                    if text.file.destination is not None:
                        written.append(text.file.destination)
    except KeyboardInterrupt:
        kept = "".join(f"\n  {path}" for path in written)
        typer.echo(f"interrupted; finished {len(written)} of {len(texts)} texts{kept and ':' + kept}", err=True)
        raise typer.Exit(1) from None
    _report_filling(filling)


def _report_after(report: Report, before: int, total: int, done: int, _: int) -> None:
    report(before + done, total)


def _report_filling(report: FillReport) -> None:
    """Report on standard error what happened to sentences that were not simply translated."""
    if str(report):
        typer.echo(str(report), err=True)


def _groups(texts: Sequence[ParsedText]) -> Iterator[tuple[int, list[ParsedText]]]:
    """Yield texts to translate together, each group with the number of sentences before it."""
    group: list[ParsedText] = []
    before = 0
    for text in texts:
        group.append(text)
        size = sum(member.size for member in group)
        if size >= SENTENCES_TOGETHER:
            yield before, group
            group, before = [], before + size
    if group:
        yield before, group


def _stream(translator: Translator, text: ParsedText) -> None:
    """Print each sentence as soon as nothing can change it, with the text between sentences."""
    from reluformer.translation.formats import FillReport, TextSkeleton

    filling = FillReport()
    if not isinstance(text.skeleton, TextSkeleton):
        raise ArgumentError(
            "--stream is for plain text, Markdown, HTML, aligned text, TSV, CSV and subtitles; leave it out"
        )
    sentences = chain.from_iterable(
        translator.stream_translations(document.src, text.skeleton.has_marks) for document in text.skeleton.documents
    )
    for piece in text.skeleton.stream(sentences, filling):
        typer.echo(piece.encode("utf-8"), nl=False)
    _report_filling(filling)


def _n_best_listing(translator: Translator, skeleton: Skeleton, n: int, as_json: bool) -> str:
    """List the n best translations of each document with their scores, as JSON or in columns."""
    from reluformer.translation.formats import FillReport

    documents = skeleton.documents
    with counted("translating", "sentences", sum(len(document.src) for document in documents)) as report:
        needs = [as_json and skeleton.has_marks for _ in documents]
        ranked = translator.translate_n_best([document.src for document in documents], n, report, needs)
    if as_json:
        entries = [_n_best_entry(document, found) for document, found in zip(documents, ranked, strict=True)]
        filling = FillReport()
        skeleton.fill([sentence for found in ranked for sentence in found[0].translated], filling)
        return json.dumps({"documents": entries, "summary": filling.to_json()}, indent=2, ensure_ascii=False) + "\n"
    return "".join(
        f"{document.id}\t{rank}\t{translation.score:.4f}\t{_on_one_line(translation)}\n"
        for document, found in zip(documents, ranked, strict=True)
        for rank, translation in enumerate(found, 1)
    )


def _n_best_entry(document: Document, found: Sequence[Translation]) -> dict[str, Any]:
    translations = [{"score": one.score, "sentences": list(one.sentences)} for one in found]
    return {"id": document.id, "src": list(document.src), "translations": translations}


def _on_one_line(translation: Translation) -> str:
    return " ".join(" ".join(translation.sentences).split())


def _pair_documents(source: Skeleton, target: Path, formats: FormatChoice, source_name: str) -> list[Pair]:
    """Pair each document of the source with its given translation, and skip documents that are empty in both."""
    if not source.sentences:
        raise DataError(f"{source_name}: holds no sentence, so there is nothing to score")
    targets = _given_translations(target, formats)
    if len(targets) != len(source.documents):
        raise DataError(
            f"{target}: {len(targets)} documents, but {source_name} has {len(source.documents)}; "
            "both must hold the same documents in the same order"
        )
    found = list(zip(source.documents, targets, strict=True))
    for document, sentences in found:
        if bool(document.src) != bool(sentences):
            empty, other = (source_name, target) if sentences else (target, source_name)
            raise DataError(
                f"{empty}: document {document.id} is empty, but {other} has sentences for it; add or drop it"
            )
    return [pair for pair in found if pair[1]]


def _given_translations(path: Path, formats: FormatChoice) -> list[tuple[str, ...]]:
    """Read the documents of a text, or those under "hyp" or "tgt" in JSONL, without blank sentences."""
    from reluformer.translation.formats import BilingualFormat, Csv, Jsonl, Tsv, is_jsonl
    from reluformer.translation.scoring import read_hypotheses

    if is_jsonl(path):
        return [tuple(sentence for sentence in document if sentence.strip()) for document in read_hypotheses(path)]
    if formats.format is not None and isinstance(formats.format_of(path), Tsv | Csv | BilingualFormat):
        formats = replace(formats, format=None)  # --format describes the source
    layout = formats.format_of(path)
    if isinstance(layout, Tsv | Csv | Jsonl | BilingualFormat):
        raise DataError(
            f"{path}: read as {layout.name}, whose sentences are sources; give the translations alone, as text or as "
            '.jsonl with "tgt"'
        )
    return [document.src for document in formats.parse(path).documents]


def _score_listing(translator: Translator, pairs: Sequence[Pair], as_json: bool) -> str:
    """List log-probabilities by sentence, as JSON or in columns, and print the total to standard error."""
    with activity("scoring the translation"):
        scores = translator.score([source.src for source, _ in pairs], [target for _, target in pairs])
    tokens = sum(len(score.tokens) for score in scores)
    total = sum(score.total for score in scores)
    if as_json:
        entries = [_score_entry(pair, score) for pair, score in zip(pairs, scores, strict=True)]
        summary = {"documents": entries, "total": total, "tokens": tokens, "perplexity": _perplexity(total, tokens)}
        return json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
    typer.echo(f"log-probability {total:.2f} of {tokens} tokens, perplexity {_perplexity(total, tokens):.2f}", err=True)
    return "".join(
        f"{source.id}\t{number}\t{value:.4f}\t{' '.join(sentence.split())}\n"
        for (source, target), score in zip(pairs, scores, strict=True)
        for number, (value, sentence) in enumerate(zip(score.sentences, target, strict=True), 1)
    )


def _score_entry(pair: Pair, score: TargetScore) -> dict[str, Any]:
    source, target = pair
    return {
        "id": source.id,
        "src": list(source.src),
        "tgt": list(target),
        "log_probability": score.total,
        "sentences": list(score.sentences),
        "tokens": list(score.tokens),
    }


def _perplexity(total: float, tokens: int) -> float:
    return math.exp(min(-total / tokens, 700))
