"""`train`: from a recipe and a directory to a trained model.

    result = train(recipe, "runs/demo")

Started again after an interruption of any kind, it goes on where the last checkpoint stands.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from reluformer.errors import ArgumentError, ConfigError, ReluformerError, StorageError
from reluformer.models import storage
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.training import progress as shown
from reluformer.training.averaging import mean_of
from reluformer.training.config import TrainingConfig
from reluformer.training.feed import Feed, ValidationFeed
from reluformer.training.loop import DivergedError, Evaluate, Trainer
from reluformer.training.objective import Objective
from reluformer.training.processes import Processes
from reluformer.training.progress import SilentProgress, TrainingProgress
from reluformer.training.run import RunDirectory
from reluformer.training.start import check_beginning, goes_on, is_finished, start
from reluformer.training.tensorboard import tensorboard_listener
from reluformer.translation.prepare import prepare
from reluformer.translation.prepared import PreparedCorpus
from reluformer.translation.recipe import Recipe
from reluformer.translation.tokenizer import Tokenizer


@dataclass(frozen=True)
class TrainingResult:
    """How a training ended."""

    directory: str
    status: Literal["finished", "interrupted"]
    reason: str
    """Why it stopped: updates, max_minutes, patience or interrupted."""
    step: int
    weights: str | None
    """What the saved model is: best, last, ema, or the average of some checkpoints. None when interrupted."""
    best_loss: float | None
    """Lowest validation loss, nats a token."""
    best_step: int
    tokens: float
    """Target tokens seen."""
    seconds: float
    tokens_per_second: float
    padding: float
    """Share of padding in the batches of an epoch."""
    parameters: int

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def train(
    recipe: Recipe,
    directory: str | Path,
    *,
    init_from: str | Path | None = None,
    resume: bool = True,
    progress: TrainingProgress | None = None,
    evaluate: Evaluate | None = None,
    prepared: str | Path | None = None,
) -> TrainingResult:
    """Train the model of `recipe` in `directory`, or go on with the training found there.

    init_from: a saved model to start from, with the same tokenizer. evaluate: called at
    each validation. prepared: where the prepared corpus is or goes, `directory`/data unless
    given. Ctrl-C ends the update, saves, and returns a result with status "interrupted";
    a loss that is not finite raises `DivergedError`.
    """
    if recipe.training.validate_bleu and evaluate is None:
        raise ArgumentError(
            f"training.validate_bleu={recipe.training.validate_bleu}, but train() was given no function to translate "
            "and score with; pass evaluate=, or set validate_bleu to 0"
        )
    recipe = recipe.replace(data=recipe.data.resolved())
    run = RunDirectory(directory)
    data = run.path / "data" if prepared is None else Path(prepared)
    if data.resolve() == run.path.resolve():
        raise ArgumentError(f"--prepared {data}: is the directory of the run; leave it out, or name another")
    initial = None if init_from is None else Path(init_from)
    accelerator = _accelerator(recipe.training)
    main = accelerator.is_main_process
    progress = (progress or shown.for_terminal()) if main else SilentProgress()
    try:
        with run.alone() if main else nullcontext():
            finished, going_on = _look_together(run, recipe, resume, initial, Processes(accelerator))
            if finished:
                return _finished(run, recipe, main)
            trainer, corpus = _trainer(recipe, run, accelerator, progress, evaluate, data)
            start(trainer, recipe, initial, corpus, going_on)
            return _run(trainer, run, corpus.tokenizer)
    finally:
        progress.close()


def _look_together(
    run: RunDirectory, recipe: Recipe, resume: bool, initial: Path | None, processes: Processes
) -> list[bool]:
    """What the first process finds in the directory, for all; if it refuses to start, nobody waits for it."""
    found, refusal = (False, False), None
    try:
        if processes.is_main:
            found = _look(run, recipe, resume, initial)
    except ReluformerError as error:
        refusal = error
    *found_by_first, refused = processes.any(*found, refusal is not None)
    if refused:
        raise refusal or StorageError(f"{run.path}: the first process refused to start, and says why")
    return found_by_first


def _look(run: RunDirectory, recipe: Recipe, resume: bool, initial: Path | None) -> tuple[bool, bool]:
    """Whether the directory holds the finished run, and else whether one to go on with; nothing is changed yet."""
    if resume and is_finished(run, recipe):
        return True, False
    if resume and goes_on(run, recipe):
        return False, True
    check_beginning(run, initial)
    return False, False


def _finished(run: RunDirectory, recipe: Recipe, main: bool) -> TrainingResult:
    """The result that is there; the recipe may decode otherwise, or name other places, and is kept for what follows."""
    if main and run.recipe() != recipe:
        run.set_recipe(recipe)
    return TrainingResult(**run.status["result"])


def _accelerator(config: TrainingConfig) -> Accelerator:
    AcceleratorState._reset_state(True)  # else an earlier training in this process decides the precision
    precision = "no" if config.precision == "fp32" else config.precision
    try:
        accelerator = Accelerator(cpu=config.device == "cpu", mixed_precision=precision)
    except ValueError as error:
        raise ConfigError(f"training.precision={config.precision}: {error}") from None
    if config.precision == "fp16" and accelerator.device.type == "cpu":
        raise ConfigError("training.precision=fp16 needs a GPU; on a CPU use bf16 or fp32")
    return accelerator


def _trainer(
    recipe: Recipe,
    run: RunDirectory,
    accelerator: Accelerator,
    progress: TrainingProgress,
    evaluate: Evaluate | None,
    data: Path,
) -> tuple[Trainer, PreparedCorpus]:
    config = recipe.training
    if accelerator.is_main_process:
        progress.message(f"preparing the corpus in {data}, unless it is there already")
        prepare(recipe.data, data)
    accelerator.wait_for_everyone()
    corpus = PreparedCorpus(data)
    rank, world = accelerator.process_index, accelerator.num_processes
    feed = Feed(corpus.store("train"), config, rank, world)
    validation = None
    if recipe.data.valid is not None:
        validation = ValidationFeed(corpus.store("valid"), config.tokens_per_batch, rank, world)
    torch.manual_seed(config.seed)
    model = ReLUFormer(recipe.model_config_for(corpus.tokenizer.vocab_size))
    objective = Objective(model, config.label_smoothing, config.regularizer)
    trainer = Trainer(config, objective, accelerator, feed, validation, run, progress, evaluate)
    if config.tensorboard and accelerator.is_main_process:
        trainer.listeners.append(tensorboard_listener(run.path / "tensorboard"))
    return trainer, corpus


def _run(trainer: Trainer, run: RunDirectory, tokenizer: Tokenizer) -> TrainingResult:
    main = trainer.processes.is_main
    try:
        with _graceful_signals(trainer):
            reason = trainer.train()
    except DivergedError as error:
        if main:
            run.log.append("end", trainer.state.step, status="diverged", layer=error.layer, rule=error.rule)
            run.set_status("diverged", message=str(error), step=error.step, layer=error.layer, rule=error.rule)
        raise
    except (ReluformerError, KeyboardInterrupt) as error:
        if main:
            run.set_status("interrupted", message=str(error) or type(error).__name__, step=trainer.state.step)
        raise
    weights = None if reason == "interrupted" else _save_model(trainer, run, tokenizer)
    result = _result(trainer, run, reason, weights)
    if main:
        run.log.append("end", result.step, status=result.status, reason=reason, weights=weights)
        run.set_status(result.status, reason=reason, step=result.step, result=result.to_json())
        if result.status == "interrupted":
            trainer.progress.message(
                f"interrupted after update {result.step}, everything is saved; the same command goes on from there"
            )
    trainer.processes.wait()
    return result


def _result(trainer: Trainer, run: RunDirectory, reason: str, weights: str | None) -> TrainingResult:
    state = trainer.state
    return TrainingResult(
        directory=str(run.path),
        status="interrupted" if weights is None else "finished",
        reason=reason,
        step=state.step,
        weights=weights,
        best_loss=state.best_loss,
        best_step=state.best_step,
        tokens=state.tokens,
        seconds=round(state.seconds, 3),
        tokens_per_second=round(state.tokens / max(state.seconds, 1e-9), 1),
        padding=trainer.feed.plan.padding,
        parameters=sum(p.numel() for p in trainer.model.parameters()),
    )


def _save_model(trainer: Trainer, run: RunDirectory, tokenizer: Tokenizer) -> str:
    """The final weights into the run's directory, the configuration last; what they are."""
    config, kind = trainer.config, "last"
    with trainer.average.in_place() if trainer.average is not None else nullcontext():
        weights: Mapping[str, torch.Tensor] = trainer.processes.whole(dict(trainer.model.named_parameters()))
    if trainer.average is not None:
        kind = "ema"
    if config.average_last:
        steps = run.checkpoints.steps()[-config.average_last :]
        weights, kind = (
            mean_of(run.checkpoints.read(step).tensors["model"] for step in steps),
            f"average of {len(steps)}",
        )
    elif trainer.state.best_step and run.best_step == trainer.state.best_step:
        best = ReLUFormer.load(run.best)
        weights, kind = {name: weight.detach() for name, weight in best.named_parameters()}, "best"
    if trainer.processes.is_main:
        tokenizer.save(run.path)
        storage.save(run.path, trainer.model.config, weights, tokenizer.fingerprint)
    trainer.processes.wait()
    return kind


@contextmanager
def _graceful_signals(trainer: Trainer) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks for the end of the update; the second one ends at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:
        trainer.stop_requested = True
        trainer.progress.message("stopping after this update; once more to stop at once, without saving")
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
