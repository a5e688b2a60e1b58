"""How a training starts: with what it finds in its directory, with given weights, or with random ones.

Whatever can fail is tried first, on the prepared corpus, which is made anew where it must be. Only then is an earlier
run here deleted, or gone on with.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reluformer.errors import ConfigError, StorageError
from reluformer.models import storage
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.training.checkpoint import Checkpoint
from reluformer.training.loop import Trainer
from reluformer.training.run import RunDirectory
from reluformer.translation.prepared import PreparedCorpus
from reluformer.translation.recipe import Recipe
from reluformer.translation.tokenizer import Tokenizer


def is_finished(run: RunDirectory, recipe: Recipe) -> bool:
    """Whether there is nothing left to do: a finished run with these very limits."""
    status = run.status if run.exists else {}
    if status.get("status") != "finished" or "result" not in status or run.recipe().training != recipe.training:
        return False
    run.check_continues(recipe)
    return True


def goes_on(run: RunDirectory, recipe: Recipe) -> bool:
    """Whether the directory holds a training to go on with; one that came to no checkpoint is begun anew."""
    if not run.exists:
        return False
    diverged = run.status.get("status") == "diverged"
    if not run.checkpoints.steps() and not diverged:
        if (run.path / storage.CONFIG).is_file():
            raise StorageError(
                f"{run.path}: holds a finished model but no checkpoints to go on from; start a new run with "
                f"--init-from {run.path}, or begin anew here with --fresh, which deletes it"
            )
        return False
    run.check_continues(recipe)
    if diverged:
        raise StorageError(
            f"{run.path}: this run diverged and would do so again: {run.status.get('message')}. Start the changed "
            "recipe in a new directory, or here without resuming"
        )
    return True


def check_beginning(run: RunDirectory, init_from: Path | None) -> None:
    """Refuse a new run that could not begin here, or would lose the weights that it is to begin with."""
    run.check_free()
    if init_from is None:
        return
    if init_from.resolve().is_relative_to(run.path.resolve()):
        raise ConfigError(
            f"--init-from {init_from}: lies in the directory of the new run, which deletes the earlier one there; "
            "choose another directory for the run"
        )
    storage.load_config(init_from)  # says what the directory is, if it is no model


def start(trainer: Trainer, recipe: Recipe, init_from: Path | None, corpus: PreparedCorpus, going_on: bool) -> None:
    """Give the trainer its state, and then the directory to its run."""
    held = {"tokenizer": corpus.tokenizer.fingerprint[:12]} | {
        f"{split}_tokens": [figures.source_tokens, figures.target_tokens]
        for split, figures in corpus.summary.splits.items()
        if split != "test"
    }
    if going_on:
        _check_corpus(trainer.run, held)
    checkpoint = _newest_checkpoint(trainer) if going_on else None
    if checkpoint is not None:
        trainer.restore(checkpoint)
        trainer.progress.message(f"going on after update {checkpoint.step}")
    elif init_from is not None:
        _load_initial(trainer, init_from, corpus.tokenizer)
    trainer.processes.wait()
    if trainer.processes.is_main:
        if checkpoint is None:
            _begin(trainer, recipe, held)
        else:
            _go_on(trainer, recipe)
    trainer.processes.wait()


def _check_corpus(run: RunDirectory, held: Mapping[str, Any]) -> None:
    """Files may move between two parts of a training, but what they hold must stay."""
    began = [event["corpus"] for event in run.log.events("start") if "corpus" in event]
    if began and began[0] != held:
        differing = ", ".join(f"{key} {began[0].get(key)} -> {value}" for key, value in held.items())
        raise ConfigError(
            f"{run.path}: the corpus is not the one that this run began with ({differing}); give it back its files, or "
            "begin anew with --fresh, which deletes the run"
        )


def _newest_checkpoint(trainer: Trainer) -> Checkpoint:
    checkpoint, problems = trainer.run.checkpoints.newest()
    for problem in problems:
        trainer.progress.message(f"skipped a checkpoint: {problem}")
    if checkpoint is None:
        raise StorageError(
            f"{trainer.run.path}: no checkpoint of this run can be read: {problems[0]}. Mend that, or begin anew with "
            "--fresh, which deletes the run"
        )
    return checkpoint


def _load_initial(trainer: Trainer, directory: Path, tokenizer: Tokenizer) -> None:
    if Tokenizer.load(directory).fingerprint != tokenizer.fingerprint:
        raise ConfigError(
            f"--init-from {directory}: that model has another tokenizer than this corpus was prepared with; "
            f"set data.tokenizer.path: {directory}"
        )
    initial = ReLUFormer(trainer.model.config)
    try:
        storage.load_weights(directory, initial)
    except StorageError as error:
        raise ConfigError(f"--init-from: {error}; give the section 'model' the sizes of that model") from None
    trainer.processes.fill(dict(trainer.model.named_parameters()), dict(initial.named_parameters()))
    if trainer.average is not None:
        trainer.average.reset()


def _begin(trainer: Trainer, recipe: Recipe, corpus: Mapping[str, Any]) -> None:
    run, feed = trainer.run, trainer.feed
    run.begin(recipe)
    run.set_status("running")
    figures = {"padding": feed.plan.padding, "updates_per_epoch": feed.updates_per_epoch}
    run.log.append("start", 0, **figures, corpus=corpus)
    trainer.progress.message(f"batches hold {feed.plan.padding:.1%} padding")


def _go_on(trainer: Trainer, recipe: Recipe) -> None:
    run, step = trainer.run, trainer.state.step
    run.set_status("running")  # first: a finished run has its model
    run.withdraw_model()
    run.set_recipe(recipe)
    run.checkpoints.drop_after(step)
    run.log.cut_after(step)
