"""`reluformer.load`: a translator from any directory that this package writes.

The command line and Python open models with the same function. It stands above the
integrations, because an export is read by the integration that wrote it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from reluformer import files
from reluformer.errors import ArgumentError
from reluformer.models import CONFIG, WEIGHTS, storage
from reluformer.training.run import RunDirectory, find_run
from reluformer.translation.translator import Translator, load_run


def load(directory: str | Path, device: str | torch.device = "cpu", **decoding: Any) -> Translator:
    """Loads a translator.

    Args:
        directory: A run as `reluformer train` writes it, or its `best/`; an export of `reluformer export
            --to onnx` or `--to hf`; or a folder of runs such as that of `make demo`, which stands for the
            run called `reluformer` in it. An unfinished run has its best weights so far, and a warning says so.
        device: The device that the model computes on; "auto" is the GPU where there is one. An ONNX export
            computes on the CPU.
        **decoding: Keys of `DecodingConfig` that differ from the settings of the run, such as `beam=1`.

    Returns:
        The translator, with the decoding settings of its run.

    Raises:
        StorageError: The directory holds no model, another model's tokenizer, or a damaged file.
        ArgumentError: The device does not exist, or does not suit an ONNX export.
        MissingExtraError: The export needs a package that is not installed.

    Example:
        >>> import reluformer as rf
        >>> translator = rf.load("runs/demo", beam=2)  # doctest: +SKIP
        >>> translator.translate(["The lamp is new."])  # doctest: +SKIP
        ['Die Lampe ist neu.']
    """
    directory = find_run(Path(directory))
    if RunDirectory(directory).is_onnx:
        from reluformer.integrations import onnx

        if str(device) not in ("auto", "cpu"):
            raise ArgumentError(f"device {device}: an ONNX export runs on the CPU here; leave the device out")
        return onnx.load(directory, **decoding)
    found = _device(device)
    if _is_transformers_export(directory):
        return _load_transformers_export(directory, found, **decoding)
    return load_run(directory, found, **decoding)


def _device(device: str | torch.device) -> torch.device:
    """Returns the device, or raises an error where torch has none of this name."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.zeros(1, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ArgumentError(f"device {device}: {str(error).splitlines()[0]}; use cpu") from None


def _is_transformers_export(directory: Path) -> bool:
    """Whether config.json is one of transformers; a damaged one is left to `load_run`, which names the fault."""
    try:
        content = files.parse_json(files.read_text(directory / CONFIG))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("model_type") == "reluformer"


def _load_transformers_export(directory: Path, device: torch.device, **decoding: Any) -> Translator:
    from reluformer import hub

    if (directory / WEIGHTS).exists():  # large models have several files
        storage.read_header(directory / WEIGHTS)
    model = hub.ReLUFormerForConditionalGeneration.from_pretrained(directory, dtype=torch.float32)
    tokenizer = hub.ReLUFormerTokenizer.from_pretrained(directory)
    return hub.translator(model.to(device), tokenizer, **decoding)
