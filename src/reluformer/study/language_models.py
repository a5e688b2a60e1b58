"""A run that trains a language model and tests how far back it reads.

After training the test split is read in rows of each length in `test.contexts`. For each the result has the loss, also
by position, the share of weights that are exactly zero, the share of needles found (`language.scoring.needle`), and the
share of visible pairs that the CPU kernel skips under the model's own forget gate (`memory.skipped_share`).

Texts are the English side of a corpus of the study, one document a line, or the embedded corpus.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reluformer.language.corpus import LanguageCorpus, Tokens, prepare
from reluformer.language.recipe import LanguageDataConfig, LanguageModelRecipe, LanguageRecipe, LanguageTrainingConfig
from reluformer.language.scoring import evaluate, needle, own_reads, skipped_pairs
from reluformer.language.task import train
from reluformer.models.language_model import LanguageModel
from reluformer.study.plan import Run
from reluformer.study.trainings import (
    Context,
    StudyProgress,
    chosen_rate,
    find_corpus,
    finish,
    outcome_of,
    rounded,
    thinned,
)
from reluformer.training.run import RunDirectory

LANGUAGES = ("en", "de")
"""Those of the files of a corpus; the first one is read."""


def run(run: Run, context: Context) -> dict[str, Any]:
    """Train a language model; returns its losses, and what the tests of each length gave."""
    lr = chosen_rate(run, context)
    recipe = recipe_of(run, context.data, lr)
    prepared = context.study.data / _prepared_name(recipe.data)
    summary = prepare(recipe.data, prepared)
    directory = RunDirectory(context.study.training(run))
    progress = StudyProgress(context.report)
    finish(directory, lambda: train(recipe, directory.path, progress=progress, prepared=prepared))
    outcome = outcome_of(directory.status)
    losses = directory.log.events("valid")
    finished = outcome["status"] == "finished"
    tested = {}
    if finished and run.content.get("test"):
        tested = examine(LanguageModel.load(directory.path).eval(), LanguageCorpus(prepared), run.content["test"])
    directory.drop_checkpoints()
    return {
        **outcome,
        "lr": lr,
        "loss": rounded(losses[-1]["loss"]) if losses and finished else None,
        "data": {"tokenizer": summary["tokenizer"][:12], "train_tokens": summary["splits"]["train"]["tokens"]},
        "valid": [{"step": e["step"], "loss": rounded(e["loss"])} for e in losses],
        "train": thinned(directory),
        "contexts": tested,
    }


def recipe_of(run: Run, data: Path | None, lr: float) -> LanguageRecipe:
    """Returns the recipe of a training, with the files of its corpus."""
    content = run.content
    training = {**content["training"], "lr": lr, "average_last": 0, "keep_checkpoints": 1}
    return LanguageRecipe(
        data=data_config(content, data),
        model=LanguageModelRecipe(**content["model"]),
        training=LanguageTrainingConfig(**training),
    )


def data_config(content: Mapping[str, Any], root: Path | None) -> LanguageDataConfig:
    """Returns the data section of a run with the files of its corpus; the embedded corpus has none.

    Raises:
        DataError: The corpus is not in the folder `root`, or no folder is given.
    """
    given: dict[str, Any] = dict(content["data"])
    if content["dataset"] == "embedded":
        return LanguageDataConfig(**given)
    splits: dict[str, Any] = {
        split: {"path": files["path"], "field": "src"} if "path" in files else {"path": files["src"], "format": "text"}
        for split, files in find_corpus(str(content["dataset"]), root, LANGUAGES).items()
    }
    return LanguageDataConfig(**given, **splits).resolved()


def _prepared_name(config: LanguageDataConfig) -> str:
    """Returns a folder name that changes whenever the corpus or one of its files does."""
    files = [source.path for sources in config.splits.values() for source in sources if source.path is not None]
    state = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    values = config.model_dump(mode="json", exclude={"context", "packed"})
    return hashlib.sha256(json.dumps(["language", values, state], sort_keys=True).encode()).hexdigest()[:12]


@torch.no_grad()
def examine(model: LanguageModel, corpus: LanguageCorpus, test: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a model does on rows of each length.

    Args:
        model: The trained model.
        corpus: The prepared corpus, with a test split.
        test: `contexts`, the lengths; `tokens`, at most so many are read at each; `needles`, rows with a string to
            find, and `needle`, options of `language.scoring.needle`.
    """
    found = {}
    for context in test["contexts"]:
        scores = evaluate(model, corpus, "test", context, max(1, test["tokens"] // context))
        rows = corpus.rows("test", context)
        needles = rows[: test["needles"]]
        found[str(context)] = {
            "loss": rounded(scores.loss),
            "perplexity": rounded(scores.perplexity),
            "by_position": {name: rounded(loss) for name, loss in scores.by_position.items()},
            "zeros": rounded(scores.zero_fraction),
            "rows": scores.rows,
            "needle": rounded(needle(model, needles, context, **test.get("needle", {}))),
            "needles": len(needles),
            "skipped": rounded(statistics.fmean(skipped_pairs(*read) for read in own_reads(model, _tokens(rows)))),
        }
    return found


def _tokens(rows: Tokens) -> Tensor:
    """Returns the first row as tokens (1, T)."""
    return torch.from_numpy(np.array(rows[:1, :-1], dtype=np.int64))
