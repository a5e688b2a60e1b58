"""The plan of a study: the runs that its experiments ask for.

A run is a configuration, and its address is the hash of that configuration. Two experiments that ask
for the same configuration share the run. A configuration names the runs that it needs: the trials that
choose its learning rate, the training that it starts from, the training that it evaluates.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from reluformer.errors import ArgumentError, UnknownNameError, nearest
from reluformer.rules import registry
from reluformer.study import experiment as experiments
from reluformer.study.experiment import Axis, Changes, Experiment, Part, Scale
from reluformer.study.measures import EVALUATION

VERSION = 1
"""Version of the study. It is raised when a change makes new results incomparable with old ones."""


SEEDS: Mapping[Scale, int] = {"quick": 1, "small": 3, "paper": 3}
"""The number of seeds at each scale, unless a part or the user gives another."""


@dataclass(frozen=True)
class Run:
    """One computation. `content` is plain data and holds everything that decides the result."""

    content: Mapping[str, Any]

    @property
    def address(self) -> str:
        """The first twelve digits of the hash of the configuration."""
        text = json.dumps(self.content, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def kind(self) -> str:
        """The kind of the run, which decides how a worker does it."""
        return str(self.content["kind"])

    @property
    def seed(self) -> int:
        """The seed of the run; 0 where its configuration has none."""
        return int(self.content.get("training", self.content).get("seed", 0))

    @property
    def trials(self) -> list[Run]:
        """The trials: a short training for each learning rate that may be chosen."""
        asked = self.content.get("trials")
        if not asked:
            return []
        found = []
        for lr in asked["lr"]:
            left_out = ("trials", "test") if self.kind in ("language", "images") else ("trials",)
            content = {key: value for key, value in self.content.items() if key not in left_out}
            changes = {key: value for key, value in asked.items() if key != "lr"}
            content["training"] = {**self.content["training"], **changes, "lr": lr}
            found.append(Run(content))
        return found

    @property
    def start(self) -> Run | None:
        """The training whose model this one starts from."""
        return Run(self.content["start"]) if self.content.get("start") else None

    @property
    def evaluated(self) -> Run | None:
        """The training whose model this run evaluates."""
        return Run(self.content["of"]) if self.content.get("of") else None

    @property
    def models(self) -> list[Run]:
        """The trainings whose models this run loads."""
        return [run for run in (self.start, self.evaluated) if run is not None]

    @property
    def needs(self) -> list[Run]:
        """The runs that must be finished before this one."""
        return [*self.trials, *self.models]


@dataclass(frozen=True)
class Cell:
    """A place in the grid of a part at one seed, with its run and, if it has one, the evaluation of that run."""

    experiment: str
    part: str
    labels: Mapping[str, str]
    seed: int
    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        """The name of the cell in listings."""
        return " ".join([self.experiment, self.part, *self.labels.values(), f"seed {self.seed}"])


@dataclass
class Plan:
    """All runs of some experiments at one scale, each once, in an order in which they can be done.

    A run is called by the title of the first cell that needs it.
    """

    scale: Scale
    experiments: list[Experiment]
    cells: list[Cell] = field(default_factory=list)
    runs: dict[str, Run] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)

    def add(self, cell: Cell) -> None:
        """Add a cell, its runs and everything that they need."""
        self.cells.append(cell)
        for run in cell.runs:
            self._add(run, cell.title if run.kind != EVALUATION else f"{cell.title}, evaluated")

    def _add(self, run: Run, title: str) -> None:
        for trial in run.trials:
            lr = trial.content["training"]["lr"]
            self._add(trial, f"{title.rsplit(' seed', 1)[0]} trial of lr {lr:g}")
        if run.start is not None:
            self._add(run.start, f"{title}, its start")
        if run.evaluated is not None:
            self._add(run.evaluated, title)
        self.runs.setdefault(run.address, run)
        self.titles.setdefault(run.address, title)

    def command(self, address: str) -> str:
        """Returns the command that does a run, with all others of its part."""
        experiment, part = self.titles[address].split()[:2]
        return f"reluformer study {experiment} --part {part} --scale {self.scale}"

    def shard(self, number: int, of: int) -> list[str]:
        """Returns the addresses of shard `number` (from 1): every `of`-th run of a cell, and all that these need."""
        wanted = list(dict.fromkeys(run.address for cell in self.cells for run in cell.runs))
        chosen: dict[str, None] = {}

        def add(run: Run) -> None:
            for needed in run.needs:
                add(needed)
            chosen[run.address] = None

        for address in wanted[number - 1 :: of]:
            add(self.runs[address])
        return [address for address in self.runs if address in chosen]


def make_plan(
    names: Iterable[str],
    scale: Scale,
    seeds: int | None,
    *,
    sweeps: bool = False,
    parts: Iterable[str] = (),
    only: Mapping[str, Collection[str]] | None = None,
    rules: Iterable[str] = (),
    plugins: Iterable[Path] = (),
) -> Plan:
    """Returns the runs of some experiments at one scale.

    Args:
        names: The experiments.
        scale: The scale at which they run.
        seeds: The number of seeds, from 0 on; None takes that of each part, or that of the scale.
        sweeps: Whether parts that are sweeps run too.
        parts: Only these parts run, whether they are sweeps or not; all parts if it is empty.
        only: For some axes of the grids the values that run; parts without such an axis run whole.
        rules: Rules that join every axis `rule` whose choices are values of a single key.
        plugins: The files that define rules of the user.

    Raises:
        ArgumentError: There is nothing to run, or no seed.
        UnknownNameError: An experiment, a part, or an axis or value of `only` does not exist.

    Example:
        >>> plan = make_plan(["variance"], "quick", seeds=1, parts=["reads"])
        >>> len(plan.runs)
        4
    """
    if seeds is not None and seeds < 1:
        raise ArgumentError(f"--seeds {seeds}: must be at least 1")
    loaded = [experiments.load(name) for name in names]
    plan = Plan(scale, loaded)
    wanted, plugin, plugged = set(parts), _digest(plugins), set(registry.from_plugins())
    known = dict.fromkeys(name for one in loaded for name in one.parts)
    for name in wanted - known.keys():
        raise UnknownNameError(f"unknown part '{name}'; {nearest(name, known)}")
    only = only or {}
    _check_values(loaded, only, rules)
    sizes = [part.scales[scale].seeds or 0 for one in loaded for part in one.parts.values() if scale in part.scales]
    for seed in range(seeds or max([SEEDS[scale], *sizes])):
        for one in loaded:
            for name, part in one.parts.items():
                asked_for = name in wanted if wanted else sweeps or not part.sweep
                if scale not in part.scales or not asked_for:
                    continue
                if seed >= (seeds or part.scales[scale].seeds or SEEDS[scale]):
                    continue
                for labels, changes in _cells(part, scale, rules):
                    if any(labels.get(axis, next(iter(values), "")) not in values for axis, values in only.items()):
                        continue
                    added = labels.get("rule") not in part.grid["rule"].choices if "rule" in labels else False
                    used = _Plugins(plugin, None if added else plugged)
                    runs = tuple(_runs(part, scale, labels, changes, seed, used))
                    plan.add(Cell(one.name, name, labels, seed, runs))
    if not plan.cells:
        raise ArgumentError(f"nothing to run at scale '{scale}' with these parts; some run only at another one")
    return plan


def _check_values(loaded: Iterable[Experiment], only: Mapping[str, Collection[str]], rules: Iterable[str]) -> None:
    """Refuses axes and values that no grid of the experiments has."""
    known: dict[str, dict[str, None]] = {}
    for one in loaded:
        for part in one.parts.values():
            for axis, choices in part.grid.items():
                known.setdefault(axis, {}).update(dict.fromkeys(choices.choices))
    known.get("rule", {}).update(dict.fromkeys(rules))
    for axis, values in only.items():
        if axis not in known:
            raise UnknownNameError(f"--only {axis}=...: unknown axis '{axis}'; {nearest(axis, known)}")
        for value in values:
            if value not in known[axis]:
                raise UnknownNameError(f"--only {axis}={value}: unknown value; {nearest(value, known[axis])}")


def _cells(part: Part, scale: Scale, rules: Iterable[str]) -> Iterator[tuple[dict[str, str], Changes]]:
    yield from part.cells(scale)
    axis = part.grid.get("rule")
    extra = [rule for rule in rules if axis is not None and axis.key is not None and rule not in axis.choices]
    if extra:
        assert axis is not None
        grown = Axis(choices={rule: {axis.key or "": rule} for rule in extra}, key=axis.key)
        size = part.scales[scale]
        sizes = {scale: size.replace(grid={k: v for k, v in size.grid.items() if k != "rule"})}
        yield from part.replace(grid={**part.grid, "rule": grown}, scales=sizes).cells(scale)


class _Plugins(NamedTuple):
    """The digest of the plugins of a plan and the names of their rules, or None for a run that always uses one."""

    digest: str
    rules: set[str] | None

    def marked(self, content: dict[str, Any]) -> dict[str, Any]:
        """Returns a configuration with the digest if it uses such a rule, so that a changed plugin makes a new run."""
        uses = self.rules is None or not self.rules.isdisjoint(_texts(content))
        return {**content, "plugin": self.digest} if uses else content


def _runs(
    part: Part, scale: Scale, labels: Mapping[str, str], changes: Changes, seed: int, plugin: _Plugins
) -> Iterator[Run]:
    size = part.scales[scale]
    content = changed(experiments.setting(size.setting), {**size.set, **changes})
    evaluate = content.pop("evaluate", None)
    if "training" in content:
        content["training"]["seed"] = seed
    else:
        content["seed"] = seed
    if size.after is not None:
        along: Changes = {}
        for axis in size.after.axes:
            along.update(part.grid[axis].choices[labels[axis]])
        start = changed(experiments.setting(size.after.setting), along)
        start.pop("evaluate", None)
        start["training"]["seed"] = seed
        content["start"] = plugin.marked({"study": VERSION, "kind": part.kind, **start})
    run = Run(plugin.marked({"study": VERSION, "kind": part.kind, **content}))
    yield run
    if evaluate:
        yield Run({"study": VERSION, "kind": EVALUATION, "of": run.content, **evaluate})


def changed(content: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Returns a copy with some dotted keys set; a mapping is replaced, not merged.

    Example:
        >>> changed({"model": {"width": 1}}, {"model.width": 2})
        {'model': {'width': 2}}
    """
    result = copy.deepcopy(dict(content))
    for key, value in changes.items():
        *sections, last = key.split(".")
        place = result
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = copy.deepcopy(value)
    return result


def _texts(value: Any) -> Iterator[str]:
    """Yields every string in nested settings; the names of rules are among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)


def _digest(plugins: Iterable[Path]) -> str:
    """Returns a digest of the plugins; a changed file has another digest."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in plugins)).hexdigest()[:12]
