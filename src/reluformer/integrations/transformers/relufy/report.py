"""What became of a relufied model, stage by stage, as plain data and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from reluformer.integrations.transformers.relufy.distillation import PhaseLog


@dataclass(frozen=True)
class Stage:
    """The student at one moment, on texts that were held out."""

    agreement: dict[str, float]
    """With the teacher: cosine of the mean state of a text; for decoders also perplexity and the like."""
    zero_share: dict[str, float]
    """Weights of visible slots that are exactly zero, by attention."""
    measures: dict[str, float] = field(default_factory=dict)
    """What the caller's own `measure` said."""

    @property
    def mean_zero_share(self) -> float:
        """Over all attentions."""
        return sum(self.zero_share.values()) / max(1, len(self.zero_share))


@dataclass(frozen=True)
class Report:
    """What `relufy` did and how near the student came."""

    rule: str | dict[str, Any]
    model: str
    attentions: int
    texts: dict[str, int]
    """Used for calibration, used for distillation, held out."""
    stages: dict[str, Stage]
    """`swapped`, `calibrated` and `distilled`, in this order."""
    read_error: dict[str, float]
    """Squared error of the calibrated reads over their squares, by attention, mean over heads."""
    distillation: dict[str, PhaseLog]
    seconds: dict[str, float]
    """Of calibration and distillation, by the clock; measuring is not counted."""
    cpu_seconds: dict[str, float]
    """The same as the processor counts it, all threads together: what a shared machine gave."""
    settings: dict[str, Any]
    teacher: dict[str, float] = field(default_factory=dict)
    """What the caller's own `measure` said of the teacher."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        content = asdict(self)
        for name, stage in self.stages.items():
            content["stages"][name]["mean_zero_share"] = stage.mean_zero_share
        return content

    def __str__(self) -> str:
        return "\n".join([*self._head(), "", *self._table(), "", *self._layers()])

    def _head(self) -> list[str]:
        times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.seconds.items())
        texts = ", ".join(f"{count} {name}" for name, count in self.texts.items())
        return [f"{self.model}: {self.attentions} attentions, rule {self.rule}", f"texts: {texts}; time: {times}"]

    def _table(self) -> list[str]:
        columns: dict[str, Mapping[str, float]] = {"teacher": self.teacher} if self.teacher else {}
        for name, stage in self.stages.items():
            columns[name] = {**stage.agreement, "zeros": stage.mean_zero_share, **stage.measures}
        rows = dict.fromkeys(row for column in columns.values() for row in column)
        width = max(map(len, rows))
        lines = [" " * width + "".join(f"{name:>12}" for name in columns)]
        for row in rows:
            cells = (f"{column[row]:12.4f}" if row in column else f"{'-':>12}" for column in columns.values())
            lines.append(f"{row:<{width}}" + "".join(cells))
        return lines

    def _layers(self) -> list[str]:
        last = list(self.stages.values())[-1]
        width = max(map(len, self.read_error))
        lines = [f"{'attention':<{width}}  read error  zeros at the end"]
        for name, error in self.read_error.items():
            lines.append(f"{name:<{width}}  {error:10.4f}  {last.zero_share[name]:15.3f}")
        return lines
