"""Export of a run to ONNX: a folder that needs neither PyTorch nor this package to compute.

ONNX can hold functions of tensors alone, so a model becomes two of them:

    encoder   source, mask -> the slots of the source, for the cross attention of each layer
    decoder   tokens, parents, mask, those slots, the slots so far -> logits, all slots

The graphs are traced from the model's own code with the reference implementation of every
read, and are compared with the model before they are kept: an export is right or refused.
`parents` chooses rows of the slots so far, so that one call follows the beams and appends to
them; a prefix of many tokens is read in one call, too.

Shapes: B sources, K beams of each, T new tokens, S source tokens, P tokens before, R rows before,
H heads, d head width, V vocabulary.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import ModelProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn

from reluformer import __version__
from reluformer.errors import ArgumentError, StorageError, UnknownNameError, nearest
from reluformer.files import whole_file
from reluformer.integrations.onnx.runtime import (
    DECODER,
    ENCODER,
    Manifest,
    OnnxStepper,
    is_export,
    sha256,
    write_manifest,
)
from reluformer.layers import SlotCache, TokenSlots
from reluformer.models.encoder_decoder import DecoderState, Encoded, ReLUFormer
from reluformer.training.run import ONNX as MANIFEST
from reluformer.training.run import RunDirectory
from reluformer.translation.recipe import languages_of
from reluformer.translation.stepper import evaluating
from reluformer.translation.translator import Translator, load_run

OPSETS = range(18, 24)
"""torch's exporter writes the first one without conversion. Every export is compared with PyTorch."""
DEFAULT_OPSET = OPSETS[0]
TOLERANCE = 1e-4
"""The allowed difference of log-probabilities, times their size where that exceeds one."""
QUANTIZERS = ("int8",)
LARGEST = 2**31
"""The number of bytes that a single ONNX file can hold."""
_LENGTHS = (7, 3, 1)
"""The tokens of the sources that are compared together; the shorter ones are padded."""

Slots = tuple[Tensor, Tensor]
Axes = dict[int, str]


class EncoderGraph(nn.Module):
    """The encoder: source (B, S), mask (B, S) -> keys and values (B, H, S, d) of each decoder layer."""

    inputs = ("source", "mask")

    def __init__(self, model: ReLUFormer) -> None:
        super().__init__()
        self.model = model
        self.outputs = _names("cross", model.config.decoder_layers)
        self.eval()

    def forward(self, source: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        slots = self.model.start(self.model.encode(source, mask)).source
        return tuple(part for layer in slots for part in (layer.keys, layer.values))

    def example(self) -> tuple[Tensor, ...]:
        """Returns inputs to trace with, in which every axis that varies has a length of its own."""
        return torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool)

    def axes(self) -> tuple[Axes, ...]:
        """Returns the names of the axes that vary."""
        return ({0: "batch", 1: "source"},) * 2


