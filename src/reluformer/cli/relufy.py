"""`reluformer relufy`: turns a trained softmax model into one that reads with ReLU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reluformer.cli.options import AsJson, Plugins, check_inspectable, find_run, open_run, require_extra
from reluformer.errors import ArgumentError, StorageError
from reluformer.models import CONFIG
from reluformer.training.progress import activity

if TYPE_CHECKING:
    from reluformer.integrations.transformers.relufy.conversion import RelufyReport
    from reluformer.integrations.transformers.relufy.distillation import Distillation
    from reluformer.translation.recipe import CorpusMixture, CorpusSource

_MODEL_TYPE = "model_type"
"""The key of config.json that only models of transformers have."""


def relufy(
    source: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="A run, or the folder of a model of transformers.", show_default=False),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Directory of the new run or model.", show_default=False)
    ],
    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Texts to fit on: a sentence a line for encoders, a corpus of pairs otherwise. Default: the train "
            "split of the run.",
            show_default=False,
        ),
    ] = None,
    rule: Annotated[str, typer.Option(help="Rule that replaces softmax; relu is the paper's.")] = "relu_exp",
    zeros: Annotated[
        float | None,
        typer.Option(help="Find the level at which this share of weights is zero, e.g. 0.9.", show_default=False),
    ] = None,
    loss: Annotated[
        float | None,
        typer.Option(
            help="Find the most zeros that raise the loss by at most this share, e.g. 0.01.", show_default=False
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="Updates of distillation after the calibration; 0: none.")] = 0,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Most minutes of distillation.", show_default=False)
    ] = None,
    calibrate_on: Annotated[int, typer.Option(min=1, help="Texts that the calibration uses.")] = 256,
    limit: Annotated[int, typer.Option(min=1, help="Most texts that are read.")] = 20_000,
    max_length: Annotated[int, typer.Option(min=2, help="Tokens after which a text is cut.")] = 128,
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Replace softmax in a trained model by another rule, calibrate it, and report how close it stays.

    The model itself is not changed. relu_exp needs no distillation; relu needs
    minutes of it, such as --steps 400. Encoders and encoder-decoders of
    transformers work, and our own runs, which give an ordinary run again.
    --zeros and --loss are for our own runs; the report shows the curve.

    Example: reluformer relufy runs/softmax --out runs/relu
    """
    source = find_run(source)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StorageError(f"--out {out}: exists already; choose a new directory")
    is_pretrained = _is_pretrained(source)
    if is_pretrained:
        require_extra("hf", "reluformer relufy of a model of transformers")
    else:
        check_inspectable(source)
    from reluformer.integrations.transformers.relufy.distillation import Distillation

    distillation = Distillation(steps=steps or None, minutes=minutes) if steps or minutes else None
    options: dict[str, Any] = {
        "rule": rule,
        "zeros": zeros,
        "loss": loss,
        "distillation": distillation,
        "calibrate_on": calibrate_on,
        "max_length": max_length,
    }
    convert = _pretrained if is_pretrained else _run
    with activity(f"calibrating {source.name}") as tell:
        options["progress"] = lambda phase, step, loss: tell(_distilling(phase, step, loss, distillation))
        report = convert(source, out, texts, limit, options)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
        return
    typer.echo(str(report))
    loads = f"hub.load_relufied('{out}')" if is_pretrained else f"reluformer translate {out} FILE"
    typer.echo(f"wrote {out}; next: {loads}")


def _distilling(phase: str, step: int, loss: float, settings: Distillation | None) -> str:
    of = "" if settings is None or settings.steps is None else f" of {settings.steps}"
    return f"distilling ({phase}), update {step}{of}, loss {loss:.4f}"


def _is_pretrained(source: Path) -> bool:
    """Returns whether a folder holds a model of transformers other than an export of ours."""
    from reluformer import files

    try:
        content = files.parse_json(files.read_text(source / CONFIG))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get(_MODEL_TYPE, "reluformer") != "reluformer"


def _run(source: Path, out: Path, texts: Path | None, limit: int, options: dict[str, Any]) -> RelufyReport:
    from reluformer.integrations.transformers.relufy.conversion import relufy, save_relufied_run
    from reluformer.loading import load_translator

    open_run(source).check_recipe()
    teacher = load_translator(source)
    pairs = list(islice(_pairs(source, texts), limit))
    student, report = relufy(teacher.model, pairs, tokenizer=teacher.tokenizer, **options)
    save_relufied_run(student, out, like=source, report=report)
    return report


def _pairs(run: Path, texts: Path | None) -> Iterator[tuple[str, str]]:
    """Yield the sentence pairs of a file, or those that the run was trained on."""
    from reluformer.translation.corpus import read_documents
    from reluformer.translation.recipe import CorpusSource, Recipe

    data = open_run(run).recipe(Recipe).data
    given: CorpusSource | CorpusMixture = data.splits["train"] if texts is None else CorpusSource(path=texts)
    for document in read_documents(given, limits=data.limits, languages=(data.source_lang, data.target_lang)):
        yield from zip(document.src, document.tgt or (), strict=True)


def _pretrained(source: Path, out: Path, texts: Path | None, limit: int, options: dict[str, Any]) -> RelufyReport:
    if texts is None:
        raise ArgumentError(f"{source}: a model of transformers has no corpus of its own; add --texts FILE")
    from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

    from reluformer.integrations.transformers.relufy.conversion import relufy, save_relufied
    from reluformer.translation.corpus import read_documents
    from reluformer.translation.formats import read_text, split_lines
    from reluformer.translation.recipe import CorpusSource

    examples: list[Any]
    if AutoConfig.from_pretrained(source, local_files_only=True).is_encoder_decoder:
        documents = read_documents(CorpusSource(path=texts))
        pairs = (pair for d in documents for pair in zip(d.src, d.tgt or (), strict=True))
        model, examples = (
            AutoModelForSeq2SeqLM.from_pretrained(source, local_files_only=True),
            list(islice(pairs, limit)),
        )
    else:
        lines = (line.body.strip() for line in split_lines(read_text(texts)))
        model, examples = (
            AutoModel.from_pretrained(source, local_files_only=True),
            list(islice(filter(None, lines), limit)),
        )
    tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    student, report = relufy(model.eval(), examples, tokenizer=tokenizer, **options)
    save_relufied(student, out, tokenizer, report)
    return report
