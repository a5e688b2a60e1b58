"""From a run to a folder that needs neither PyTorch nor this package to compute.

The graphs are traced from the model's own code with the reference implementation of every
read, and are compared with the model before they are kept: an export is right or refused.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from reluformer import __version__
from reluformer.errors import ArgumentError, StorageError, UnknownNameError, nearest
from reluformer.files import whole_file
from reluformer.integrations.onnx import folder
from reluformer.integrations.onnx.comparison import largest_difference
from reluformer.integrations.onnx.folder import DECODER, ENCODER, MANIFEST, Manifest
from reluformer.integrations.onnx.graphs import DecoderGraph, EncoderGraph
from reluformer.integrations.onnx.quantization import QUANTIZERS, quantize_graph
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.translation.runs import RECIPE
from reluformer.translation.translator import Translator
from reluformer.translation.translator import load as load_run

OPSETS = range(18, 24)
"""The first is what torch's exporter writes without converting, and what most tests use; every export is compared
with PyTorch before it is written."""
DEFAULT_OPSET = OPSETS[0]
TOLERANCE = 1e-4
"""Log-probabilities may differ by so much, times their own size where that exceeds one."""
LARGEST = 2**31
"""Bytes that a single ONNX file can hold."""


def export_run(
    run: Path, out: Path, *, quantize: str | None = None, opset: int | None = None, force: bool = False
) -> dict[str, Any]:
    """Export the model of `run` into the folder `out`; what was done, as plain data.

    `quantize="int8"` makes the linear layers compute in 8 bits. `force` replaces an earlier export.
    """
    opset = _checked(quantize, opset)
    translator = load_run(run)
    _check_exportable(run, translator.model)
    _check_room(out, force)
    with tempfile.TemporaryDirectory() as directory:
        graphs = Path(directory)
        difference = _write_graphs(translator.model, graphs, opset)
        if quantize is not None:
            for name in (ENCODER, DECODER):
                quantize_graph(graphs / name, quantize)
        (out / MANIFEST).unlink(missing_ok=True)  # an old export stops being one before it changes
        for name in (ENCODER, DECODER):
            with whole_file(out / name) as file:
                file.write((graphs / name).read_bytes())
    translator.tokenizer.save(out)
    manifest = _manifest(run, out, translator, opset, quantize, difference)
    folder.write_manifest(out, manifest)
    sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir()) if path.is_file()}
    return {"out": str(out), "opset": opset, "quantize": quantize, "max_difference": difference, "files": sizes}


def trace(graph: EncoderGraph | DecoderGraph, path: Path, opset: int) -> None:
    """Write one graph as a single ONNX file."""
    with _quiet():
        program = torch.onnx.export(
            graph,
            graph.example(),
            input_names=graph.inputs,
            output_names=graph.outputs,
            dynamic_shapes=graph.axes(),
            opset_version=opset,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    written = program.model.opset_imports.get("")
    if written != opset:
        raise ArgumentError(
            f"--opset {opset}: this model cannot be expressed with it, only with {written}; leave --opset out"
        )
    program.save(path, external_data=False)


def _checked(quantize: str | None, opset: int | None) -> int:
    """The opset to use; refuse what is not known before any work is done."""
    if quantize is not None and quantize not in QUANTIZERS:
        raise UnknownNameError(f"unknown quantisation '{quantize}'; {nearest(quantize, QUANTIZERS)}")
    if opset is not None and opset not in OPSETS:
        raise ArgumentError(f"--opset {opset}: valid are {OPSETS[0]} to {OPSETS[-1]}; without it, {DEFAULT_OPSET}")
    return DEFAULT_OPSET if opset is None else opset


def _check_exportable(run: Path, model: ReLUFormer) -> None:
    if not model.config.decoder_layers:
        raise ArgumentError(f"{run}: its decoder has no layers, so there is nothing for a graph to step through")
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if size >= LARGEST:
        raise ArgumentError(f"{run}: the model has {size} bytes, a single ONNX file holds {LARGEST}; use a smaller one")


def _check_room(out: Path, force: bool) -> None:
    """Refuse to write where something else is."""
    if out.exists() and not out.is_dir():
        raise StorageError(f"{out}: is a file; name a folder to export to")
    if out.is_dir() and any(out.iterdir()):
        if not folder.is_export(out):
            raise StorageError(f"{out}: is not empty and no ONNX export; name another folder")
        if not force:
            raise StorageError(f"{out}: holds an export already; name another folder, or replace it with --force")


def _write_graphs(model: ReLUFormer, directory: Path, opset: int) -> float:
    """encoder.onnx and decoder.onnx, and how far they are from the model."""
    named = ", ".join(sorted({rule.name for rule in model.config.rules()}))
    way_out = "write the rule with operations of torch alone and without `if` on values, or use --to hf"
    try:
        trace(EncoderGraph(model), directory / ENCODER, opset)
        trace(DecoderGraph(model), directory / DECODER, opset)
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise ArgumentError(
            f"the model with the rules {named} cannot be expressed in ONNX: {reason}; {way_out}"
        ) from error
    difference, size = largest_difference(model, directory / ENCODER, directory / DECODER)
    if not difference <= TOLERANCE * max(1.0, size):
        raise ArgumentError(
            f"the graphs of the model with the rules {named} differ from PyTorch by {difference:.1e}, so tracing lost "
            f"something, and nothing was exported; {way_out}"
        )
    return difference


def _manifest(
    run: Path, out: Path, translator: Translator, opset: int, quantize: str | None, difference: float
) -> Manifest:
    return Manifest(
        reluformer=__version__,
        torch=torch.__version__,
        opset=opset,
        quantize=quantize,
        languages=_languages(run),
        tokenizer=translator.tokenizer.fingerprint,
        files={name: folder.sha256(out / name) for name in (ENCODER, DECODER)},
        max_difference=difference,
        decoding=translator.config.model_dump(mode="json"),
        model=translator.model.config.model_dump(mode="json"),
    )


def _languages(run: Path) -> tuple[str, str]:
    """What the run translates from and into; English and German where no recipe says."""
    from reluformer.config import load_yaml
    from reluformer.translation.recipe import Recipe

    if not (run / RECIPE).is_file():
        return "en", "de"
    data = load_yaml(Recipe, run / RECIPE).data
    return data.source_lang, data.target_lang


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporter tells those who work on it."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # among others: torchvision is not installed
    try:
        with warnings.catch_warnings():
            # axes of the same length share one name, which is what we want
            warnings.filterwarnings("ignore", message=".*The axis name: .* will not be used", category=UserWarning)
            # torch.export copies its own tree specifications in a way that it has deprecated
            warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated", category=FutureWarning)
            yield
    finally:
        logger.setLevel(level)
