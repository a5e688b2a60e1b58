"""An experiment is a file: a claim, a grid of runs, what is measured, how it is judged and drawn.

experiments/NAME.yaml is one experiment; settings/NAME.yaml is a corpus, a model and a budget that
several experiments share, so that runs which two of them ask for are the same run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import product
from typing import Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from reluformer.config import Config
from reluformer.errors import ConfigError, UnknownNameError, nearest
from reluformer.study import measures

Scale = Literal["quick", "small", "paper"]
SCALES: tuple[Scale, ...] = ("quick", "small", "paper")
Kind = Literal["training", "recall", "reads", "speed"]
Changes = dict[str, Any]
"""Dotted keys of a setting and their values, as in {"model.ffn": "softmax"}."""


class Claim(Config):
    """What the paper says, and the figures it gives."""

    says: str
    paper: str


class Axis(Config):
    """One direction of the grid: labels, and what each of them changes in the setting."""

    choices: dict[str, Changes]
    key: str | None = None
    """Where all choices are values of one key; another value can then be added by name."""

    @model_validator(mode="before")
    @classmethod
    def _from_values(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and "values" in given:
            key = given.get("key")
            return {"choices": {str(value): {key: value} for value in given["values"]}, "key": key}
        return given


class After(Config):
    """The training whose model a training starts from: another setting, changed along some axes of the grid."""

    setting: str
    axes: tuple[str, ...] = ()


class Size(Config):
    """A part of an experiment at one scale."""

    setting: str
    set: Changes = Field(default_factory=dict)
    """Applied to the setting, before the grid's."""
    grid: dict[str, list[str]] = Field(default_factory=dict)
    """The labels of an axis that are run at this scale; an axis that is not named runs whole."""
    after: After | None = None


class Part(Config):
    """Runs of one kind over a grid."""

    kind: Kind
    title: str = ""
    brief: str = ""
    """A word or two that stand for the title in a sentence."""
    grid: dict[str, Axis] = Field(default_factory=dict)
    scales: dict[Scale, Size]
    sweep: bool = False
    """Run only when sweeps are asked for: no verdict rests on it."""

    def cells(self, scale: Scale) -> Iterator[tuple[dict[str, str], Changes]]:
        """Every combination of labels, and what it changes."""
        chosen = self.scales[scale].grid
        axes = []
        for name, axis in self.grid.items():
            labels = chosen.get(name, list(axis.choices))
            for label in labels:
                if label not in axis.choices:
                    raise ConfigError(f"axis '{name}' has no choice '{label}'; {nearest(label, axis.choices)}")
            axes.append([(name, label) for label in labels])
        for combination in product(*axes):
            changes: Changes = {}
            for name, label in combination:
                changes.update(self.grid[name].choices[label])
            yield dict(combination), changes


def _check_metric(look_up: Callable[[str], object], metric: str) -> None:
    try:
        look_up(metric)
    except UnknownNameError as error:
        raise ValueError(str(error)) from None


