"""The training loop.

Nothing but weights, optimiser moments, averages and a few counters is carried from one
update to the next: the data is a function of (seed, step), and dropout is seeded anew
for each batch from (seed, step, batch, rank). So a checkpoint needs no state of any
random generator, and training resumes from it bit for bit.

Losses are sums divided by the number of target tokens of the whole update: all batches,
all processes. The regulariser is a mean over the live attention rows of a batch (of all
processes), weighted by the batch's share of these tokens: how many rows of the *next*
accumulated batch will be live is not known when this one is differentiated.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from reluformer.telemetry import Telemetry
from reluformer.training.checkpoint import Checkpoint, LogInterval, TrainingState
from reluformer.training.objective import LossSums, diagnose
from reluformer.training.optimizer import MovingAverage, Optimizer, RuleWarmup, learning_rate
from reluformer.training.processes import Processes
from reluformer.training.progress import TrainingProgress, UpdateReport
from reluformer.training.run import RunDirectory
from reluformer.training.task import Task, TrainingBatch


class Trainer:
    """Runs updates from `state` on until there is a reason to stop."""

    def __init__(self, task: Task, accelerator: Accelerator, run: RunDirectory, progress: TrainingProgress) -> None:
        self.task = task
        self.config = config = task.recipe.training
        self.run = run
        self.progress = progress
        self.processes = Processes(accelerator)
        self.data = task.training_data(self.processes.rank, self.processes.world)
        self.validation = task.validation_data(self.processes.rank, self.processes.world)
        self.state = TrainingState()
        self.stop_requested = False
        torch.manual_seed(config.seed)
        self.objective = task.build_objective(task.build_model())
        self.optimizer = Optimizer(config, self.objective, accelerator)
        self.wrapped = self.optimizer.wrapped
        self._uncompiled = self.objective.forward if config.compile else self.objective
        self.model = self.objective.model
        self.rule_warmup = RuleWarmup(self.model, config.rule_warmup)
        self.average = None if config.ema_decay is None else MovingAverage(self.model, config.ema_decay)
        self.telemetry = Telemetry(self.model, every=config.telemetry_every, seed=config.seed)
        self.listeners: list[Callable[[str, int, Mapping[str, Any]], None]] = []
        self._started = time.monotonic()
        self._last_checkpoint = self._started
        self._saved_step: int | None = None

    # ------------------------------------------------------------------ the loop

    def train(self) -> str:
        """Trains until one of the limits is reached, and returns the reason to stop."""
        state = self.state
        self._started = self._last_checkpoint = time.monotonic()
        self._seconds_before = state.seconds
        reason = self._reason_to_stop()
        while reason is None:
            state.step += 1
            self._update(state.step)
            state.seconds = self._seconds()
            if state.step % self.config.log_every == 0:
                self._log_interval()
            self.rule_warmup.restore()  # validation and checkpoints use the rules themselves
            reason = self._reason_to_stop()
            if self.validation is not None and self._validation_is_due(reason):
                self._validate()
                reason = reason or self._out_of_patience()
            if reason is not None or self._overdue or state.step % self.config.checkpoint_every == 0:
                self.save_checkpoint()
        return reason

    def _reason_to_stop(self) -> str | None:
        """Returns the same on every process: clocks and signals differ between them, so they vote."""
        minutes = self.config.max_minutes
        late = minutes is not None and self.state.step > 0 and self._seconds() >= 60 * minutes
        overdue = time.monotonic() - self._last_checkpoint >= 60 * self.config.checkpoint_minutes
        interrupted, late, self._overdue = self.processes.any(self.stop_requested, late, overdue)
        if interrupted:
            return "interrupted"
        if self.state.step >= self.config.updates:
            return "updates"
        return self._out_of_patience() or ("max_minutes" if late else None)

    def _out_of_patience(self) -> str | None:
        over = self.config.patience is not None and self.state.stale >= self.config.patience
        return "patience" if over else None

    def _validation_is_due(self, reason: str | None) -> bool:
        """Returns whether to validate: regularly, and on the last weights of a run that has reached its end."""
        return self.state.step % self.config.validate_every == 0 or reason in ("updates", "max_minutes")

    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started

    # ------------------------------------------------------------------ one update

    def _update(self, step: int) -> None:
        self.wrapped.train()
        batches = [batch.to(self.processes.device) for batch in self.data.batches(step)]
        tokens = self.processes.sum([batch.target_tokens for batch in batches])
        total = sum(tokens)
        sums = []
        self.rule_warmup.ease(step)
        for i, batch in enumerate(batches):
            torch.manual_seed(_seed_of(self.config.seed, step, i, self.processes.rank))
            last = i == len(batches) - 1
            with nullcontext() if last else self.processes.accelerator.no_sync(self.wrapped):
                part = self._forward(step, batch, watched=i == 0)
                rows = self._rows(part)
                loss = part.smoothed * (self.processes.world / total)
                if rows is not None:
                    loss = loss + self._regularizer(part, rows) * (tokens[i] / total)
                self.processes.accelerator.backward(loss)
            sums.append(self._measured(part))
        if self.processes.is_main and step % self.telemetry.every == 0:
            self._log_telemetry()
        interval = LogInterval.from_sums(self.processes.sum(torch.stack(sums).sum(0).tolist()), total, batches)
        if not interval.finite:
            self._diverged(step, batches, "loss")
        norm = self.optimizer.step(learning_rate(self.config, step))
        if not math.isfinite(norm) and self.config.precision != "fp16":  # there the scaler skips such an update
            self._diverged(step, batches, "gradient")
        self.optimizer.clear()
        if self.average is not None:
            self.average.update(step)
        self.state.tokens += total
        self.state.interval = self.state.interval.with_update(interval, norm)
        self._show(interval)

    def _forward(self, step: int, batch: TrainingBatch, watched: bool) -> LossSums:
        watching = watched and self.processes.is_main and step % self.telemetry.every == 0
        if watching and self.config.compile:  # compiled code runs no hooks: look at a pass of its own
            with torch.no_grad(), self.telemetry.watch(step, batch.row_masks):
                self._uncompiled(*batch.inputs)
        watch = watching and not self.config.compile
        with self.telemetry.watch(step, batch.row_masks) if watch else nullcontext():
            sums: LossSums = self.wrapped(*batch.inputs)
        return sums

    def _log_telemetry(self) -> None:
        """Logs after the backward pass, so that gradients are included; those of fp16 are scaled and left out."""
        if self.config.precision != "fp16":
            self.telemetry.look_at_gradients()
        self._log("telemetry", reads={name: read.to_dict() for name, read in self.telemetry.latest.items()})

    def _rows(self, part: LossSums) -> float | None:
        """Returns the live attention rows of a batch on all processes."""
        return None if part.regularizer is None else self.processes.sum([float(part.regularizer.live)])[0]

    def _regularizer(self, part: LossSums, rows: float) -> Tensor:
        config = self.config.regularizer
        assert config is not None and part.regularizer is not None
        weighted = config.weighted(part.regularizer.normalization, part.regularizer.entropy)
        return weighted * (self.processes.world / max(rows, 1.0))

    @staticmethod
    def _measured(part: LossSums) -> Tensor:
        """Returns the sums as one vector, without gradient."""
        parts = [part.smoothed, part.plain, *(part.regularizer or ())]
        return torch.stack([value.detach().cpu().double() for value in parts])

    def _diverged(self, step: int, batches: list[TrainingBatch], what: str) -> None:
        """Stops before the weights are updated, saves them, and raises an error that says where it began."""

        def again() -> None:
            for i, batch in enumerate(batches):
                torch.manual_seed(_seed_of(self.config.seed, step, i, self.processes.rank))
                self._uncompiled(*batch.inputs)

        error = diagnose(self.model, again, self.config, step, what)
        self.optimizer.clear()
        self.state.step = step - 1
        self.save_checkpoint()
        raise error

    # ------------------------------------------------------------------ progress, log and validation

    def _show(self, latest: LogInterval) -> None:
        if not self.processes.is_main:
            return
        seconds = self._seconds()
        rate = self.state.step / seconds if seconds else math.inf
        left = (self.config.updates - self.state.step) / rate
        if self.config.max_minutes is not None:
            left = min(left, 60 * self.config.max_minutes - seconds)
        rows = latest.rows or _mean_rows(self.telemetry)
        speed = self.state.tokens / seconds if seconds else 0.0
        self.progress.update(
            UpdateReport(self.state.step, self.config.updates, latest.loss, speed, max(left, 0.0), rows)
        )

    def _log(self, event: str, **values: Any) -> None:
        if self.processes.is_main:
            self.run.log.append(event, self.state.step, **values)
            for listen in self.listeners:
                listen(event, self.state.step, values)

    def _log_interval(self) -> None:
        state, interval = self.state, self.state.interval
        self._log(
            "train",
            **interval.summary(self.config.regularizer),
            lr=learning_rate(self.config, state.step),
            epoch=state.step / self.data.updates_per_epoch,
            total_tokens=state.tokens,
            seconds=round(state.seconds, 3),
            tokens_per_second=round(interval.tokens / max(state.seconds - interval.since, 1e-9), 1),
        )
        state.interval = LogInterval(since=state.seconds)

    @torch.no_grad()
    def _validate(self) -> None:
        assert self.validation is not None
        began = time.monotonic()
        self.objective.eval()
        with self.average.in_place() if self.average else nullcontext():
            self.processes.regather(self.wrapped)
            sums = torch.zeros(2, dtype=torch.float64)
            for batch in self.validation:
                part = self.objective(*batch.to(self.processes.device).inputs)
                sums += torch.tensor([float(part.plain), float(batch.target_tokens)], dtype=torch.float64)
            plain, tokens = self.processes.sum(sums.tolist())
            loss = plain / tokens
            scores = self._scores()
            better = self.state.best_loss is None or loss < self.state.best_loss
            if better:
                self.state.best_loss, self.state.best_step, self.state.stale = loss, self.state.step, 0
                self._save_best()
            else:
                self.state.stale += 1
        self.processes.regather(self.wrapped)
        values = {"loss": loss, "perplexity": math.exp(min(loss, 700)), **scores}
        self._log("valid", **values, best=better, tokens=tokens, seconds=round(time.monotonic() - began, 3))
        shown = "".join(f"  {name} {value:.2f}" for name, value in values.items() if name != "loss")
        if self.processes.is_main:
            self.progress.message(f"update {self.state.step}: validation loss {loss:.4f}{shown}" + "  best" * better)

    def _scores(self) -> dict[str, float]:
        """Returns the scores of the task. Where the weights are sharded, a whole copy of the model is scored."""
        if self.task.evaluate is None:
            return {}
        model = self.model
        if self.processes.sharded(self.wrapped):
            weights = self.processes.whole(dict(self.model.named_parameters()))
            model = self.task.build_model().to(self.processes.device).eval()
            self.processes.fill(dict(model.named_parameters()), weights)
        return dict(self.task.evaluate(model)) if self.processes.is_main else {}

    # ------------------------------------------------------------------ checkpoints

    def save_checkpoint(self) -> None:
        """Saves everything after `state.step` updates; only once, so that a good checkpoint is never replaced."""
        if self._saved_step == self.state.step:
            return
        self._saved_step = self.state.step
        self._last_checkpoint = time.monotonic()
        tensors: dict[str, Mapping[str, Tensor]] = {
            "model": self.processes.whole(dict(self.model.named_parameters())),
            "optimizer": self.processes.whole(self.optimizer.tensors()),
        }
        if self.average is not None:
            names = [name for name, _ in self.model.named_parameters()]
            tensors["average"] = self.processes.whole(dict(zip(names, self.average.average, strict=True)))
        state = {"training": self.state.to_json(), "scaler": self.optimizer.scaler_state()}
        if self.processes.is_main:
            checkpoint = Checkpoint(self.state.step, tensors, state)
            self.run.log.flush()
            self.run.checkpoints.write(checkpoint, keep=self.config.keep_checkpoints)
        self.processes.wait()

    @torch.no_grad()
    def restore(self, checkpoint: Checkpoint) -> None:
        """Resumes from a checkpoint. Values are copied, so that memory is aligned as in the first run."""
        parameters = dict(self.model.named_parameters())
        self.processes.fill(parameters, checkpoint.tensors["model"])
        self.optimizer.restore(checkpoint.tensors["optimizer"], checkpoint.state["scaler"], self.processes)
        if self.average is not None:
            averages = dict(zip(parameters, self.average.average, strict=True))
            self.processes.fill(averages, checkpoint.tensors["average"])
        self.state = TrainingState.from_json(checkpoint.state["training"])
        self._saved_step = checkpoint.step

    def _save_best(self) -> None:
        weights = self.processes.whole(dict(self.model.named_parameters()))
        if self.processes.is_main:
            self.run.save_best(lambda directory: self.task.save_model(directory, weights), self.state.step)
        self.processes.wait()


def _seed_of(*numbers: int) -> int:
    """Returns a seed far from those of neighbouring steps, equal in every process and version."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _mean_rows(telemetry: Telemetry) -> dict[str, float]:
    """Returns the shares of dead rows and of zero weights in attention at the last telemetry."""
    reads = [read for name, read in telemetry.latest.items() if not name.endswith("ffn")]
    shares = {"dead": [r.dead for r in reads], "zero": [r.zero_fraction for r in reads]}
    flat = {name: [x for heads in values for x in heads if math.isfinite(x)] for name, values in shares.items()}
    return {name: sum(values) / len(values) for name, values in flat.items() if values}
