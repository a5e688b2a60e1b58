"""`fit`: a task and a directory in, a trained model out.

Started again after an interruption of any kind, it resumes from the last checkpoint. Whatever
can fail at the start is tried first, on the prepared data. Only then is an earlier run in the
directory deleted or resumed.
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

from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor

from reluformer import environment
from reluformer.errors import ConfigError, ReluformerError, StorageError
from reluformer.models import storage
from reluformer.training import progress as displays
from reluformer.training.checkpoint import Checkpoint, TrainingState
from reluformer.training.config import TrainingConfig, TrainingRecipe
from reluformer.training.loop import Trainer
from reluformer.training.objective import DivergedError
from reluformer.training.optimizer import mean_of
from reluformer.training.processes import Processes
from reluformer.training.progress import SilentProgress, TrainingProgress
from reluformer.training.run import RunDirectory
from reluformer.training.task import Task


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
    """Lowest validation loss, nats per token."""
    best_step: int
    tokens: float
    """Target tokens seen."""
    seconds: float
    tokens_per_second: float
    padding: float
    """Share of padding in the batches of an epoch."""
    parameters: int

    def to_json(self) -> dict[str, Any]:
        """Returns the result as plain data."""
        return asdict(self)


def fit(
    task: Task,
    directory: str | Path,
    *,
    init_from: str | Path | None = None,
    resume: bool = True,
    progress: TrainingProgress | None = None,
) -> TrainingResult:
    """Trains the model of a task in a run directory, or resumes the training found there.

    Ctrl-C ends the current update, saves a checkpoint, and returns a result with status "interrupted".

    Args:
        task: The model, its data and its loss.
        directory: The run directory; it is created if it does not exist.
        init_from: The directory of a saved model whose weights are the start.
        resume: Whether to resume a run found in `directory`; otherwise it is deleted.
        progress: The receiver of progress reports. Default: a live bar or lines on stderr.

    Returns:
        The result, which is also kept in the run directory.

    Raises:
        DivergedError: The loss or the gradient is not finite.
        ConfigError: The recipe does not fit the run in `directory` or the model of `init_from`.
        StorageError: The directory holds something else, or a file cannot be read or written.
    """
    run = RunDirectory(directory)
    initial = None if init_from is None else Path(init_from)
    accelerator = _accelerator(task.recipe.training)
    main = accelerator.is_main_process
    progress = (progress or displays.for_terminal()) if main else SilentProgress()
    try:
        with run.alone() if main else nullcontext():
            finished, resumes = _inspect_together(run, task.recipe, resume, initial, Processes(accelerator))
            if finished:
                return _finished(run, task.recipe, main)
            if main:
                task.prepare(progress.message)
            accelerator.wait_for_everyone()
            trainer = Trainer(task, accelerator, run, progress)
            if task.recipe.training.tensorboard and main:
                trainer.listeners.append(displays.tensorboard_listener(run.path / "tensorboard"))
            _start(trainer, initial, resumes)
            return _train(trainer)
    finally:
        progress.close()


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


# ---------------------------------------------------------------------- what the directory holds


def _inspect_together(
    run: RunDirectory, recipe: TrainingRecipe, resume: bool, initial: Path | None, processes: Processes
) -> list[bool]:
    """Returns what `_inspect` finds on the main process, to all; if that fails, no process waits for it."""
    found, refusal = (False, False), None
    try:
        if processes.is_main:
            found = _inspect(run, recipe, resume, initial)
    except ReluformerError as error:
        refusal = error
    *found_by_main, refused = processes.any(*found, refusal is not None)
    if refused:
        raise refusal or StorageError(f"{run.path}: the main process failed to start; its message says why")
    return found_by_main


def _inspect(run: RunDirectory, recipe: TrainingRecipe, resume: bool, initial: Path | None) -> tuple[bool, bool]:
    """Returns whether the directory holds the finished run, and else whether it holds one to resume.

    Nothing is changed yet.
    """
    if resume and _is_finished(run, recipe):
        return True, False
    if resume and _can_resume(run, recipe):
        return False, True
    run.check_free()
    if initial is not None:
        if initial.resolve().is_relative_to(run.path.resolve()):
            raise ConfigError(
                f"--init-from {initial}: lies in the directory of the new run, which deletes the earlier one there; "
                "choose another directory for the run"
            )
        storage.architecture(initial)  # raises an error that says what the directory is, if it is no model
    return False, False


def _is_finished(run: RunDirectory, recipe: TrainingRecipe) -> bool:
    """Returns whether there is nothing left to do: a finished run with the same section `training`."""
    status = run.status if run.exists else {}
    if status.get("status") != "finished" or "result" not in status:
        return False
    if run.recipe(type(recipe)).training != recipe.training:
        return False
    run.check_resumable(recipe)
    return True


def _can_resume(run: RunDirectory, recipe: TrainingRecipe) -> bool:
    """Returns whether the directory holds a run to resume; a run without any checkpoint starts again."""
    if not run.exists:
        return False
    diverged = run.status.get("status") == "diverged"
    if not run.checkpoints.steps() and not diverged:
        if run.has_model:
            raise StorageError(
                f"{run.path}: holds a finished model but no checkpoints to resume from; start a new run with "
                f"--init-from {run.path}, or start again here with --fresh, which deletes it"
            )
        return False
    run.check_resumable(recipe)
    if diverged:
        raise StorageError(
            f"{run.path}: this run diverged and would do so again: {run.status.get('message')}. Start the changed "
            "recipe in a new directory, or here with --fresh, which deletes this run"
        )
    return True


def _finished(run: RunDirectory, recipe: TrainingRecipe, main: bool) -> TrainingResult:
    """Returns the result of a finished run, whose recipe may have new decoding settings or file names.

    Its directory is the one that was opened, because a run may be copied or moved.
    """
    if main and run.recipe(type(recipe)) != recipe:
        run.set_recipe(recipe)
    return TrainingResult(**{**run.status["result"], "directory": str(run.path)})


# ---------------------------------------------------------------------- start


def _start(trainer: Trainer, initial: Path | None, resumes: bool) -> None:
    """Gives the trainer its first state, and then the directory to its run."""
    fingerprint = trainer.task.fingerprint()
    if resumes:
        for problem in trainer.run.log.problems():
            trainer.progress.message(f"warning: skipped a line of the log: {problem}")
        _check_fingerprint(trainer.run, fingerprint)
    checkpoint = _newest_checkpoint(trainer) if resumes else None
    if checkpoint is not None:
        trainer.restore(checkpoint)
        trainer.progress.message(f"resuming after update {checkpoint.step}")
    elif initial is not None:
        model = trainer.task.load_initial(initial)
        trainer.processes.fill(dict(trainer.model.named_parameters()), dict(model.named_parameters()))
        if trainer.average is not None:
            trainer.average.reset()
    trainer.processes.wait()
    if trainer.processes.is_main:
        if checkpoint is None:
            _begin(trainer, fingerprint)
        else:
            trainer.run.resume(trainer.task.recipe, checkpoint.step)
        trainer.run.add_environment(0 if checkpoint is None else checkpoint.step, environment.training_record())
    trainer.processes.wait()


def _check_fingerprint(run: RunDirectory, fingerprint: Mapping[str, Any]) -> None:
    """Refuses a corpus with another content; its files may have moved.

    A run of version 0.1 knows only its tokenizer and its numbers of tokens; then these are compared.
    """
    began = [event["corpus"] for event in run.log.events("start") if "corpus" in event]
    known = began[0] if began else {}
    changed = [key for key in known if known[key] != fingerprint.get(key)]
    if changed:
        differing = ", ".join(f"{key} {known[key]} -> {fingerprint.get(key)}" for key in changed)
        raise ConfigError(
            f"{run.path}: the corpus is not the one that this run began with ({differing}); give it back its files, or "
            "start again with --fresh, which deletes the run"
        )


def _newest_checkpoint(trainer: Trainer) -> Checkpoint:
    checkpoint, problems = trainer.run.checkpoints.newest(_check_state)
    for problem in problems:
        trainer.progress.message(f"skipped a checkpoint: {problem}")
    if checkpoint is None:
        raise StorageError(
            f"{trainer.run.path}: no checkpoint of this run can be read: {problems[0]}. Fix that, or start again with "
            "--fresh, which deletes the run"
        )
    return checkpoint


def _check_state(checkpoint: Checkpoint) -> None:
    """Refuses a state that is damaged or of another step, which version 0.1 has no checksum for."""
    missing = [name for name in ("model", "optimizer") if name not in checkpoint.tensors]
    if missing or "scaler" not in checkpoint.state:
        raise StorageError(f"step {checkpoint.step}: lacks {(*missing, 'the state of the scaler')[0]}")
    try:
        state = TrainingState.from_json(checkpoint.state["training"])
    except (KeyError, TypeError) as error:
        raise StorageError(f"step {checkpoint.step}: the state of training is damaged: {error}") from None
    if state.step != checkpoint.step:
        raise StorageError(f"step {checkpoint.step}: its state is that of step {state.step}")


def _begin(trainer: Trainer, fingerprint: Mapping[str, Any]) -> None:
    run, data = trainer.run, trainer.data
    run.begin(trainer.task.recipe)
    run.set_status("running")
    figures = {"padding": data.padding, "updates_per_epoch": data.updates_per_epoch}
    run.log.append("start", 0, **figures, corpus=fingerprint)
    trainer.progress.message(f"batches hold {data.padding:.1%} padding")


# ---------------------------------------------------------------------- train and save


def _train(trainer: Trainer) -> TrainingResult:
    run, main = trainer.run, trainer.processes.is_main
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
    weights = None if reason == "interrupted" else _save_model(trainer)
    result = _result(trainer, reason, weights)
    if main:
        run.log.append("end", result.step, status=result.status, reason=reason, weights=weights)
        run.set_status(result.status, reason=reason, step=result.step, result=result.to_json())
        if result.status == "interrupted":
            trainer.progress.message(
                f"interrupted after update {result.step}, everything is saved; the same command resumes from there"
            )
    trainer.processes.wait()
    return result


def _result(trainer: Trainer, reason: str, weights: str | None) -> TrainingResult:
    state = trainer.state
    return TrainingResult(
        directory=str(trainer.run.path),
        status="interrupted" if weights is None else "finished",
        reason=reason,
        step=state.step,
        weights=weights,
        best_loss=state.best_loss,
        best_step=state.best_step,
        tokens=state.tokens,
        seconds=round(state.seconds, 3),
        tokens_per_second=round(state.tokens / max(state.seconds, 1e-9), 1),
        padding=trainer.data.padding,
        parameters=sum(p.numel() for p in trainer.model.parameters()),
    )


def _save_model(trainer: Trainer) -> str:
    """Saves the final weights in the run directory, and returns what they are."""
    config, run, kind = trainer.config, trainer.run, "last"
    with trainer.average.in_place() if trainer.average is not None else nullcontext():
        weights: Mapping[str, Tensor] = trainer.processes.whole(dict(trainer.model.named_parameters()))
    if trainer.average is not None:
        kind = "ema"
    if config.average_last:
        steps = run.checkpoints.steps()[-config.average_last :]
        weights, kind = (
            mean_of(run.checkpoints.read(step).tensors["model"] for step in steps),
            f"average of {len(steps)}",
        )
    elif trainer.state.best_step and run.best_step == trainer.state.best_step:
        best = trainer.task.build_model()
        storage.load_weights(run.best, best)
        weights, kind = {name: weight.detach() for name, weight in best.named_parameters()}, "best"
    if trainer.processes.is_main:
        trainer.task.save_model(run.path, weights)
    trainer.processes.wait()
    return kind


@contextmanager
def _graceful_signals(trainer: Trainer) -> Iterator[None]:
    """Lets the first Ctrl-C or SIGTERM end training after the update; the second one ends it at once."""
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
