"""What a study leaves for others: its results in a folder that a repository can hold, and its verdicts in a table.

The published folder is itself a study's folder, so `--report-only` draws the same report from it. Texts
stay behind: translations and references belong to the corpora.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from reluformer import files
from reluformer.errors import DataError
from reluformer.study.folder import StudyFolder
from reluformer.study.plan import Plan
from reluformer.study.verdicts import Verdict

REPORT = ("report.md", "results.json")


def publish(plan: Plan, folder: StudyFolder, to: Path) -> int:
    """Copy the results of the plan that are there, and the report; how many results."""
    there, published = StudyFolder(to), 0
    for address in plan.runs:
        if folder.result(address) is None:
            continue
        there.directory(address).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder.directory(address) / "result.json", there.directory(address) / "result.json")
        published += 1
        if folder.bootstrap(address).is_file():
            shutil.copyfile(folder.bootstrap(address), there.bootstrap(address))
    to.mkdir(parents=True, exist_ok=True)
    for name in REPORT:
        shutil.copyfile(folder.path / name, to / name)
    if folder.figures.is_dir():
        shutil.copytree(folder.figures, there.figures, dirs_exist_ok=True)
    return published


def enter_verdicts(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Write the verdicts into the last column of the table of claims at `path`; other rows stay as they are.

    A claim that several experiments judge has a verdict of each; those of experiments that are not given stay.
    """
    found: dict[str, dict[str, str]] = {}
    for verdict in verdicts:
        if verdict.smoke:
            raise DataError(f"{path}: verdicts of scale quick are a smoke test and stay out of it; use --scale small")
        found.setdefault(verdict.claim, {})[verdict.experiment] = verdict.word
    lines = path.read_text(encoding="utf-8").splitlines()
    missing = set(found)
    for number, line in enumerate(lines):
        cells = line.split(" | ")
        claim = cells[0].removeprefix("| ").split(" ")[0]
        if claim in found and len(cells) > 1:
            words = {**dict(re.findall(r"`(\w+)`: ([\w ]*\w)", cells[-1])), **found[claim]}
            told = "; ".join(f"`{experiment}`: {word}" for experiment, word in words.items())
            lines[number] = " | ".join([*cells[:-1], f"{told} |"])
            missing.discard(claim)
    if missing:
        raise DataError(f"{path}: no row of a table begins with {', '.join(sorted(missing))}")
    files.write_text(path, "\n".join(lines) + "\n")
