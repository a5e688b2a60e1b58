"""The learning rate as a function of the update."""

from __future__ import annotations

import math

from reluformer.training.config import TrainingConfig


def learning_rate(config: TrainingConfig, update: int) -> float:
    """The rate of update 1, 2, ...: linear up to `warmup`, then falling from the highest.

    inverse_sqrt falls as 1 / sqrt(update), cosine to 0 at the update after the last.
    """
    if update <= config.warmup:
        return config.lr * update / config.warmup
    if config.schedule == "inverse_sqrt":
        return config.lr * math.sqrt(max(config.warmup, 1) / update)
    if config.schedule == "cosine":
        done = (update - config.warmup) / (config.updates + 1 - config.warmup)
        return config.lr * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    return config.lr
