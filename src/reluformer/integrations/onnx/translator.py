"""Text in, text out with an export: the translator of the decoding package on onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reluformer.errors import StorageError
from reluformer.integrations.onnx import folder
from reluformer.integrations.onnx.stepper import OnnxStepper
from reluformer.translation.translator import Translator


def load(directory: str | Path, **decoding: Any) -> Translator:
    """The translator exported to `directory`, on the CPU; `decoding` changes keys of `DecodingConfig`.

    Documents, streams and n-best lists as with `reluformer.load`. What asks for the PyTorch
    model, such as scores of given translations, is refused.
    """
    directory = Path(directory)
    manifest = folder.read_manifest(directory)
    folder.check_files(directory, manifest)
    tokenizer = folder.load_tokenizer(directory, manifest)
    config = folder.decoding_config(directory, manifest)
    stepper = OnnxStepper(directory / folder.ENCODER, directory / folder.DECODER)
    if tokenizer.vocab_size != stepper.vocab_size:
        raise StorageError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size} entries, the graphs {stepper.vocab_size}; "
            "export the run again"
        )
    return Translator(stepper, tokenizer, config.replace(**decoding))
