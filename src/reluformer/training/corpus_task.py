"""What tasks share that are given by a recipe, what those with a prepared corpus add, and training by a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from torch import Tensor, nn

from reluformer.config import load_yaml
from reluformer.errors import ArgumentError, ConfigError, StorageError
from reluformer.models import storage
from reluformer.training.config import TrainingRecipe
from reluformer.training.fit import TrainingResult, fit
from reluformer.training.progress import TrainingProgress
from reluformer.training.run import RunDirectory
from reluformer.training.task import Evaluate, Task

AnyRecipe = TypeVar("AnyRecipe", bound=TrainingRecipe)


class RecipeTask:
    """What tasks share that are given by a recipe: its data, the scores of the caller, and the first weights."""

    recipe: Any

    def __init__(self, recipe: Any, data: Path, evaluate: Evaluate | None = None) -> None:
        """Take the recipe, the directory for prepared data, and more scores to compute at each validation."""
        self.recipe = recipe.replace(data=recipe.data.resolved())
        self.data = data
        self._evaluate = evaluate

    @property
    def evaluate(self) -> Evaluate | None:
        """The scores that the caller wants at each validation."""
        return self._evaluate

    def build_model(self) -> nn.Module:
        """Returns a new model."""
        raise NotImplementedError

    def load_initial(self, directory: Path) -> nn.Module:
        """Returns a saved model of the same sizes.

        Raises:
            ConfigError: The model has other sizes.
        """
        model = self.build_model()
        try:
            storage.load_weights(directory, model)
        except StorageError as error:
            raise ConfigError(f"--init-from: {error}; give the section 'model' the sizes of that model") from None
        return model


class CorpusTask(RecipeTask):
    """What tasks share that learn from a prepared corpus with a tokenizer, which is kept beside the model."""

    corpus: Any
    """The prepared corpus, with its `tokenizer`."""

    def load_initial(self, directory: Path) -> nn.Module:
        """Returns a saved model of the same sizes and with the same tokenizer.

        Raises:
            ConfigError: The model has other sizes or another tokenizer.
        """
        own = self.corpus.tokenizer
        if type(own).load(RunDirectory(directory).tokenizer).fingerprint != own.fingerprint:
            raise ConfigError(
                f"--init-from {directory}: that model has another tokenizer than this corpus was prepared with; "
                f"set data.tokenizer.path: {directory}"
            )
        return super().load_initial(directory)

    def save_model(self, directory: Path, weights: Mapping[str, Tensor]) -> None:
        """Writes the tokenizer, the weights and the configuration of the model."""
        tokenizer = self.corpus.tokenizer
        tokenizer.save(directory)
        storage.save(directory, self.recipe.model_config_for(tokenizer.vocab_size), weights, tokenizer.fingerprint)


class TrainingOptions(TypedDict, total=False):
    """How a recipe is trained, beside the recipe and the directory; `reluformer.train` describes them."""

    init_from: str | Path | None
    resume: bool
    progress: TrainingProgress | None
    evaluate: Evaluate | None
    prepared: str | Path | None


def fit_recipe(
    recipe: AnyRecipe | Mapping[str, Any] | str | Path,
    schema: type[AnyRecipe],
    task: Callable[[AnyRecipe, Path, Evaluate | None], Task],
    directory: str | Path | None,
    *,
    evaluate: Evaluate | None = None,
    prepared: str | Path | None = None,
    **options: Any,
) -> TrainingResult:
    """Trains what a recipe describes, in the directory that is named or named like the recipe.

    Args:
        recipe: A recipe, its sections as a mapping, or the path of a YAML file.
        schema: The class of the recipe.
        task: Makes the task from the recipe, the directory of its prepared corpus and more scores.
        directory: The run directory. Default: runs/NAME, where NAME is that of the YAML file, or runs/model.
        evaluate: Computes more scores of the model at each validation.
        prepared: Where the prepared corpus is, or is written to. Default: `directory`/data.
        **options: Those of `fit`.
    """
    name = "model"
    if isinstance(recipe, str | Path):
        name = Path(recipe).stem
        recipe = load_yaml(schema, recipe)
    elif not isinstance(recipe, schema):
        assert isinstance(recipe, Mapping)
        recipe = schema.parse(recipe, where="recipe")
    run = Path("runs") / name if directory is None else Path(directory)
    data = run / "data" if prepared is None else Path(prepared)
    if data.resolve() == run.resolve():
        raise ArgumentError(f"--prepared {data}: is the directory of the run; leave it out, or name another")
    return fit(task(recipe, data, evaluate), run, **options)
