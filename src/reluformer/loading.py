"""`reluformer.load` and `reluformer.train`: a model from any directory that this package writes, and any recipe.

The command line and Python open models and train them with the same functions. They stand above the
integrations and the tasks, because an export is read by the integration that wrote it, and a recipe says its task.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from reluformer import files
from reluformer.config import read_yaml
from reluformer.errors import ArgumentError, ConfigError, StorageError, nearest
from reluformer.images.recipe import ImageRecipe
from reluformer.language.recipe import LanguageRecipe
from reluformer.models import CONFIG, WEIGHTS, storage
from reluformer.training.config import TrainingRecipe
from reluformer.training.run import RunDirectory, find_run
from reluformer.translation.native_decoder import decoder_of
from reluformer.translation.recipe import Recipe
from reluformer.translation.translator import Translator, load_run

if TYPE_CHECKING:
    from reluformer.language import Generator
    from reluformer.training.fit import TrainingResult
    from reluformer.training.progress import TrainingProgress
    from reluformer.training.task import Evaluate

AnyRecipe = Recipe | LanguageRecipe | ImageRecipe
RECIPES: dict[str, type[AnyRecipe]] = {"translation": Recipe, "language": LanguageRecipe, "images": ImageRecipe}
"""The class of a recipe by its key `task`; a recipe without one is for translation."""
TRANSLATION, LANGUAGE = "reluformer", "reluformer_language"
"""What transformers calls the two kinds of exported models."""


def train(
    recipe: AnyRecipe | Mapping[str, Any] | str | Path,
    directory: str | Path | None = None,
    *,
    init_from: str | Path | None = None,
    resume: bool = True,
    progress: TrainingProgress | None = None,
    evaluate: Evaluate | None = None,
    prepared: str | Path | None = None,
) -> TrainingResult:
    """Trains the model of a recipe, or resumes the training found in `directory`.

    With `training.validate_bleu` each validation of a translation model also translates and scores documents. Ctrl-C
    ends the current update, saves a checkpoint, and returns a result with status "interrupted".

    Args:
        recipe: A recipe, its sections as a mapping, or the path of a YAML file. `task: language` trains a language
            model, `task: images` an image model.
        directory: The run directory. Default: runs/NAME, where NAME is that of the YAML file, or runs/model.
        init_from: The directory of a saved model to start from; it must have the same tokenizer.
        resume: Whether to resume a run found in `directory`; otherwise it is deleted.
        progress: The receiver of progress reports. Default: a live bar or lines on stderr.
        evaluate: Computes more scores of the model at each validation.
        prepared: Where the prepared corpus is, or is written to. Default: `directory`/data.

    Returns:
        How the training ended: status, steps, best validation loss, speed.

    Raises:
        ConfigError: The recipe is not valid, or does not fit the run in `directory` or the model of `init_from`.
        DataError: The corpus cannot be read.
        DivergedError: The loss or the gradient is not finite.
        StorageError: The directory holds something else, or a file cannot be read or written.

    Example:
        >>> import reluformer as rf
        >>> recipe = {
        ...     "data": {"train": {"embedded": {"documents": 20}}, "tokenizer": {"vocab_size": 300}},
        ...     "model": {"width": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "slots": 32},
        ...     "training": {"updates": 2, "tokens_per_batch": 400},
        ... }
        >>> result = rf.train(recipe, "runs/tiny")
        >>> result.status, result.step
        ('finished', 2)
        >>> len(rf.load("runs/tiny").translate(["The lamp is new."]))
        1
    """
    from reluformer import images, language  # here, so that a translation does not wait for what only training needs
    from reluformer.training.corpus_task import TrainingOptions
    from reluformer.translation import task as translation

    schema = type(recipe) if isinstance(recipe, TrainingRecipe) else recipe_class(recipe)
    runs: dict[Any, Any] = {LanguageRecipe: language.train, ImageRecipe: images.train}
    run: Any = next((found for kind, found in runs.items() if issubclass(schema, kind)), translation.train)
    options = TrainingOptions(
        init_from=init_from, resume=resume, progress=progress, evaluate=evaluate, prepared=prepared
    )
    result: TrainingResult = run(recipe, directory, **options)
    return result


def recipe_class(recipe: Mapping[str, Any] | str | Path) -> type[AnyRecipe]:
    """Returns the class of a recipe, by its key `task`.

    Args:
        recipe: The sections of a recipe, or the path of a YAML file.

    Returns:
        The class; a recipe without the key is for translation.

    Raises:
        ConfigError: There is no such task, or the file cannot be read.
    """
    values = recipe if isinstance(recipe, Mapping) else read_yaml(Path(recipe))
    task = values.get("task", "translation") if isinstance(values, Mapping) else "translation"
    if isinstance(task, str) and task in RECIPES:
        return RECIPES[task]
    where = "recipe" if isinstance(recipe, Mapping) else str(recipe)
    raise ConfigError(f"{where}: task: unknown task {task!r}; {nearest(str(task), RECIPES)}")


def load(directory: str | Path, device: str | torch.device = "cpu", *, int8: bool = False, **decoding: Any) -> Any:
    """Loads a translator, a `language.Generator` for a language model, or an `ImageModel`.

    Args:
        directory: A run as `reluformer train` writes it, or its `best/`; an export of `reluformer export
            --to onnx` or `--to hf`; or a folder of runs such as that of `make demo`, which stands for the
            run called `reluformer` in it. An unfinished run has its best weights so far, and a warning says so.
        device: The device that the model computes on; "auto" is the GPU where there is one. An ONNX export
            computes on the CPU.
        int8: Whether to translate with weights of 8 bits, which is faster on a CPU. Scores of given
            translations and read maps keep the weights of the run.
        **decoding: Keys of `DecodingConfig` that differ from the settings of the run, such as `beam=1`.

    Returns:
        A `Translator` with the decoding settings of its run, a `Generator`, or an `ImageModel` ready to classify.

    Raises:
        StorageError: The directory holds no model, another model's tokenizer, or a damaged file.
        ArgumentError: The device does not exist, or does not suit an ONNX export or int8 weights; or a language
            or image model was given decoding settings.
        MissingExtraError: The export needs a package that is not installed.

    Example:
        >>> import reluformer as rf
        >>> translator = rf.load("runs/demo", beam=2)
        >>> translator.config.beam
        2
        >>> translations = translator.translate(["The lamp is new.", "It is big."])
        >>> len(translations)
        2
    """
    directory = find_run(Path(directory))
    of_images = _content(RunDirectory(directory).model).get("architecture") == "image_model"
    if not of_images and not is_language_model(directory):
        return load_translator(directory, device, int8=int8, **decoding)
    if int8 or decoding:
        given = ", ".join([*(["int8"] if int8 else []), *decoding])
        kind = "an image model" if of_images else "a language model"
        raise ArgumentError(f"{directory}: {kind}, and {given} is for translation; leave it out")
    if of_images:
        from reluformer import images

        return images.load(directory).to(_device(device))
    return load_generator(directory, device)


def load_translator(
    directory: str | Path, device: str | torch.device = "cpu", *, int8: bool = False, **decoding: Any
) -> Translator:
    """Loads a translator; arguments and errors are those of `load`."""
    directory = find_run(Path(directory))
    if RunDirectory(directory).is_onnx:
        from reluformer.integrations import onnx

        if str(device) not in ("auto", "cpu"):
            raise ArgumentError(f"device {device}: an ONNX export runs on the CPU here; leave the device out")
        if int8:
            raise ArgumentError("an ONNX export keeps its own weights; make it with export --to onnx --quantize int8")
        return onnx.load(directory, **decoding)
    found = _device(device)
    if _transformers_type(directory) == LANGUAGE:
        raise StorageError(f"{directory}: a language model, which does not translate; use `reluformer generate`")
    if _transformers_type(directory) == TRANSLATION:
        from reluformer import hub

        model, tokenizer = _export(directory, hub.ReLUFormerForConditionalGeneration, hub.ReLUFormerTokenizer)
        translator = hub.translator(model.to(found), tokenizer, **decoding)
        return Translator(decoder_of(translator.model, int8), translator.tokenizer, translator.config)
    return load_run(directory, found, int8=int8, **decoding)


def load_generator(directory: str | Path, device: str | torch.device = "cpu") -> Generator:
    """Loads a language model from its run or its export to transformers; arguments and errors are those of `load`."""
    directory, found = find_run(Path(directory)), _device(device)
    if _transformers_type(directory) == LANGUAGE:
        from reluformer import hub

        model, tokenizer = _export(directory, hub.ReLUFormerForCausalLM, hub.ReLUFormerLanguageTokenizer)
        return hub.generator(model.to(found), tokenizer)
    if _transformers_type(directory) == TRANSLATION:
        raise StorageError(f"{directory}: a translation model, not a language model; use `reluformer translate`")
    from reluformer import language

    return language.load(directory, found)


def is_language_model(directory: str | Path) -> bool:
    """Returns whether a directory holds a language model: a run, a saved model or an export to transformers."""
    kind = _content(RunDirectory(find_run(Path(directory))).model)
    return kind.get("model_type") == LANGUAGE or kind.get("architecture") == "language_model"


def _device(device: str | torch.device) -> torch.device:
    """Returns the device, or raises an error where torch has none of this name."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.zeros(1, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ArgumentError(f"device {device}: {str(error).splitlines()[0]}; use cpu") from None


def _content(directory: Path) -> dict[str, Any]:
    """Returns config.json; empty where it is missing or damaged, which those report who load it."""
    try:
        content = files.parse_json(files.read_text(directory / CONFIG))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _transformers_type(directory: Path) -> object:
    """Returns the type of a model of transformers; None if config.json is another."""
    return _content(directory).get("model_type")


def _export(directory: Path, model: Any, tokenizer: Any) -> tuple[Any, Any]:
    """Returns model and tokenizer of an export to transformers."""
    if (directory / WEIGHTS).exists():  # large models have several files
        storage.read_header(directory / WEIGHTS)
    return model.from_pretrained(directory, dtype=torch.float32), tokenizer.from_pretrained(directory)
