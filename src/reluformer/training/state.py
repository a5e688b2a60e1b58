"""The counters that training carries from one update to the next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from reluformer.regularizers import RegularizerConfig
from reluformer.training.task import Batch


@dataclass(frozen=True)
class LogInterval:
    """Sums over the updates since the last line of the log, over all processes."""

    smoothed: float = 0.0
    plain: float = 0.0
    normalization: float = 0.0
    entropy: float = 0.0
    live: float = 0.0
    dead: float = 0.0
    active: float = 0.0
    tokens: float = 0.0
    cells: int = 0
    """Positions in the batches of this process; `filled` of them hold tokens."""
    filled: int = 0
    updates: int = 0
    gradient_norm: float = 0.0
    """Sum over updates."""
    since: float = 0.0
    """Seconds of training when the interval began."""

    @classmethod
    def from_sums(cls, sums: Sequence[float], tokens: float, batches: Sequence[Batch]) -> LogInterval:
        """Returns the interval of one update, from its sums in the order of the fields."""
        smoothed, plain, *rows = sums
        normalization, entropy, live, dead, active = rows or [0.0] * 5
        cells = sum(batch.cells for batch in batches)
        padded = sum(batch.padding for batch in batches)
        return cls(
            smoothed, plain, normalization, entropy, live, dead, active, tokens, cells=cells, filled=cells - padded
        )

    @property
    def loss(self) -> float:
        """Smoothed cross entropy per token."""
        return self.smoothed / self.tokens

    @property
    def finite(self) -> bool:
        """Whether the loss and both terms of the regulariser are finite."""
        return math.isfinite(self.smoothed) and math.isfinite(self.normalization) and math.isfinite(self.entropy)

    @property
    def rows(self) -> dict[str, float]:
        """Shares of dead rows and of rows beyond the entropy margin; empty without a regulariser."""
        total = self.live + self.dead
        return {"dead": self.dead / total, "diffuse": self.active / max(self.live, 1)} if total else {}

    def with_update(self, update: LogInterval, gradient_norm: float) -> LogInterval:
        """Returns this interval with one more update."""
        values = asdict(self)
        for name, value in asdict(update).items():
            values[name] += value
        return LogInterval(
            **{
                **values,
                "updates": self.updates + 1,
                "gradient_norm": self.gradient_norm + (gradient_norm if math.isfinite(gradient_norm) else 0.0),
                "since": self.since,
            }
        )

    def summary(self, regularizer: RegularizerConfig | None) -> dict[str, Any]:
        """Returns the means, as they are logged."""
        values: dict[str, Any] = {
            "loss": self.loss,
            "nll": self.plain / self.tokens,
            "grad_norm": self.gradient_norm / max(self.updates, 1),
            "tokens": int(self.tokens),
            "padding": 1 - self.filled / self.cells if self.cells else 0.0,
        }
        if regularizer is not None:
            live = max(self.live, 1.0)
            means = {"normalization": self.normalization / live, "entropy": self.entropy / live}
            values["regularizer"] = {"loss": regularizer.weighted(**means), **means, **self.rows}
        return values


@dataclass
class TrainingState:
    """The state of training after `step` updates."""

    step: int = 0
    tokens: float = 0.0
    """Target tokens seen."""
    seconds: float = 0.0
    """Seconds of training, resumed parts added up."""
    best_loss: float | None = None
    """Lowest validation loss; None before the first."""
    best_step: int = 0
    stale: int = 0
    """Validations since the best one."""
    interval: LogInterval = field(default_factory=LogInterval)

    def to_json(self) -> dict[str, Any]:
        """Returns the state as plain data; floats survive JSON exactly."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainingState:
        """Returns the state that `to_json` wrote."""
        return cls(**{**values, "interval": LogInterval(**values["interval"])})
