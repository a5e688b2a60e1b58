"""A run that trains an image model: its images, its recipe, and its accuracy on the test images.

A trial of a learning rate has no `test` in its configuration and never reads the test images.

The images of the study are in one folder, DATA/fashion-mnist, as `reluformer data get` writes them. Without it those of
Debian's package dataset-fashion-mnist are used, which are the same. Gratings need no files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reluformer import images
from reluformer.errors import DataError
from reluformer.images.recipe import ImageRecipe
from reluformer.images.scoring import evaluate, images_of
from reluformer.study.plan import Run
from reluformer.study.trainings import Context, StudyProgress, chosen_rate, finish, rounded
from reluformer.training.run import RunDirectory

PACKAGED = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts the files."""


def run_images(run: Run, context: Context) -> dict[str, Any]:
    """Train an image model; returns its accuracy on the test images, if it is tested, and its validation by step."""
    recipe = recipe_of(run, context.data, chosen_rate(run, context))
    directory = RunDirectory(context.study.training(run))
    finish(directory, lambda: images.train(recipe, directory.path, progress=StudyProgress(context.report)))
    status = directory.status
    if status["status"] != "finished":
        told = {key: status.get(key) for key in ("message", "step", "layer")}
        return {"status": "diverged", "lr": recipe.training.lr, **told}
    tested = {}
    if run.content.get("test"):
        scores = evaluate(images.load(directory.path), images_of(directory.path, "test"))
        tested = {"test": {key: rounded(value) for key, value in scores.to_dict().items() if key != "seconds"}}
    losses = directory.log.events("valid")
    directory.drop_checkpoints()
    return {
        "status": "finished",
        "lr": recipe.training.lr,
        "loss": rounded(losses[-1]["loss"]),
        **tested,
        "valid": [
            {"step": event["step"], "loss": rounded(event["loss"]), "accuracy": rounded(event["accuracy"])}
            for event in losses
        ],
        "training_seconds": rounded(status["result"]["seconds"]),
        "parameters": status["result"]["parameters"],
    }


def recipe_of(run: Run, root: Path | None, lr: float) -> ImageRecipe:
    """Returns the recipe of a run with its learning rate and the folder of its images.

    Raises:
        DataError: The folder is missing.
    """
    content = run.content
    data = dict(content["data"])
    if "gratings" not in data:
        data["directory"] = str(find_images(str(content["dataset"]), root))
    training = {**content["training"], "lr": lr, "keep_checkpoints": 1}
    sections = {"task": "images", "data": data, "model": content["model"], "training": training}
    return ImageRecipe.parse(sections, where=f"run {run.address}")


def find_images(name: str, root: Path | None) -> Path:
    """Returns the folder of a set of images.

    Raises:
        DataError: It is neither in the folder `root` nor installed.
    """
    folders = [*([root / name] if root is not None else []), *([PACKAGED] if name == PACKAGED.name else [])]
    found = next((folder for folder in folders if folder.is_dir()), None)
    if found is None:
        looked = ", ".join(map(str, folders)) or "no folder"
        raise DataError(
            f"the set '{name}' is needed and not in {looked}; `reluformer data get {name} --to DATA`, --data"
        )
    return found
