"""Exports a run as a directory of transformers, and imports one as a run; the weights stay the same.

    run                                   directory of transformers
    config.json, model.safetensors        config.json (network, decoding, checksum), model.safetensors
    tokenizer.json, tokenizer.meta.json   the same files, and tokenizer_config.json
    recipe.yaml                           the same file: how the model was trained and decodes

A language model has no decoding section and no languages. The directory appears under its name only when it is
complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers.utils import logging

from reluformer import language
from reluformer.errors import StorageError
from reluformer.files import parse_json, read_text, whole_directory
from reluformer.integrations.transformers.language_modeling import ReLUFormerForCausalLM, ReLUFormerLanguageConfig
from reluformer.integrations.transformers.modeling import ReLUFormerConfig, ReLUFormerForConditionalGeneration
from reluformer.integrations.transformers.pretrained import NetworkConfig, NetworkModel
from reluformer.integrations.transformers.tokenization import (
    ReLUFormerLanguageTokenizer,
    ReLUFormerTokenizer,
    RunTokenizer,
)
from reluformer.language import Generator
from reluformer.models import storage
from reluformer.training.run import RunDirectory
from reluformer.translation.recipe import languages_of
from reluformer.translation.translator import Translator, load_run


def export_run(run: Path, out: Path, *, force: bool = False) -> dict[str, Any]:
    """Writes the model of a run as a directory that `from_pretrained` loads.

    Args:
        run: The directory of a run.
        out: The directory to write.
        force: If True, an older export at `out` is replaced.

    Returns:
        The source, the directory, the number of parameters, and the size of each file.

    Raises:
        StorageError: The run cannot be loaded, or `out` cannot be written.

    Example:
        >>> from pathlib import Path
        >>> from reluformer import hub
        >>> facts = hub.export_run(Path("runs/demo/reluformer"), Path("my-export"))
        >>> list(facts["files"])
        ['config.json', ..., 'tokenizer_config.json']
        >>> model = hub.ReLUFormerForConditionalGeneration.from_pretrained("my-export")
        >>> model.model.parameter_count() == facts["parameters"]
        True
    """
    source = RunDirectory(run)
    forms = _FORMS[storage.architecture(source.model) if source.has_model or source.is_unfinished else TRANSLATION]
    found: Any = forms.open(run)
    config = forms.config.from_model_config(
        found.model.config, tokenizer_sha256=found.tokenizer.fingerprint, **forms.settings(found, source)
    )
    model = forms.model(config).eval()
    model.model.load_state_dict(found.model.state_dict())
    with whole_directory(out, replace=_replaceable(out, force, _is_export)) as directory, _without_progress_bars():
        model.save_pretrained(directory)
        forms.tokenizer.of(found.tokenizer).save_pretrained(directory)
        source.copy_recipe(directory)
    return {"source": str(run), "out": str(out), "to": "hf", **_facts(found.model, out)}


def import_run(source: Path, out: Path, *, force: bool = False) -> dict[str, Any]:
    """Writes a model from a directory of transformers as a run that `reluformer.load` loads.

    Args:
        source: A directory that `export_run` or `save_pretrained` wrote.
        out: The directory of the run.
        force: If True, an older import at `out` is replaced; a trained run never is.

    Returns:
        The source, the directory, the number of parameters, and the size of each file.

    Raises:
        StorageError: The source is no ReLUFormer or damaged, or `out` cannot be written.

    Example:
        >>> from pathlib import Path
        >>> import reluformer as rf
        >>> from reluformer import hub
        >>> facts = hub.import_run(Path("exported"), Path("imported"))
        >>> len(rf.load("imported").translate(["The lamp is new."]))
        1
    """
    forms = _forms_of(source)
    tokenizer = forms.tokenizer.from_pretrained(source)
    with _without_progress_bars():
        model = forms.model.from_pretrained(source, dtype=torch.float32)
    with whole_directory(out, replace=_replaceable(out, force, _is_imported)) as directory:
        tokenizer.own.save(directory)
        RunDirectory(source).copy_recipe(directory)
        network = model.config.to_model_config()
        storage.save(directory, network, model.model.state_dict(), tokenizer.own.fingerprint)
        forms.open(directory)  # every check that a run has to pass
    return {"source": str(source), "out": str(out), "to": "run", **_facts(model.model, out)}


def _facts(model: Any, out: Path) -> dict[str, Any]:
    files = {path.name: path.stat().st_size for path in sorted(out.iterdir()) if path.is_file()}
    return {"parameters": model.parameter_count(), "files": files}


class _Forms(NamedTuple):
    """The classes of one kind of model in transformers, and how a run of it is opened."""

    config: type[NetworkConfig]
    model: type[NetworkModel]
    tokenizer: type[RunTokenizer]
    open: Callable[[Path], Translator | Generator]
    settings: Callable[[Any, RunDirectory], dict[str, Any]]
    """What the configuration holds beside the network."""


def _translation_settings(translator: Translator, run: RunDirectory) -> dict[str, Any]:
    languages = dict(zip(("source_lang", "target_lang"), languages_of(run), strict=True))
    return {"decoding": translator.config.model_dump(mode="json"), **(languages if run.recipe_file.is_file() else {})}


TRANSLATION = "encoder_decoder"
_FORMS = {
    TRANSLATION: _Forms(
        ReLUFormerConfig, ReLUFormerForConditionalGeneration, ReLUFormerTokenizer, load_run, _translation_settings
    ),
    "language_model": _Forms(
        ReLUFormerLanguageConfig,
        ReLUFormerForCausalLM,
        ReLUFormerLanguageTokenizer,
        language.load,
        lambda generator, run: {},
    ),
}
"""By the architecture of a saved model."""
_TYPES = {forms.config.model_type: forms for forms in _FORMS.values()}


def _forms_of(source: Path) -> _Forms:
    """Returns the classes of an export, or raises an error that names what the directory holds instead."""
    path = source / storage.CONFIG
    if not source.is_dir():
        raise StorageError(f"{source}: no such directory; give that of an export or a saved model")
    if not path.is_file():
        raise StorageError(f"{source}: holds no {storage.CONFIG}; give the directory of an export or a saved model")
    try:
        kind = parse_json(read_text(path))
    except (OSError, ValueError) as error:
        raise StorageError(f"{path}: damaged, not readable as JSON ({error}); export the model again") from None
    found = kind.get("model_type") if isinstance(kind, dict) else None
    if not isinstance(found, str) or found not in _TYPES:
        known = " and ".join(f"'{name}'" for name in _TYPES)
        raise StorageError(f"{path}: a model of type {found!r}; only those of type {known} can become a run")
    return _TYPES[found]


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Disables the progress bars of transformers."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _replaceable(out: Path, force: bool, is_replaceable: Callable[[Path], bool]) -> bool:
    """Returns True if `out` exists and may be replaced; raises an error if it may not."""
    if not out.exists():
        return False
    if not out.is_dir():
        raise StorageError(f"{out}: is a file; give a directory with --out")
    if any(out.iterdir()):
        if not force:
            raise StorageError(f"{out}: exists and is not empty; choose another --out, or --force to replace it")
        if not is_replaceable(out):
            raise StorageError(f"{out}: is no export, so --force does not replace it; choose another --out")
    return True


def _is_export(directory: Path) -> bool:
    return any(_says(directory, "model_type", name) for name in _TYPES)


def _is_imported(directory: Path) -> bool:
    """Returns False for a trained run: nobody could restore it from an export."""
    return not RunDirectory(directory).was_trained and _says(directory, "kind", storage.KIND)


def _says(directory: Path, key: str, value: str) -> bool:
    """Returns True if config.json has this value; other programs also have files of that name."""
    try:
        content = parse_json(read_text(directory / storage.CONFIG))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get(key) == value
