"""An export on disk: encoder.onnx, decoder.onnx, the tokenizer, and onnx.json, which vouches for them.

onnx.json is written last and says what the other files must be, so a folder with it is
complete, and a file that was damaged or exchanged since is named.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from reluformer import files
from reluformer.errors import ConfigError, StorageError
from reluformer.files import parse_json, read_text
from reluformer.training.run import ONNX as MANIFEST
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.tokenizer import Tokenizer

FORMAT = 1
KIND = "reluformer-onnx"
ENCODER, DECODER = "encoder.onnx", "decoder.onnx"
__all__ = ["DECODER", "ENCODER", "MANIFEST", "Manifest"]


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
    """Whether a directory is an ONNX export."""
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
