"""A model on disk: a directory with config.json and model.safetensors, nothing executable.

Each file is written whole or not at all, the configuration last, so that a directory with
a config.json is complete. The configuration has the checksum of the weights. Before memory is
taken for a model, the header of its weights is compared with the configuration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from reluformer import files, rules
from reluformer.config import Config
from reluformer.errors import ArgumentError, ConfigError, StorageError, nearest
from reluformer.models import CONFIG as CONFIG
from reluformer.models import WEIGHTS as WEIGHTS
from reluformer.models.config import AnyConfig, ImageConfig, LanguageConfig, ModelConfig

C = TypeVar("C", bound=Config)

FORMAT = 1
KIND = "reluformer"
SCHEMAS: dict[str, type[AnyConfig]] = {
    "encoder_decoder": ModelConfig,
    "language_model": LanguageConfig,
    "image_model": ImageConfig,
}
"""The configuration of each kind of model, by what config.json calls it."""
_FLOATING = ("F64", "F32", "F16", "BF16")
"""The types of weights that a model may have, by their names in safetensors files."""


def save(directory: Path, config: AnyConfig, state: Mapping[str, Tensor], tokenizer: str | None = None) -> None:
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
        checksum = hashlib.sha256(weights).hexdigest()
        content = {"format": FORMAT, "kind": KIND, "model": model, "tokenizer": tokenizer, "weights": checksum}
        if not isinstance(config, ModelConfig):  # what has no such key is an encoder-decoder
            content["architecture"] = next(name for name, schema in SCHEMAS.items() if schema is type(config))
        files.write_json(directory / CONFIG, content)
    except (ArgumentError, StorageError, SafetensorError) as error:
        raise StorageError(f"cannot save the model: {error}") from None


def tokenizer_fingerprint(directory: Path) -> str | None:
    """Returns the fingerprint of the tokenizer that a saved model was trained with; None if it was saved without."""
    fingerprint = _content(directory).get("tokenizer")
    return fingerprint if isinstance(fingerprint, str) else None


def architecture(directory: Path) -> str:
    """Returns the kind of a saved model, a key of `SCHEMAS`; raises `StorageError` if there is no model."""
    found = _content(directory).get("architecture", "encoder_decoder")
    if not isinstance(found, str):
        raise StorageError(f"{directory / CONFIG}: damaged, 'architecture' is no name; copy or save the model again")
    if found not in SCHEMAS:
        raise StorageError(
            f"{directory / CONFIG}: unknown architecture {found[:50]!r}; install the version that wrote it"
        )
    return found


def load_config(directory: Path, schema: type[C] = ModelConfig) -> C:  # type: ignore[assignment]
    """Returns the configuration of a saved model.

    Args:
        directory: The directory of the model.
        schema: The class of its configuration.

    Raises:
        StorageError: There is no model, or one of another kind.
    """
    path = directory / CONFIG
    values, found = _content(directory).get("model"), architecture(directory)
    if SCHEMAS[found] != schema:
        wanted = next(name for name, other in SCHEMAS.items() if other is schema)
        use = {"language_model": "generate", "image_model": "evaluate"}.get(found, "translate")
        raise StorageError(
            f"{directory}: holds a model of the kind {found}, not {wanted}; give a directory of that kind, or use "
            f"`reluformer {use}`"
        )
    if not isinstance(values, dict):
        raise StorageError(f"{path}: the section 'model' is missing; save the model again")
    try:
        found_config: C = schema.parse(values, where=str(path))
    except ConfigError as error:
        raise StorageError(str(error)) from None
    return found_config


def _content(directory: Path) -> dict[str, Any]:
    """Returns the content of config.json, or raises an error that says what the directory is instead."""
    if not directory.is_dir():
        raise StorageError(f"{directory}: no such directory; give the one that holds {CONFIG} and {WEIGHTS}")
    path = directory / CONFIG
    try:
        content = files.parse_json(files.read_text(path))
    except StorageError:
        raise
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
        StorageError: A weight is missing, unknown, of another shape or type, or not finite, or the file is not
            the one that was saved.
    """
    check_weights(directory, model)
    path = directory / WEIGHTS
    try:
        saved = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise StorageError(f"{path}: damaged ({error}); copy or save it again") from None
    _check_values(directory, saved)
    if any(tensor.dtype == torch.float64 for tensor in saved.values()):
        model.double()  # float32 holds every other type
    with torch.no_grad():
        for name, parameter in _without_aliases(model.state_dict()).items():
            parameter.copy_(saved[name])


