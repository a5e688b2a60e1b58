"""An export on disk, and beam search on its graphs: onnxruntime computes, and the slots stay in its memory.

An export is encoder.onnx, decoder.onnx, the tokenizer, and onnx.json, which vouches for them.
onnx.json is written last and says what the other files must be. So a folder with it is
complete, and a file that was damaged or exchanged since is named.

Shapes: B sources, K beams of each, R = B * K rows, S source tokens, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnxruntime import OrtValue
from torch import Tensor

from reluformer import files
from reluformer.errors import ArgumentError, ConfigError, StorageError
from reluformer.files import parse_json, read_text
from reluformer.training.run import ONNX as MANIFEST
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.stepper import Stepper
from reluformer.translation.tokenizer import Tokenizer
from reluformer.translation.translator import Translator

FORMAT = 1
KIND = "reluformer-onnx"
ENCODER, DECODER = "encoder.onnx", "decoder.onnx"


@dataclass(frozen=True)
class Manifest:
    """The content of onnx.json, without its format."""

    reluformer: str
    """The version of this package that wrote the export."""
    torch: str
    opset: int
    quantize: str | None
    languages: tuple[str, str]
    """The source and the target language."""
    tokenizer: str
    """The fingerprint of the tokenizer: SHA-256 of tokenizer.json."""
    files: dict[str, str]
    """The SHA-256 of each graph."""
    max_difference: float
    """The largest difference between log-probabilities of PyTorch and of the float32 graphs."""
    decoding: dict[str, Any]
    """The `DecodingConfig` of the run."""
    model: dict[str, Any]
    """The `ModelConfig` of the run, for information; the graphs hold all of it."""


def is_export(directory: Path) -> bool:
    """Returns whether a directory is an ONNX export."""
    return (directory / MANIFEST).is_file()


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes onnx.json, which declares the export complete."""
    files.write_json(directory / MANIFEST, {"format": FORMAT, "kind": KIND, **asdict(manifest)})


def read_manifest(directory: Path) -> Manifest:
    """Reads onnx.json; the error says what the directory is instead."""
    path = directory / MANIFEST
    try:
        content = parse_json(read_text(path))
    except (FileNotFoundError, NotADirectoryError):
        raise StorageError(
            f"{directory}: no ONNX export, it holds no {MANIFEST}; make one with: reluformer export RUN --to onnx"
        ) from None
    except (OSError, ValueError) as error:
        raise StorageError(f"{path}: damaged, not readable as JSON ({error}); export the run again") from None
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise StorageError(f'{path}: written by another program, not by reluformer; it has no "kind": "{KIND}"')
    if content.get("format") != FORMAT:
        raise StorageError(
            f"{path}: format {content.get('format')!r}, this version reads {FORMAT}; export the run again, or install "
            "the version that wrote it"
        )
    missing = [field.name for field in fields(Manifest) if field.name not in content]
    if missing or not isinstance(content["files"], dict):
        raise StorageError(f"{path}: damaged, '{(missing or ['files'])[0]}' is missing; export the run again")
    values = {field.name: content[field.name] for field in fields(Manifest)}
    return Manifest(**{**values, "languages": tuple(values["languages"])})


def check_files(directory: Path, manifest: Manifest) -> None:
    """Raises an error if the graphs are not those that were exported."""
    for name in (ENCODER, DECODER):
        path = directory / name
        if not path.is_file():
            raise StorageError(f"{directory}: {name} is missing; copy the whole folder, or export the run again")
        if sha256(path) != manifest.files.get(name):
            raise StorageError(
                f"{path}: damaged, or changed since it was exported; copy it again, or export the run again"
            )


def load_tokenizer(directory: Path, manifest: Manifest) -> Tokenizer:
    """Loads the tokenizer; one of another model raises an error."""
    tokenizer = Tokenizer.load(directory)
    if tokenizer.fingerprint != manifest.tokenizer:
        raise StorageError(
            f"{directory}: this is not the tokenizer that the model was trained with; copy tokenizer.json and "
            "tokenizer.meta.json from the run, or export it again"
        )
    return tokenizer


def decoding_config(directory: Path, manifest: Manifest) -> DecodingConfig:
    """Returns the decoding settings of the run."""
    try:
        return DecodingConfig.parse(manifest.decoding, where=f"{directory / MANIFEST}: decoding")
    except ConfigError as error:
        raise StorageError(str(error)) from None


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load(directory: str | Path, **decoding: Any) -> Translator:
    """Loads the translator of an ONNX export, on the CPU.

    It translates documents, streams and n-best lists like that of a run. What needs the PyTorch
    model, such as scores of given translations, raises an error.

    Args:
        directory: The folder of the export.
        **decoding: Keys of `DecodingConfig` that differ from the settings of the run.

    Returns:
        The translator.

    Raises:
        StorageError: The folder is no export, or a file of it is missing, damaged or exchanged.

    Example:
        >>> from reluformer.hub import onnx
        >>> translator = onnx.load("exported-onnx", beam=2)
        >>> len(translator.translate(["The lamp is new."]))
        1
    """
    directory = Path(directory)
    found = read_manifest(directory)
    check_files(directory, found)
    tokenizer = load_tokenizer(directory, found)
    config = decoding_config(directory, found)
    stepper = OnnxStepper(directory / ENCODER, directory / DECODER)
    if tokenizer.vocab_size != stepper.vocab_size:
        raise StorageError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size} entries, the graphs {stepper.vocab_size}; "
            "export the run again"
        )
    return Translator(stepper, tokenizer, config.replace(**decoding))


