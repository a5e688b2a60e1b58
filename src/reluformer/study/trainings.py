"""A run that trains a model: its corpus, its recipe, the training and the result.

Controls are rules that only the study needs, as they could explain a difference between other rules:

softmax_sqrt    softmax * sqrt(n)              gives a softmax read the size of a ReLU read
softmax_scaled  softmax * exp(g), g learned    lets the layer learn the size
relu_ln         LayerNorm on a ReLU read       shows which part of `softmax_ln` is due to the norm

The corpora of the study are in one folder, which holds a folder for each of them:

DATA/multi30k/train.jsonl.gz, valid.jsonl.gz, test.jsonl.gz      as `reluformer data get` writes them
DATA/multi30k/train.en.gz, train.de.gz, ...                      or aligned text, one sentence a line
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from reluformer import rules
from reluformer.errors import DataError, ReluformerError, StorageError
from reluformer.rules import OutputNorm, Rowwise
from reluformer.study.plan import Run
from reluformer.study.results import StudyDirectory
from reluformer.training.config import TrainingConfig
from reluformer.training.fit import TrainingResult
from reluformer.training.objective import DivergedError
from reluformer.training.progress import UpdateReport
from reluformer.training.run import RunDirectory
from reluformer.translation.corpus import prepare
from reluformer.translation.recipe import DataConfig, DecodingConfig, ModelRecipe, Recipe
from reluformer.translation.task import train

TELEMETRY = (
    *("read_variance", "output_variance", "residual_variance", "zero_fraction", "entropy", "row_sum"),
    *("dead", "margin_active", "anisotropy", "top_mass", "slots"),
    *("query_gradient", "key_gradient", "value_gradient"),
)
"""The telemetry that is kept of every read, as a mean over its heads."""
OTHER_NAMES = {"europarl7-doc": ("europarl7-doc", "europarl7")}
SPLITS = ("train", "valid", "test")


class InterruptedRunError(ReluformerError):
    """A run was asked to stop; its state is saved."""


@dataclass(frozen=True)
class Context:
    """The surroundings of a run: the study, the folder of the corpora, and where it reports its progress."""

    study: StudyDirectory
    data: Path | None
    report: Callable[[float, str], None]

    def needed(self, run: Run) -> dict[str, Any]:
        """Returns the result of a run that another one needs.

        Raises:
            StorageError: That run is not done.
        """
        result = self.study.result(run)
        if result is None:
            raise StorageError(f"{self.study.directory(run)}: is needed first; start it with `reluformer study`")
        return result


# ------------------------------------------------------------------ corpora


def data_config(content: Mapping[str, Any], root: Path | None) -> DataConfig:
    """Returns the data section of a run with the files of its corpus; the embedded corpus has none.

    Raises:
        DataError: The corpus is not in the folder `root`, or no folder is given.
    """
    data = dict(content["data"])
    if content["dataset"] == "embedded":
        return DataConfig(**data)
    languages = (data.get("source_lang", "en"), data.get("target_lang", "de"))
    return DataConfig(**data, **find_corpus(str(content["dataset"]), root, languages)).resolved()


def find_corpus(name: str, root: Path | None, languages: tuple[str, str]) -> dict[str, Any]:
    """Returns the files of a corpus by split."""
    if root is None:
        raise DataError(f"the set '{name}' is needed; say with --data FOLDER where it is, FOLDER/{name}/train.jsonl.gz")
    folders = [root / called for called in OTHER_NAMES.get(name, (name,))]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        present = ", ".join(sorted(path.name for path in root.iterdir())[:8]) if root.is_dir() else "no such folder"
        raise DataError(f"{root}: expected a folder '{name}' in it, found: {present or 'nothing'}")
    return {split: _split(folder, split, languages) for split in SPLITS}


def _split(folder: Path, split: str, languages: tuple[str, str]) -> dict[str, Any]:
    for ending in ("jsonl.gz", "jsonl"):
        if (folder / f"{split}.{ending}").is_file():
            return {"path": folder / f"{split}.{ending}"}
    for ending in (".gz", ""):
        pair = [folder / f"{split}.{language}{ending}" for language in languages]
        if all(path.is_file() for path in pair):
            return {"src": pair[0], "tgt": pair[1], "documents": "line"}
    present = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
    names = " with ".join(f"{split}.{language}.gz" for language in languages)
    raise DataError(f"{folder}: expected {split}.jsonl.gz, or {names}; found: {present}")


def prepared_name(config: DataConfig) -> str:
    """Returns a folder name that changes whenever the configuration or one of its files does."""
    state = [
        (str(path), path.stat().st_size, path.stat().st_mtime_ns) for s in config.splits.values() for path in s.files
    ]
    text = json.dumps([config.identity(), state], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


# ------------------------------------------------------------------ the training


def run(run: Run, context: Context) -> dict[str, Any]:
    """Train a model; returns its validation losses and telemetry by step, and how the training ended."""
    lr = chosen_rate(run, context)
    recipe = recipe_of(run, context.data, lr)
    prepared = context.study.data / prepared_name(recipe.data)
    summary = prepare(recipe.data, prepared)
    directory = RunDirectory(context.study.training(run))
    start = None if run.start is None else context.study.training(run.start)
    if run.start is not None and context.needed(run.start)["status"] == "diverged":
        return {"status": "diverged", "message": "the training it starts from diverged", "lr": lr, "step": 0}
    progress = StudyProgress(context.report)
    finish(directory, lambda: train(recipe, directory.path, init_from=start, progress=progress, prepared=prepared))
    outcome = outcome_of(directory.status)
    directory.drop_checkpoints()
    losses = directory.log.events("valid")
    train_tokens = summary.splits["train"].target_tokens
    return {
        **outcome,
        "lr": lr,
        "loss": rounded(losses[-1]["loss"]) if losses and outcome["status"] == "finished" else None,
        "data": {"tokenizer": summary.tokenizer_fingerprint[:12], "train_target_tokens": train_tokens},
        "valid": [{"step": e["step"], "loss": rounded(e["loss"])} for e in losses],
        "train": thinned(directory),
        "telemetry": [
            {"step": event["step"], "reads": {name: _means(read) for name, read in event["reads"].items()}}
            for event in directory.log.events("telemetry")
        ],
    }


def finish(directory: RunDirectory, training: Callable[[], TrainingResult]) -> None:
    """Train until the run has finished or diverged, which its status then says.

    A run that has diverged is not trained again: it was stopped before it could report that.

    Args:
        directory: The directory of the run.
        training: Trains, or resumes the training.

    Raises:
        InterruptedRunError: A signal ended the training early.
    """
    if directory.status.get("status") == "diverged":
        return
    try:
        result = training()
    except DivergedError as error:
        print(error, flush=True)
        return
    if result.status == "interrupted":
        raise InterruptedRunError(f"interrupted after update {result.step}")


def chosen_rate(run: Run, context: Context) -> float:
    """Returns the learning rate of a run.

    It is given, or that of the training it starts from, or that of the trial with the lowest validation loss.
    A trial that diverged loses against any that did not; if all diverged, the lowest rate is taken.

    Raises:
        StorageError: A run that decides it is not done, or the configuration has nothing that could decide it.
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
    """Returns the recipe of a training, with the files of its corpus."""
    content = run.content
    training = {**content["training"], "lr": lr, "average_last": 1, "keep_checkpoints": 1}
    return Recipe(
        data=data_config(content, data),
        model=ModelRecipe(**model_of(content["model"])),
        training=TrainingConfig(**training),
        decoding=DecodingConfig(**content.get("decoding", {})),
    )