class without_initialisation(TorchFunctionMode):
    """Builds models inside the block without `torch.nn.init`: their weights hold whatever was in memory.

    On the device "meta" these functions would also import the compiler of torch.

    Example:
        >>> with without_initialisation():
        ...     layer = nn.Linear(2, 3)
        >>> layer.weight.shape
        torch.Size([3, 2])
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if getattr(func, "__module__", None) == nn.init.__name__:
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)


@contextmanager
def without_memory() -> Iterator[None]:
    """Builds models inside the block as shapes alone, whose weights take neither memory nor time.

    Example:
        >>> with without_memory():
        ...     layer = nn.Linear(10**6, 10**6)
        >>> layer.weight.device, tuple(layer.weight.shape)
        (device(type='meta'), (1000000, 1000000))
    """
    with torch.device("meta"), without_initialisation():
        yield


def check_weights(directory: Path, model: nn.Module) -> None:
    """Compares names, types and shapes of the saved weights with those of `model`; their values are not read.

    Args:
        directory: The directory of a saved model.
        model: The model of its configuration; it may be built inside `without_memory`.

    Raises:
        StorageError: A weight is missing, unknown, or of another shape or type, or the file is damaged.
    """
    path = directory / WEIGHTS
    found = read_header(path)
    first: dict[int, str] = {}  # shared weights are saved under the first of their names
    state = model.state_dict(keep_vars=True)
    expected = {name: weight for name, weight in state.items() if first.setdefault(id(weight), name) == name}
    for name in found:
        if name not in expected:
            raise StorageError(
                f"{path}: has a weight '{name}' that the model of {CONFIG} lacks; {nearest(name, expected)}"
            )
    for name, parameter in expected.items():
        if name not in found:
            raise StorageError(f"{path}: lacks the weight '{name}'; it belongs to another {CONFIG}")
        shape = tuple(parameter.shape)
        if found[name] != shape:
            raise StorageError(f"{path}: weight '{name}' has shape {found[name]}, {CONFIG} asks for {shape}")


def read_header(path: Path) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each weight in a safetensors file; their values are not read.

    Raises:
        StorageError: The file is missing or damaged, or a weight is not a floating-point number.
    """
    try:
        files.check_regular(path)
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            types = {name: piece.get_dtype() for name, piece in slices.items()}
            shapes = {name: tuple(piece.get_shape()) for name, piece in slices.items()}
    except FileNotFoundError:
        raise StorageError(f"{path.parent}: {WEIGHTS} is missing; copy the whole directory") from None
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{path}: damaged ({error}); copy or save it again") from None
    for name, kind in types.items():
        if kind not in _FLOATING:
            raise StorageError(f"{path}: weight '{name}' has type {kind}; the weights of a model are floating-point")
    return shapes


def _check_values(directory: Path, saved: Mapping[str, Tensor]) -> None:
    """Refuses weights that are not finite, and a file that is not the one that was saved."""
    path = directory / WEIGHTS
    for name, weight in saved.items():
        if not torch.isfinite(weight).all():
            raise StorageError(f"{path}: weight '{name}' holds NaN or infinity; take an earlier checkpoint")
    checksum = _content(directory).get("weights")
    if checksum is None:  # a model of version 0.1
        return
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != checksum:
            raise StorageError(f"{path}: damaged, or changed since it was saved; copy or save it again")


def _without_aliases(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns each tensor under the first of its names, because safetensors stores no shared memory."""
    seen: set[int] = set()
    unique = {}
    for name, tensor in state.items():
        if tensor.data_ptr() not in seen or tensor.numel() == 0:
            seen.add(tensor.data_ptr())
            unique[name] = tensor.contiguous()
    return unique
