"""A run that trains a model: the recipe from its configuration, the training, the figures it leaves."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reluformer.errors import ReluformerError, StorageError
from reluformer.study.corpora import data_config, prepared_name
from reluformer.study.folder import StudyFolder
from reluformer.study.plan import Run
from reluformer.training.config import TrainingConfig
from reluformer.training.divergence import DivergedError
from reluformer.training.progress import UpdateReport
from reluformer.training.run import RunDirectory
from reluformer.translation.corpus import prepare
from reluformer.translation.recipe import DecodingConfig, ModelRecipe, Recipe
from reluformer.translation.task import train

TELEMETRY = (
    *("read_variance", "output_variance", "residual_variance", "zero_fraction", "entropy", "row_sum"),
    *("dead", "margin_active", "anisotropy", "top_mass", "slots"),
    *("query_gradient", "key_gradient", "value_gradient"),
)
"""What is kept of every read, as a mean over its heads."""


class InterruptedRunError(ReluformerError):
    """A run was asked to stop; what it has is saved."""


@dataclass(frozen=True)
class Context:
    """Where a run works and to whom it tells how far it is."""

    folder: StudyFolder
    data: Path | None
    report: Callable[[float, str], None]

    def needed(self, run: Run) -> dict[str, Any]:
        """The result of a run that this one needs."""
        result = self.folder.result(run)
        if result is None:
            raise StorageError(f"{self.folder.directory(run)}: is needed first; start it with `reluformer study`")
        return result


def run(run: Run, context: Context) -> dict[str, Any]:
    """Train; the validation losses and what telemetry saw, by step."""
    lr = chosen_rate(run, context)
    recipe = recipe_of(run, context.data, lr)
    prepared = context.folder.data / prepared_name(recipe.data)
    summary = prepare(recipe.data, prepared)
    directory = RunDirectory(context.folder.training(run))
    start = None if run.start is None else context.folder.training(run.start)
    if run.start is not None and context.needed(run.start)["status"] == "diverged":
        return {"status": "diverged", "message": "the training it starts from diverged", "lr": lr, "step": 0}
    if directory.status.get("status") != "diverged":  # else it was stopped before it could tell
        try:
            result = train(recipe, directory.path, init_from=start, progress=_Told(context.report), prepared=prepared)
            if result.status == "interrupted":
                raise InterruptedRunError(f"interrupted after update {result.step}")
        except DivergedError as error:
            print(error, flush=True)
    status = directory.status
    outcome = _figures(status["result"]) if status["status"] == "finished" else _divergence(status)
    shutil.rmtree(directory.path / "checkpoints", ignore_errors=True)
    shutil.rmtree(directory.best, ignore_errors=True)
    losses = directory.log.events("valid")
    train_tokens = summary.splits["train"].target_tokens
    return {
        **outcome,
        "lr": lr,
        "loss": rounded(losses[-1]["loss"]) if losses and outcome["status"] == "finished" else None,
        "data": {"tokenizer": summary.tokenizer_fingerprint[:12], "train_target_tokens": train_tokens},
        "valid": [{"step": e["step"], "loss": rounded(e["loss"])} for e in losses],
        "train": _thinned(directory),
        "telemetry": [
            {"step": event["step"], "reads": {name: _means(read) for name, read in event["reads"].items()}}
            for event in directory.log.events("telemetry")
        ],
    }


def chosen_rate(run: Run, context: Context) -> float:
    """The learning rate: given, that of the training it starts from, or the trial with the lowest validation loss.

    A trial that diverged loses against any that did not; if all did, the lowest rate is taken.
    """
    given = run.content["training"].get("lr")
    if given is not None:
        return float(given)
    if run.trials:
        results = [context.needed(trial) for trial in run.trials]
        finished = [result for result in results if result["status"] == "finished"]
        if not finished:
            return min(float(result["lr"]) for result in results)
        return float(min(finished, key=lambda result: result["loss"])["lr"])
    if run.start is None:
        raise StorageError(f"run {run.address}: its configuration has no learning rate and no trials to choose it by")
    return float(context.needed(run.start)["lr"])


def recipe_of(run: Run, data: Path | None, lr: float) -> Recipe:
    """The recipe of a training, with the files of its corpus."""
    content = run.content
    training = {**content["training"], "lr": lr, "average_last": 1, "keep_checkpoints": 1}
    return Recipe(
        data=data_config(content, data),
        model=ModelRecipe(**model_of(content["model"])),
        training=TrainingConfig(**training),
        decoding=DecodingConfig(**content.get("decoding", {})),
    )


def model_of(section: Mapping[str, Any]) -> dict[str, Any]:
    """The model section of a recipe; `attention` is the rule of all three attentions."""
    model = dict(section)
    if "attention" in model:
        rule = model.pop("attention")
        model.update(dict.fromkeys(("encoder_attention", "decoder_attention", "cross_attention"), rule))
    return model


def _figures(result: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("step", "tokens", "tokens_per_second", "parameters", "padding", "best_loss", "best_step")
    figures = {key: rounded(result[key]) for key in kept}
    return {"status": "finished", **figures, "training_seconds": result["seconds"]}


def _divergence(status: Mapping[str, Any]) -> dict[str, Any]:
    return {"status": "diverged", **{key: status.get(key) for key in ("message", "step", "layer")}}


def _means(read: Mapping[str, Any]) -> dict[str, Any]:
    return {"rule": read["rule"], **{name: _mean(read[name]) for name in TELEMETRY if read.get(name) is not None}}


def _mean(value: float | list[float | None] | None) -> float | None:
    known = [x for x in (value if isinstance(value, list) else [value]) if x is not None and math.isfinite(x)]
    return float(rounded(sum(known) / len(known))) if known else None


def _thinned(directory: RunDirectory, most: int = 60) -> list[dict[str, Any]]:
    """At most so many points of the training curve, the last among them."""
    events = directory.log.events("train")
    every = max(1, -(-len(events) // most))
    chosen = events[(len(events) - 1) % every :: every]
    points = []
    for event in chosen:
        point = {"step": event["step"], "nll": rounded(event["nll"]), "tokens": event["total_tokens"]}
        if "regularizer" in event:
            point["margin_active"] = rounded(event["regularizer"]["diffuse"])
            point["normalization"] = rounded(event["regularizer"]["normalization"])
        points.append(point)
    return points


def rounded(value: Any) -> Any:
    """Five significant digits: results are read by people too."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


class _Told:
    """Training progress, passed on as a share."""

    def __init__(self, report: Callable[[float, str], None]) -> None:
        self._report = report

    def update(self, report: UpdateReport) -> None:
        self._report(report.step / report.updates, f"loss {report.loss:.3f}, {report.tokens_per_second:,.0f} tokens/s")

    def message(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None:
        pass