def model_of(section: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the model section of a recipe; `attention` stands for the rule of all three attentions.

    Example:
        >>> model_of({"width": 8, "attention": "relu"})["cross_attention"]
        'relu'
    """
    model = dict(section)
    if "attention" in model:
        rule = model.pop("attention")
        model.update(dict.fromkeys(("encoder_attention", "decoder_attention", "cross_attention"), rule))
    return model


def outcome_of(status: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how a training ended and its figures, from the status of its run directory."""
    return _figures(status["result"]) if status["status"] == "finished" else _divergence(status)


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


def thinned(directory: RunDirectory, most: int = 60) -> list[dict[str, Any]]:
    """Returns at most `most` points of the training curve; the last one is always among them."""
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
    """Returns a float with five significant digits, or None if it is not finite; other values stay.

    Example:
        >>> rounded(1.23456789), rounded(float("inf")), rounded("relu")
        (1.2346, None, 'relu')
    """
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


class StudyProgress:
    """Reports the progress of a training as a share."""

    def __init__(self, report: Callable[[float, str], None]) -> None:
        self._report = report

    def update(self, report: UpdateReport) -> None:
        self._report(report.step / report.updates, f"loss {report.loss:.3f}, {report.tokens_per_second:,.0f} tokens/s")

    def message(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None:
        pass


# ------------------------------------------------------------------ controls


@dataclass(frozen=True)
class SoftmaxSqrt(Rowwise):
    """The rule softmax times the square root of the number of visible slots.

    It is not a `Softmax`, as no fused kernel has the factor.
    """

    def normalize(self, scores: Tensor, visible: Tensor) -> Tensor:
        return rules.get("softmax").weights(scores, torch.ones(()), visible if visible.ndim else None)

    def weights(self, scores: Tensor, n: Tensor, visible: Tensor | None) -> Tensor:
        return super().weights(scores, n, visible) * n.sqrt()


@dataclass(frozen=True)
class SoftmaxScaled(rules.Softmax):
    """The rule softmax with one learned factor on the read."""

    output_norm: ClassVar[OutputNorm | None] = "learned_scale"


@dataclass(frozen=True)
class ReluLN(rules.ReluPlain):
    """The rule ReLU(s) with a LayerNorm on the read, as `softmax_ln` has it."""

    output_norm: ClassVar[OutputNorm | None] = "layer_norm"


def register_controls() -> None:
    """Registers the controls by name; a process that never runs the study does not see them."""
    rules.register("softmax_sqrt")(SoftmaxSqrt)
    rules.register("softmax_scaled")(SoftmaxScaled)
    rules.register("relu_ln")(ReluLN)