class DecoderGraph(nn.Module):
    """The decoder: tokens (B, K, T), parents (B, K), mask, slots -> logits (B, K, V) of the next token, all slots."""

    def __init__(self, model: ReLUFormer) -> None:
        super().__init__()
        self.model = model
        layers = model.config.decoder_layers
        self.inputs = ("tokens", "parents", "mask", *_names("cross", layers), *_names("past", layers))
        self.outputs = ("logits", *_names("present", layers))
        self.eval()

    def forward(
        self, tokens: Tensor, parents: Tensor, mask: Tensor, cross: Sequence[Slots], past: Sequence[Slots]
    ) -> tuple[Tensor, ...]:
        rows = parents.flatten()
        state = DecoderState([TokenSlots(keys, values, mask) for keys, values in cross])
        caches = [AppendedSlots(keys.index_select(0, rows), values.index_select(0, rows)) for keys, values in past]
        state.caches = [*caches]
        state.length = past[0][0].size(2)
        last = self.model.step(tokens.flatten(0, 1), state)[:, -1]
        logits = self.model.logits(last).view(*tokens.shape[:2], -1)
        return logits, *(part for cache in caches for part in cache.parts)

    def example(self) -> tuple[Tensor | list[Slots], ...]:
        """Returns inputs to trace with, in which every axis that varies has a length of its own."""
        config = self.model.config
        sources, beams, new, source, rows, before = 2, 3, 4, 5, 7, 8

        def slots(batch: int, length: int) -> list[Slots]:
            shape = (batch, config.heads, length, config.width // config.heads)
            # each its own tensor: torch takes inputs that are one object for one input
            return [(torch.zeros(shape), torch.zeros(shape)) for _ in range(config.decoder_layers)]

        tokens = torch.zeros(sources, beams, new, dtype=torch.long)
        parents, mask = torch.zeros(sources, beams, dtype=torch.long), torch.ones(sources, source, dtype=torch.bool)
        return tokens, parents, mask, slots(sources, source), slots(rows, before)

    def axes(self) -> tuple[Axes | list[tuple[Axes, Axes]], ...]:
        """Returns the names of the axes that vary."""
        layers = self.model.config.decoder_layers
        cross: Axes = {0: "batch", 2: "source"}
        past: Axes = {0: "rows", 2: "past"}
        return (
            {0: "batch", 1: "beams", 2: "new"},
            {0: "batch", 1: "beams"},
            {0: "batch", 1: "source"},
            [(cross, cross)] * layers,
            [(past, past)] * layers,
        )


class AppendedSlots(SlotCache):
    """A cache that makes new tensors, because a graph has no buffers to write to."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.parts = (keys, values)

    def append(self, new: TokenSlots) -> TokenSlots:
        keys, values = self.parts
        self.parts = (torch.cat([keys, new.keys], 2), torch.cat([values, new.values], 2))
        return TokenSlots(*self.parts)


def _names(kind: str, layers: int) -> tuple[str, ...]:
    return tuple(f"{kind}_{part}_{layer}" for layer in range(layers) for part in ("key", "value"))


def export_run(
    run: Path, out: Path, *, quantize: str | None = None, opset: int | None = None, force: bool = False
) -> dict[str, Any]:
    """Exports the model of a run.

    Args:
        run: The directory of a run.
        out: The folder to write.
        quantize: "int8" makes the linear layers compute in 8 bits; None keeps float32.
        opset: The opset of the graphs; by default `DEFAULT_OPSET`.
        force: If True, an earlier export at `out` is replaced.

    Returns:
        The folder, the options, the largest difference from PyTorch, and the size of each file.

    Raises:
        ArgumentError: An option is unknown, or ONNX cannot express the model.
        StorageError: The run cannot be loaded, or `out` holds something else.

    Example:
        >>> from pathlib import Path
        >>> from reluformer.hub import onnx
        >>> facts = onnx.export_run(Path("runs/demo/reluformer"), Path("my-export"))  # doctest: +SKIP
        >>> translator = onnx.load("my-export")  # doctest: +SKIP
    """
    opset = _checked(quantize, opset)
    translator = load_run(run)
    check_exportable(run, translator.model)
    _check_room(out, force)
    with tempfile.TemporaryDirectory() as directory:
        graphs = Path(directory)
        difference = write_graphs(translator.model, graphs, opset)
        if quantize is not None:
            for name in (ENCODER, DECODER):
                quantize_graph(graphs / name, quantize)
        (out / MANIFEST).unlink(missing_ok=True)  # an old export stops being one before it changes
        for name in (ENCODER, DECODER):
            with whole_file(out / name) as file:
                file.write((graphs / name).read_bytes())
    translator.tokenizer.save(out)
    write_manifest(out, _manifest(run, out, translator, opset, quantize, difference))
    sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir()) if path.is_file()}
    return {"out": str(out), "opset": opset, "quantize": quantize, "max_difference": difference, "files": sizes}


def trace(graph: EncoderGraph | DecoderGraph, path: Path, opset: int) -> None:
    """Writes one graph as a single ONNX file."""
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
    """Returns the opset to use; unknown options raise an error before any work is done."""
    if quantize is not None and quantize not in QUANTIZERS:
        raise UnknownNameError(f"unknown quantisation '{quantize}'; {nearest(quantize, QUANTIZERS)}")
    if opset is not None and opset not in OPSETS:
        raise ArgumentError(f"--opset {opset}: valid are {OPSETS[0]} to {OPSETS[-1]}; without it, {DEFAULT_OPSET}")
    return DEFAULT_OPSET if opset is None else opset


def check_exportable(run: Path, model: ReLUFormer) -> None:
    """Raises an error if no ONNX graph can hold the model."""
    if not model.config.decoder_layers:
        raise ArgumentError(f"{run}: its decoder has no layers, so there is nothing for a graph to step through")
    if model.config.separator is not None:
        raise ArgumentError(
            f"{run}: the model counts sentences (separator={model.config.separator}), which the graphs cannot carry "
            "from step to step; use --to hf, or train without `separator`"
        )
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if size >= LARGEST:
        raise ArgumentError(f"{run}: the model has {size} bytes, a single ONNX file holds {LARGEST}; use a smaller one")


def _check_room(out: Path, force: bool) -> None:
    """Raises an error if something else is in the way."""
    if out.exists() and not out.is_dir():
        raise StorageError(f"{out}: is a file; name a folder to export to")
    if out.is_dir() and any(out.iterdir()):
        if not is_export(out):
            raise StorageError(f"{out}: is not empty and no ONNX export; name another folder")
        if not force:
            raise StorageError(f"{out}: holds an export already; name another folder, or replace it with --force")


def write_graphs(model: ReLUFormer, directory: Path, opset: int) -> float:
    """Writes encoder.onnx and decoder.onnx, and returns their largest difference from the model."""
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
        languages=languages_of(RunDirectory(run)),
        tokenizer=translator.tokenizer.fingerprint,
        files={name: sha256(out / name) for name in (ENCODER, DECODER)},
        max_difference=difference,
        decoding=translator.config.model_dump(mode="json"),
        model=translator.model.config.model_dump(mode="json"),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the messages of torch's exporter that are meant for its developers."""
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


@torch.inference_mode()
def largest_difference(model: ReLUFormer, encoder: Path, decoder: Path) -> tuple[float, float]:
    """Returns the largest difference of a log-probability, and the largest log-probability itself.

    Random sources go through the lengths that tracing could have fixed by mistake: a prefix
    of many tokens, single steps, beams that branch, and a source alone.
    """
    stepper = OnnxStepper(encoder, decoder)
    tokens = _Tokens(model.config.vocab_size)
    found = [_walk(model, stepper, tokens, _LENGTHS, beams=(3, 2)), _walk(model, stepper, tokens, (1,), beams=(1,))]
    return max(difference for difference, _ in found), max(size for _, size in found)


def _walk(
    model: ReLUFormer, stepper: OnnxStepper, tokens: _Tokens, lengths: tuple[int, ...], beams: tuple[int, ...]
) -> tuple[float, float]:
    """Decodes a prefix, then a position with each of these numbers of beams."""
    sources = len(lengths)
    source, mask = tokens(sources, max(lengths)), torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    prefix = tokens(sources, 4 if sources > 1 else 1)
    differences, sizes, width = [], [], 1
    with evaluating(model):
        encoded = model.encode(source, mask)
        following, state = stepper.begin(source, mask, prefix)
        for count in (0, *beams):
            if count:
                parents = (torch.arange(count).flip(0) % width + width * torch.arange(sources)[:, None]).flatten()
                newest, width = tokens(sources * count, 1), count
                following = stepper.step(newest.flatten(), parents, state)
                prefix = torch.cat([prefix[parents], newest], 1)
            expected = _expected(model, prefix, encoded)
            differences.append(float((following - expected).abs().max()))
            sizes.append(float(expected.abs().max()))
    return max(differences), max(sizes)


def _expected(model: ReLUFormer, prefix: Tensor, encoded: Encoded) -> Tensor:
    """Returns the log-probabilities after `prefix` (R, T) from a full pass of the model."""
    times = prefix.size(0) // encoded.states.size(0)
    assert encoded.mask is not None
    states, mask = encoded.states.repeat_interleave(times, 0), encoded.mask.repeat_interleave(times, 0)
    last = model.decode(prefix, Encoded(states, mask, {}))[0][:, -1]
    return model.logits(last).log_softmax(-1)


class _Tokens:
    """A source of random token ids, the same in every run."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, rows: int, length: int) -> Tensor:
        return torch.randint(0, self._vocab_size, (rows, length), generator=self._generator)


def quantize_graph(path: Path, kind: str) -> None:
    """Rewrites the graph in `path` with 8-bit weights, scaled by column, and 8-bit activations, scaled at run time."""
    assert kind in QUANTIZERS
    onnx.save(_with_own_output_matrix(onnx.load(path)), path)
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # it advises an optimisation that the exporter has done already
    try:
        quantize_dynamic(
            path,
            path,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            reduce_range=True,  # 7 bits of weight: CPUs without VNNI add pairs of products in 16 bits
            weight_type=QuantType.QInt8,
        )
    finally:
        logger.setLevel(level)


def _with_own_output_matrix(model: ModelProto) -> ModelProto:
    """Gives x W^T a matrix of its own, because onnxruntime would transpose W itself, which also embeds tokens."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for place, node in enumerate(model.graph.node):
        if node.op_type != "Gemm" or node.input[1] not in weights:
            continue
        turned = np.ascontiguousarray(numpy_helper.to_array(weights[node.input[1]]).T)
        name = f"{node.input[1]}.turned"
        model.graph.initializer.append(numpy_helper.from_array(turned, name))
        product = helper.make_node("MatMul", [node.input[0], name], list(node.output), name=node.name)
        model.graph.node[place].CopyFrom(product)
    return model
