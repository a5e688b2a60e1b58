"""A model on disk: a directory with config.json and model.safetensors, nothing executable.

Each file is written whole or not at all, the configuration last, so that a directory with
a config.json is complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor, nn

from reluformer import files, rules
from reluformer.errors import ArgumentError, ConfigError, StorageError, nearest
from reluformer.models import CONFIG as CONFIG
from reluformer.models import WEIGHTS as WEIGHTS
from reluformer.models.config import ModelConfig

FORMAT = 1
KIND = "reluformer"


def save(directory: Path, config: ModelConfig, state: Mapping[str, Tensor], tokenizer: str | None = None) -> None:
    """Writes a model; shared tensors are written once.

    Args:
        directory: Where to write.
        config: The configuration of the model.
        state: Its tensors by name.
        tokenizer: The fingerprint of the tokenizer that the model was trained with.

    Raises:
        StorageError: The files cannot be written, or a rule has no name that a file could keep.
    """
    try:
        for rule in config.rules():  # one that no file can name would come back as another
            rules.spec(rule)
        weights = serialize(_without_aliases(state), metadata={"format": "pt"})
        with files.whole_file(directory / WEIGHTS) as file:
            file.write(weights)
        model = config.model_dump(mode="json")
        content = {"format": FORMAT, "kind": KIND, "model": model, "tokenizer": tokenizer}
        files.write_json(directory / CONFIG, content)
    except (ArgumentError, StorageError, SafetensorError) as error:
        raise StorageError(f"cannot save the model: {error}") from None


def tokenizer_fingerprint(directory: Path) -> str | None:
    """Returns the fingerprint of the tokenizer that a saved model was trained with; None if it was saved without."""
    fingerprint = _content(directory).get("tokenizer")
    return fingerprint if isinstance(fingerprint, str) else None


def load_config(directory: Path) -> ModelConfig:
    """Returns the configuration of a saved model; raises `StorageError` if there is none."""
    path = directory / CONFIG
    values = _content(directory).get("model")
    if not isinstance(values, dict):
        raise StorageError(f"{path}: the section 'model' is missing; save the model again")
    try:
        return ModelConfig.parse(values, where=str(path))
    except ConfigError as error:
        raise StorageError(str(error)) from None


def _content(directory: Path) -> dict[str, Any]:
    """Returns the content of config.json, or raises an error that says what the directory is instead."""
    if not directory.is_dir():
        raise StorageError(f"{directory}: no such directory; give the one that holds {CONFIG} and {WEIGHTS}")
    path = directory / CONFIG
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StorageError(f"{directory}: holds no {CONFIG}, so it is not a saved model") from None
    except (OSError, ValueError) as error:
        raise StorageError(f"{path}: damaged, not readable as JSON ({error}); save the model again") from None
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise StorageError(f'{path}: written by another program, not by reluformer; it has no "kind": "reluformer"')
    if content.get("format") != FORMAT:
        raise StorageError(
            f"{path}: format {content.get('format')!r}, this version reads {FORMAT}; install the version that wrote it"
        )
    return content


def load_weights(directory: Path, model: nn.Module) -> None:
    """Fills `model` with the saved weights, exactly.

    Raises:
        StorageError: A weight is missing, unknown, of another shape, or not finite.
    """
    path = directory / WEIGHTS
    try:
        saved = load_file(path)
    except FileNotFoundError:
        raise StorageError(f"{directory}: {WEIGHTS} is missing; copy the whole directory") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise StorageError(f"{path}: damaged ({error}); copy or save it again") from None
    if any(tensor.dtype == torch.float64 for tensor in saved.values()):
        model.double()  # float32 holds every other type
    expected = _without_aliases(model.state_dict())
    for name in saved:
        if name not in expected:
            raise StorageError(
                f"{path}: has a weight '{name}' that the model of {CONFIG} lacks; {nearest(name, expected)}"
            )
    for name, parameter in expected.items():
        if name not in saved:
            raise StorageError(f"{path}: lacks the weight '{name}'; it belongs to another {CONFIG}")
        if saved[name].shape != parameter.shape:
            raise StorageError(
                f"{path}: weight '{name}' has shape {tuple(saved[name].shape)}, "
                f"{CONFIG} asks for {tuple(parameter.shape)}"
            )
        if not torch.isfinite(saved[name]).all():
            raise StorageError(f"{path}: weight '{name}' holds NaN or infinity; take an earlier checkpoint")
    with torch.no_grad():
        for name, parameter in expected.items():
            parameter.copy_(saved[name])


def _without_aliases(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns each tensor under the first of its names, because safetensors stores no shared memory."""
    seen: set[int] = set()
    unique = {}
    for name, tensor in state.items():
        if tensor.data_ptr() not in seen or tensor.numel() == 0:
            seen.add(tensor.data_ptr())
            unique[name] = tensor.contiguous()
    return unique
