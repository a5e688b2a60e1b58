"""`reluformer export` and `reluformer serve`: writes a run for transformers or ONNX, or serves it over HTTP."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from reluformer.cli.options import (
    AsJson,
    Beam,
    Device,
    Int8,
    LengthPenalty,
    Plugins,
    Settings,
    check_inspectable,
    check_model,
    decoding_changes,
    find_run,
    languages,
    require_extra,
)
from reluformer.errors import ArgumentError
from reluformer.training.progress import activity

KEY_VARIABLE = "RELUFORMER_API_KEY"
_LOOPBACK = ("127.", "::1", "localhost")


class ExportTarget(StrEnum):
    """The forms in which a model can be written."""

    hf = "hf"
    onnx = "onnx"
    run = "run"


def export(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="A run; with --to run, an export.", show_default=False)],
    to: Annotated[
        ExportTarget,
        typer.Option(
            "--to", help="hf (transformers), onnx, or run (an hf export back into a run).", show_default=False
        ),
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
    require_extra(extra, f"reluformer export --to {to}")
    source = find_run(source)
    target = source / to if out is None else out
    with activity(f"writing {target}"):
        written = _WRITERS[to](source, target, quantize, opset, force)
    if as_json:
        typer.echo(json.dumps(written, indent=2))
        return
    typer.echo(f"wrote {target}")
    for name, size in written.get("files", {}).items():
        typer.echo(f"  {name}  {size:,} bytes")
    from reluformer.loading import is_language_model

    model, use = "AutoModelForSeq2SeqLM", f"reluformer translate {target} document.txt"
    if is_language_model(source):
        model, use = "AutoModelForCausalLM", f'reluformer generate {target} "The beginning"'
    typer.echo(_NEXT[to].format(run=source, out=target, model=model, use=use))


def _to_hf(run: Path, out: Path, quantize: str | None, opset: int | None, force: bool) -> dict[str, Any]:
    from reluformer import hub

    check_model(run)
    result: dict[str, Any] = hub.export_run(run, out, force=force)
    return result


def _to_run(source: Path, out: Path, quantize: str | None, opset: int | None, force: bool) -> dict[str, Any]:
    from reluformer import hub

    result: dict[str, Any] = hub.import_run(source, out, force=force)
    return result


def _to_onnx(run: Path, out: Path, quantize: str | None, opset: int | None, force: bool) -> dict[str, Any]:
    from reluformer.integrations import onnx

    check_model(run)
    result: dict[str, Any] = onnx.export_run(run, out, quantize=quantize, opset=opset, force=force)
    return result


_WRITERS: dict[ExportTarget, Callable[[Path, Path, str | None, int | None, bool], dict[str, Any]]] = {
    ExportTarget.hf: _to_hf,
    ExportTarget.onnx: _to_onnx,
    ExportTarget.run: _to_run,
}
_NEXT = {
    ExportTarget.hf: "load it with: from reluformer import hub; hub.register(); {model}.from_pretrained('{out}')",
    ExportTarget.onnx: (
        "translate with: reluformer translate {out} document.txt; what it changes in BLEU and speed: "
        "reluformer evaluate {run} --against {out}"
    ),
    ExportTarget.run: "use it with: {use}",
}


def serve(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN [RUN2]", help="Directories of runs; the first is the default.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 5000,
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"File with the key that clients need. Default: ${KEY_VARIABLE}."),
    ] = None,
    characters: Annotated[int, typer.Option(min=1, help="Largest number of characters in a request.")] = 50_000,
    max_batch: Annotated[int, typer.Option(min=1, help="Largest number of texts decoded together.")] = 64,
    waiting: Annotated[int, typer.Option(min=1, help="Largest number of waiting requests; more get status 429.")] = 256,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds after which a request fails.")] = 120.0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of PyTorch. Default: one for each core.", show_default=False)
    ] = None,
    log_level: Annotated[str, typer.Option(help="info logs every request, warning none.")] = "info",
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    settings: Settings = [],  # noqa: B006
    device: Device = "auto",
    int8: Int8 = False,
    plugin: Plugins = [],  # noqa: B006
) -> None:
    """Serve a run, or two to compare, over HTTP: the API of LibreTranslate, and a page at /.

    Requests of all clients are translated together. On SIGTERM or Ctrl-C the
    server finishes the requests that it has accepted. The log goes to standard
    error, has one JSON object per line, and holds no text of users.

    Example: reluformer serve runs/demo/reluformer --port 5000
    """
    require_extra("serve", "reluformer serve")
    runs = [find_run(run) for run in runs]
    if len({run.resolve() for run in runs}) < len(runs):
        raise ArgumentError("a run is named twice; name each one once")
    if log_level not in ("info", "warning"):
        raise ArgumentError(f"--log-level {log_level}: choose info or warning")
    if not math.isfinite(timeout):
        raise ArgumentError(f"--timeout {timeout}: a request must end; give a number of seconds")
    for run in runs:
        check_inspectable(run)
    key = _key(api_key_file)
    changes = decoding_changes(settings, beam=beam, length_penalty=length_penalty)

    import torch

    from reluformer.integrations.server.application import serve as serve_models
    from reluformer.integrations.server.limits import ServerLimits
    from reluformer.integrations.server.model_registry import ModelRegistry, ServedModel, unique_names
    from reluformer.loading import load_translator

    if threads is not None:
        torch.set_num_threads(threads)
    limits = ServerLimits(characters=characters, batch_texts=max_batch, waiting=waiting, request_seconds=timeout)
    served = [
        ServedModel(name, load_translator(run, device, int8=int8, **changes), *languages(run))
        for run, name in zip(runs, unique_names(runs), strict=True)
    ]
    if key is None and not host.startswith(_LOOPBACK):
        typer.echo(f"warning: everybody who reaches {host} can translate here; set {KEY_VARIABLE}", err=True)

    def ready(address: str) -> None:
        names = " and ".join(model.name for model in served)
        typer.echo(f"serving {names}; open {address} in a browser, Ctrl-C ends it")

    serve_models(ModelRegistry(served), host=host, port=port, limits=limits, key=key, log_level=log_level, ready=ready)


def _key(file: Path | None) -> str | None:
    """Returns the clients' key from a file or the environment. It is never printed."""
    if file is None:
        key = os.environ.get(KEY_VARIABLE)
        if key is not None and not key.strip():
            raise ArgumentError(f"${KEY_VARIABLE} is empty; unset it to serve without a key")
        return key.strip() if key else None
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--api-key-file {file}: cannot be read: {error}") from None
    if not key:
        raise ArgumentError(f"--api-key-file {file}: is empty; write the key into it")
    return key
