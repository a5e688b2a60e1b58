"""`reluformer export`: writes a run for transformers or for ONNX, and turns an export back into a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from reluformer.cli import extras
from reluformer.cli.options import AsJson, Plugins
from reluformer.errors import ArgumentError
from reluformer.training.run import RunDirectory, find_run


class ExportTarget(StrEnum):
    """The forms in which a model can be written."""

    hf = "hf"
    onnx = "onnx"
    run = "run"


def export(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="A run; with --to run, an export.", show_default=False)],
    to: Annotated[
        ExportTarget, typer.Option("--to", help="hf: transformers; onnx; run: from hf back.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Directory to write to. Default: RUN/hf, RUN/onnx or RUN/run."),
    ] = None,
    quantize: Annotated[
        str | None, typer.Option("--quantize", metavar="int8", help="With --to onnx: quantise the weights.")
    ] = None,
    opset: Annotated[int | None, typer.Option("--opset", min=1, help="With --to onnx: the opset version.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an export that exists.")] = False,
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Write the model of a run for transformers or ONNX, or turn an export to transformers back into a run.

    `--to hf` and `--to run` keep the weights bit for bit.

    Example: reluformer export runs/demo/reluformer --to hf --out exported
    """
    if to is not ExportTarget.onnx and (quantize is not None or opset is not None):
        raise ArgumentError(f"--quantize and --opset are for --to onnx, not --to {to}; leave them out")
    extra = "onnx" if to is ExportTarget.onnx else "hf"
    extras.require(extra, f"reluformer export --to {to}")
    source = find_run(source)
    target = source / to if out is None else out
    written = _WRITERS[to](source, target, quantize, opset, force)
    if as_json:
        typer.echo(json.dumps(written, indent=2))
        return
    typer.echo(f"wrote {target}")
    for name, size in written.get("files", {}).items():
        typer.echo(f"  {name}  {size:,} bytes")
    typer.echo(_NEXT[to].format(run=source, out=target))


def _to_hf(run: Path, out: Path, quantize: str | None, opset: int | None, force: bool) -> dict[str, Any]:
    from reluformer import hub

    RunDirectory(run).check_model()
    result: dict[str, Any] = hub.export_run(run, out, force=force)
    return result


def _to_run(source: Path, out: Path, quantize: str | None, opset: int | None, force: bool) -> dict[str, Any]:
    from reluformer import hub

    result: dict[str, Any] = hub.import_run(source, out, force=force)
    return result


def _to_onnx(run: Path, out: Path, quantize: str | None, opset: int | None, force: bool) -> dict[str, Any]:
    from reluformer.integrations import onnx

    RunDirectory(run).check_model()
    result: dict[str, Any] = onnx.export_run(run, out, quantize=quantize, opset=opset, force=force)
    return result


_WRITERS: dict[ExportTarget, Callable[[Path, Path, str | None, int | None, bool], dict[str, Any]]] = {
    ExportTarget.hf: _to_hf,
    ExportTarget.onnx: _to_onnx,
    ExportTarget.run: _to_run,
}
_NEXT = {
    ExportTarget.hf: (
        "load it with: from reluformer import hub; hub.register(); AutoModelForSeq2SeqLM.from_pretrained('{out}')"
    ),
    ExportTarget.onnx: (
        "translate with: reluformer translate {out} document.txt; what it changes in BLEU and speed: "
        "reluformer evaluate {run} --against {out}"
    ),
    ExportTarget.run: "translate with: reluformer translate {out} document.txt",
}
