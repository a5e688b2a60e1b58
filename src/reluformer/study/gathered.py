"""The results of a plan, by their place in the grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from reluformer.study import measures
from reluformer.study.folder import StudyFolder
from reluformer.study.plan import Cell, Plan


class Gathered:
    """What is there of a plan; what is missing is simply not in it."""

    def __init__(self, plan: Plan, folder: StudyFolder) -> None:
        self.plan, self.folder = plan, folder
        self._results: list[tuple[Cell, dict[str, dict[str, Any]]]] = []
        for cell in plan.cells:
            found = {run.kind: result for run in cell.runs if (result := folder.result(run)) is not None}
            if found:
                self._results.append((cell, found))

    def cells(self, experiment: str, part: str) -> Iterator[tuple[Cell, dict[str, dict[str, Any]]]]:
        """Everything of a part, in the order of the plan."""
        for cell, results in self._results:
            if (cell.experiment, cell.part) == (experiment, part):
                yield cell, results

    def places(self, experiment: str, part: str) -> list[dict[str, str]]:
        """The labels of a part's cells, each once."""
        found = {tuple(cell.labels.items()): dict(cell.labels) for cell, _ in self.cells(experiment, part)}
        return list(found.values())

    def at(self, experiment: str, part: str, place: Mapping[str, str]) -> dict[int, dict[str, dict[str, Any]]]:
        """The results of one place, by seed."""
        return {cell.seed: results for cell, results in self.cells(experiment, part) if cell.labels == dict(place)}

    def values(self, experiment: str, part: str, place: Mapping[str, str], metric: str) -> dict[int, float]:
        """A number at one place, by seed, where it was measured."""
        found = {seed: measures.value(metric, results) for seed, results in self.at(experiment, part, place).items()}
        return {seed: value for seed, value in found.items() if value is not None}