class Condition(Config):
    """One comparison; see `verdicts` for what the tests mean."""

    part: str
    test: Literal["better", "not_worse", "equivalent", "worse", "above", "below"]
    metric: str
    a: dict[str, str]
    """The runs that the condition is about, by their labels; over axes that are not named it must hold everywhere."""
    b: dict[str, str] = Field(default_factory=dict)
    """What they are compared with, at the same place on the axes that are not named."""
    by: float | None = None
    """How much more than nothing the difference has to be, in the unit of the metric's margin."""
    limit: float | None = None
    """For `above` and `below`."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        _check_metric(measures.measure, self.metric)
        if (self.limit is not None) != (self.test in ("above", "below")):
            raise ValueError(f"test '{self.test}' {'takes no' if self.limit is not None else 'needs a'} limit")
        return self


class Judgement(Config):
    """How the verdict on a claim is decided."""

    claim: str
    scales: tuple[Scale, ...] = SCALES
    conditions: list[Condition]
    """The claim is reproduced if all hold."""
    requires: list[Condition] = Field(default_factory=list)
    """Otherwise nothing can be said."""


class Figure(Config):
    """A picture or table of the report."""

    name: str
    title: str
    caption: str = ""
    part: str
    kind: Literal["points", "lines", "series", "reads", "map", "table"]
    metric: str | list[str]
    x: str | None = None
    """The axis that goes along the bottom; its labels are numbers."""
    log: Literal["", "x", "y", "xy"] = ""

    @model_validator(mode="after")
    def _draws_what_is_known(self) -> Self:
        for metric in [self.metric] if isinstance(self.metric, str) else self.metric:
            if self.kind in ("points", "lines", "series"):
                _check_metric(measures.series if self.kind == "series" else measures.measure, metric)
        if (self.kind == "lines") != (self.x is not None):
            raise ValueError(f"figure '{self.name}': x is the axis along the bottom of `lines`, and of nothing else")
        return self


class Experiment(Config):
    """One file of experiments/."""

    name: str
    title: str
    question: str
    """The hypothesis, in one or two sentences."""
    claims: dict[str, Claim]
    parts: dict[str, Part]
    verdicts: list[Judgement]
    figures: list[Figure] = Field(default_factory=list)
    scale_note: str
    """What the scale of our runs means for the claim."""
    order: int = 100
    """Experiments run and are reported in this order."""

    @model_validator(mode="after")
    def _refers_to_itself(self) -> Self:
        for claim in self.claims:
            if not re.fullmatch(r"[A-Z]\d+", claim):
                raise ValueError(f"claim '{claim}': a letter and a number are expected, as in C3")
        for judgement in self.verdicts:
            if judgement.claim not in self.claims:
                raise ValueError(f"a verdict names claim '{judgement.claim}', valid: {', '.join(self.claims)}")
            for condition in (*judgement.conditions, *judgement.requires):
                self._check_place(condition.part, (condition.a, condition.b))
        for figure in self.figures:
            self._check_place(figure.part, ())
            if figure.x is not None and figure.x not in self.parts[figure.part].grid:
                raise ValueError(f"figure '{figure.name}': there is no axis '{figure.x}' in part '{figure.part}'")
        return self

    def _check_place(self, part: str, places: tuple[dict[str, str], ...]) -> None:
        if part not in self.parts:
            raise ValueError(f"there is no part '{part}'; {nearest(part, self.parts)}")
        grid = self.parts[part].grid
        for place in places:
            for axis, label in place.items():
                if axis not in grid:
                    raise ValueError(f"part '{part}' has no axis '{axis}'; {nearest(axis, grid)}")
                if label not in grid[axis].choices:
                    raise ValueError(f"axis '{axis}' has no choice '{label}'; {nearest(label, grid[axis].choices)}")


def names() -> tuple[str, ...]:
    """Every experiment, in the order in which they run."""
    found = [load(name) for name in _files("experiments")]
    return tuple(e.name for e in sorted(found, key=lambda e: (e.order, e.name)))


def load(name: str) -> Experiment:
    """The experiment called `name`."""
    where = f"experiments/{name}.yaml"
    found = Experiment.parse(_read("experiments", name), where=where)
    if found.name != name:
        raise ConfigError(f"{where}: its name is '{found.name}'; call file and experiment alike")
    return found


def setting(name: str) -> dict[str, Any]:
    """The setting called `name`, as plain data."""
    return _read("settings", name)


def check_scale(scale: str) -> Scale:
    """`scale` if there is such a one."""
    for known in SCALES:
        if scale == known:
            return known
    raise UnknownNameError(f"unknown scale '{scale}'; {nearest(scale, SCALES)}")


def _folder(kind: str) -> Traversable:
    return resources.files("reluformer.study") / kind


def _files(kind: str) -> list[str]:
    return [path.name.removesuffix(".yaml") for path in _folder(kind).iterdir() if path.name.endswith(".yaml")]


def _read(kind: str, name: str) -> dict[str, Any]:
    path = _folder(kind) / f"{name}.yaml"
    if not path.is_file():
        raise UnknownNameError(f"unknown {kind.removesuffix('s')} '{name}'; {nearest(name, _files(kind))}")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ConfigError(f"{kind}/{name}.yaml: expected keys and values, got {type(content).__name__}")
    return content
