"""Experiments, each declared in a file: claims, a grid of runs, the conditions of the verdicts and the figures.

experiments/NAME.yaml is one experiment. settings/NAME.yaml is a corpus, a model and a budget that
several experiments share, so that two experiments can ask for the same run.
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
Kind = Literal["training", "language", "recall", "reads", "interval", "regions", "images", "speed"]
Changes = dict[str, Any]
"""Dotted keys of a setting and their new values, as in {"model.ffn": "softmax"}."""


class Claim(Config):
    """A claim of the paper and the figures that it gives for it."""

    says: str
    paper: str


class Axis(Config):
    """One axis of the grid: its labels, and the keys of the setting that each of them changes."""

    choices: dict[str, Changes]
    key: str | None = None
    """The key if all choices are values of a single one; a value can then be added by name."""

    @model_validator(mode="before")
    @classmethod
    def _from_values(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and "values" in given:
            key = given.get("key")
            return {"choices": {str(value): {key: value} for value in given["values"]}, "key": key}
        return given


class After(Config):
    """The training that a training starts from: another setting, changed along some axes of the grid."""

    setting: str
    axes: tuple[str, ...] = ()


class Size(Config):
    """The size of a part at one scale."""

    setting: str
    set: Changes = Field(default_factory=dict)
    """Changes to the setting; those of the grid come after them."""
    grid: dict[str, list[str]] = Field(default_factory=dict)
    """The labels of an axis that run at this scale; all labels of an axis that is not named run."""
    after: After | None = None
    seeds: int | None = Field(default=None, ge=1)
    """The number of seeds, unless the user gives one; unset means that of the scale."""


class Part(Config):
    """A part of an experiment: runs of one kind over a grid."""

    kind: Kind
    title: str = ""
    brief: str = ""
    """A word or two that replace the title in a sentence."""
    grid: dict[str, Axis] = Field(default_factory=dict)
    scales: dict[Scale, Size]
    sweep: bool = False
    """Whether the part runs only if sweeps are asked for; no verdict rests on it."""

    def cells(self, scale: Scale) -> Iterator[tuple[dict[str, str], Changes]]:
        """Yields every combination of labels with the keys that it changes."""
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
    """One comparison; docs/protocol.md defines the tests."""

    part: str
    test: Literal["better", "not_worse", "equivalent", "worse", "above", "below"]
    metric: str
    a: dict[str, str]
    """The labels of the runs that the condition is about; it must hold everywhere on axes that are not named."""
    b: dict[str, str] = Field(default_factory=dict)
    """The labels of the runs they are compared with, at the same place on the axes that are not named."""
    by: float | None = None
    """The amount that the difference must exceed, in the unit of the metric's margin; 0 by default."""
    limit: float | None = None
    """The limit of `above` and `below`."""
    margin: float | None = None
    """The margin of `not_worse` and `equivalent`, in the unit of the metric's own margin, which it replaces."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        _check_metric(measures.measure, self.metric)
        if (self.limit is not None) != (self.test in ("above", "below")):
            raise ValueError(f"test '{self.test}' {'takes no' if self.limit is not None else 'needs a'} limit")
        if self.margin is not None and self.test not in ("not_worse", "equivalent"):
            raise ValueError(f"test '{self.test}' takes no margin")
        return self


class Judgement(Config):
    """How the verdict on a claim is decided."""

    claim: str
    scales: tuple[Scale, ...] = SCALES
    conditions: list[Condition]
    """The claim is reproduced if all of them hold."""
    requires: list[Condition] = Field(default_factory=list)
    """The claim is inconclusive unless all of them hold."""


class Figure(Config):
    """A picture or table of the report."""

    name: str
    title: str
    caption: str = ""
    part: str
    kind: Literal["points", "lines", "curve", "series", "reads", "map", "pictures", "table"]
    metric: str | list[str]
    x: str | None = None
    """The axis along the bottom of `lines`, whose labels are numbers; the metric along the bottom of a `curve`."""
    log: Literal["", "x", "y", "xy"] = ""

    @model_validator(mode="after")
    def _draws_what_is_known(self) -> Self:
        for metric in [self.metric] if isinstance(self.metric, str) else self.metric:
            if self.kind in ("points", "lines", "curve", "series"):
                _check_metric(measures.series if self.kind == "series" else measures.measure, metric)
        if (self.kind in ("lines", "curve")) != (self.x is not None):
            raise ValueError(f"figure '{self.name}': x belongs to the kinds `lines` and `curve`, and to no others")
        if self.kind == "curve":
            _check_metric(measures.measure, self.x or "")
        return self


class Experiment(Config):
    """An experiment, as one file in experiments/ declares it."""

    name: str
    title: str
    question: str
    """The hypothesis, in one or two sentences."""
    claims: dict[str, Claim]
    parts: dict[str, Part]
    verdicts: list[Judgement]
    figures: list[Figure] = Field(default_factory=list)
    scale_note: str
    """A note on what the scale of our runs means for the claim."""
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
            if figure.kind == "lines" and figure.x not in self.parts[figure.part].grid:
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
    """Returns the names of all experiments in the order in which they run.

    Example:
        >>> "ffn" in names()
        True
    """
    found = [load(name) for name in _files("experiments")]
    return tuple(e.name for e in sorted(found, key=lambda e: (e.order, e.name)))


def load(name: str) -> Experiment:
    """Returns the experiment called `name`.

    Raises:
        UnknownNameError: There is no such experiment.
        ConfigError: Its file is not valid.

    Example:
        >>> sorted(load("ffn").claims)
        ['C1', 'C2']
    """
    where = f"experiments/{name}.yaml"
    found = Experiment.parse(_read("experiments", name), where=where)
    if found.name != name:
        raise ConfigError(f"{where}: its name is '{found.name}'; give file and experiment the same name")
    return found


def setting(name: str) -> dict[str, Any]:
    """Returns the setting called `name` as plain data."""
    return _read("settings", name)


def check_scale(scale: str) -> Scale:
    """Returns `scale` if it is one of SCALES.

    Raises:
        UnknownNameError: It is not.
    """
    for known in SCALES:
        if scale == known:
            return known
    raise UnknownNameError(f"unknown scale '{scale}'; {nearest(scale, SCALES)}")


def declarations(kind: str) -> Traversable:
    """Returns the folder of the `experiments` or `settings` of the package."""
    return resources.files("reluformer.study") / kind


def _files(kind: str) -> list[str]:
    return [path.name.removesuffix(".yaml") for path in declarations(kind).iterdir() if path.name.endswith(".yaml")]


def _read(kind: str, name: str) -> dict[str, Any]:
    path = declarations(kind) / f"{name}.yaml"
    if not path.is_file():
        raise UnknownNameError(f"unknown {kind.removesuffix('s')} '{name}'; {nearest(name, _files(kind))}")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ConfigError(f"{kind}/{name}.yaml: expected keys and values, got {type(content).__name__}")
    return content