class OnnxBeams:
    """The slots of the sources, and of all rows of the last step."""

    def __init__(self, mask: Tensor, cross: list[Tensor]) -> None:
        self.mask = mask  # (B, S)
        self.cross = cross  # keys and values of each layer, (B, H, S, d)
        self.past: list[OrtValue] = []  # the same of what is decoded, (rows of the last step, H, T, d)
        self.kept: Tensor | None = None  # which of these rows the present ones are; None = all
        self.rows = mask.size(0)
        self._fixed: dict[str, OrtValue] = {}

    def select(self, sources: Tensor) -> None:
        beams = self.rows // self.mask.size(0)
        rows = (sources[:, None] * beams + torch.arange(beams)).flatten()
        self.kept = rows if self.kept is None else self.kept[rows]
        self.mask = self.mask.index_select(0, sources)
        self.cross = [part.index_select(0, sources) for part in self.cross]
        self.rows = rows.numel()
        self._fixed = {}

    def fixed(self, names: list[str]) -> Mapping[str, OrtValue]:
        """Returns the inputs that stay the same from step to step; `names` are those of `cross`."""
        if not self._fixed:
            self._fixed = {"mask": _value(self.mask), **dict(zip(names, map(_value, self.cross), strict=True))}
        return self._fixed


class OnnxStepper(Stepper[OnnxBeams]):
    """The stepper of an export: two sessions on the CPU, with as many threads as torch has when they are opened."""

    def __init__(self, encoder: Path, decoder: Path) -> None:
        self._encoder, self._decoder = session_of(encoder), session_of(decoder)
        inputs = {entry.name: entry.shape for entry in self._decoder.get_inputs()}
        outputs = {entry.name: entry.shape for entry in self._decoder.get_outputs()}
        self._cross = [name for name in inputs if name.startswith("cross_")]
        self._past = [name for name in inputs if name.startswith("past_")]
        self._outputs = ["logits", *(name.replace("past_", "present_") for name in self._past)]
        _, self._heads, _, self._width = inputs[self._past[0]]
        self.vocab_size = int(outputs["logits"][-1])

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @torch.inference_mode()
    def begin(self, source: Tensor, mask: Tensor | None, prefix: Tensor) -> tuple[Tensor, OnnxBeams]:
        for name, tokens in (("source", source), ("prefix", prefix)):
            self._check_tokens(name, tokens)
        beams = self.encode(source, mask)
        return self._append(prefix[:, None], torch.arange(source.size(0))[:, None], beams), beams

    @torch.inference_mode()
    def step(self, tokens: Tensor, parents: Tensor, beams: OnnxBeams) -> Tensor:
        sources = beams.mask.size(0)
        rows = parents if beams.kept is None else beams.kept[parents]
        return self._append(tokens.view(sources, -1, 1), rows.view(sources, -1), beams)

    def encode(self, source: Tensor, mask: Tensor | None) -> OnnxBeams:
        """Encodes sources (B, S)."""
        mask = torch.ones_like(source, dtype=torch.bool) if mask is None else mask
        found = self._encoder.run(self._cross, {"source": source.numpy(), "mask": mask.numpy()})
        beams = OnnxBeams(mask, [torch.from_numpy(part) for part in found])
        nothing = _value(torch.empty(source.size(0), self._heads, 0, self._width))
        beams.past = [nothing] * len(self._past)
        return beams

    def logits(self, tokens: Tensor, parents: Tensor, beams: OnnxBeams) -> Tensor:
        """Appends `tokens` (B, K, T) to the rows `parents` (B, K) of the last step, and returns logits (B, K, V)."""
        past = dict(zip(self._past, beams.past, strict=True))
        varying = {"tokens": _value(tokens), "parents": _value(parents)}
        feeds = {**varying, **beams.fixed(self._cross), **past}
        logits, *beams.past = self._decoder.run_with_ort_values(self._outputs, feeds)
        beams.kept, beams.rows = None, parents.numel()
        return torch.from_numpy(logits.numpy())

    def _append(self, tokens: Tensor, parents: Tensor, beams: OnnxBeams) -> Tensor:
        return torch.log_softmax(self.logits(tokens, parents, beams).flatten(0, 1), 1)

    def _check_tokens(self, name: str, tokens: Tensor) -> None:
        """Raises an error for ids outside the vocabulary; a graph would count a negative one from the end."""
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocab_size:
            raise ArgumentError(
                f"{name} holds token ids from {int(tokens.min())} to {int(tokens.max())}, the vocabulary has ids 0 to "
                f"{self.vocab_size - 1}; use the tokenizer of the export"
            )


def session_of(path: Path) -> onnxruntime.InferenceSession:
    """Opens a graph on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    # threads that spin between operators keep torch's own, which search the beams, from the cores
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    # onnxruntime has no common base for its errors
    except Exception as error:
        raise StorageError(
            f"{path}: onnxruntime {onnxruntime.__version__} cannot load it ({str(error).splitlines()[0]}); export the "
            "run with a lower --opset, or install a newer onnxruntime"
        ) from None


def _value(tensor: Tensor) -> OrtValue:
    """Returns a tensor for onnxruntime, in the same memory where it can be."""
    array: np.ndarray = tensor.contiguous().numpy()
    return OrtValue.ortvalue_from_numpy(array)
