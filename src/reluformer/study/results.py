"""The results of a study: its directory, the table in which they are published, and the results of a plan.

A study works in a directory that many machines may share. Each run has a folder there:

runs/ADDRESS/run.json        the configuration
runs/ADDRESS/result.json     the result; it exists only when the run is done
runs/ADDRESS/lock-0          the process that works on the run (see `worker`)
runs/ADDRESS/progress.json   the progress of the run
runs/ADDRESS/bootstrap.json  p-values of its translations against those of other runs
runs/ADDRESS/worker.log      the output of its process
runs/ADDRESS/training/       the run directory of a training
data/                        prepared corpora
report.html, report.md, results.json, figures/

`publish` writes the finished runs into one table, runs.jsonl.gz, with the report beside it. A
directory may hold such a table, run folders, or both: a result is read from the run folder first
and from the table otherwise. So a published table can be reported on and resumed from.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from reluformer import files
from reluformer.errors import StorageError
from reluformer.models import storage
from reluformer.study import measures
from reluformer.study.plan import VERSION, Cell, Plan, Run

TABLE = "runs.jsonl.gz"
TABLE_FORMAT = 1
REPORT_FILES = ("report.md", "results.json")
UNPUBLISHED = ("title", "command", "train", "curve", "rows", "bootstrap")
"""Keys of a result that its row does not take over: nothing is drawn from these curves, and the rest is set anew."""


class StudyDirectory:
    """The directory in which a study runs, or into which it was published.

    Args:
        path: The directory; it need not exist yet.

    Example:
        >>> study = StudyDirectory("runs/study/quick")
        >>> study.directory("0123456789ab").as_posix()
        'runs/study/quick/runs/0123456789ab'
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.runs = self.path / "runs"
        self.data = self.path / "data"
        self.figures = self.path / "figures"
        self.table = self.path / TABLE

    def directory(self, run: Run | str) -> Path:
        """Returns the folder of a run."""
        return self.runs / _address(run)

    def training(self, run: Run) -> Path:
        """Returns the folder in which a training keeps its log and its model."""
        return self.directory(run) / "training"

    # ------------------------------------------------------------------ configurations

    def write_run(self, run: Run) -> None:
        """Write the configuration of a run, for the worker and for readers."""
        path = self.directory(run) / "run.json"
        if not path.exists():
            files.write_json(path, dict(run.content))

    def read_run(self, address: str) -> Run:
        """Returns the run at an address.

        Raises:
            StorageError: The run does not exist, or its file no longer matches its address.
        """
        path = self.directory(address) / "run.json"
        run = Run(_json(path))
        if run.address != address:
            raise StorageError(f"{path}: was changed, it is not the run of its address; delete {path.parent}")
        return run

    # ------------------------------------------------------------------ results

    @cached_property
    def published(self) -> dict[str, dict[str, Any]]:
        """The rows of the table by address; empty where there is no table."""
        return read_table(self.table) if self.table.is_file() else {}

    def result(self, run: Run | str) -> dict[str, Any] | None:
        """Returns the result of a run, or None if it is not done or was written by another version of the study."""
        path = self.directory(run) / "result.json"
        found = _json(path) if path.is_file() else self.published.get(_address(run))
        return found if found is not None and found.get("study") == VERSION else None

    def write_result(self, run: Run, result: dict[str, Any]) -> None:
        """Write the result of a run, which is then done."""
        content = {"study": VERSION, "address": run.address, "run": dict(run.content), **result}
        files.write_json(self.directory(run) / "result.json", content)

    def done(self, run: Run, with_model: bool = False) -> bool:
        """Returns whether a run has its result and, if asked for, its model: published results have no models."""
        result = self.result(run)
        if result is None:
            return False
        leaves_model = run.kind == "training" and result["status"] == "finished"
        return not (with_model and leaves_model) or (self.training(run) / storage.CONFIG).is_file()

    def left(self, plan: Plan, addresses: Sequence[str]) -> list[str]:
        """Returns the addresses that are still to be run, in their order.

        A training that is done runs again if its model is missing and another run needs it.
        """
        left: list[str] = []
        models: set[str] = set()
        for address in reversed(addresses):  # in a plan, a run comes after what it needs
            run = plan.runs[address]
            if not self.done(run, with_model=address in models):
                left.append(address)
                models.update(model.address for model in run.models)
        return left[::-1]

    def foreign(self) -> dict[str, int]:
        """Returns the number of results of each other version of the study; no report uses them."""
        found = {path.parent.name: _json(path) for path in sorted(self.runs.glob("*/result.json"))}
        counts: dict[str, int] = {}
        for result in {**self.published, **found}.values():
            version = result.get("study")
            if version != VERSION:
                counts[str(version)] = counts.get(str(version), 0) + 1
        return counts

    def progress(self, address: str) -> dict[str, Any]:
        """Returns the share of a run that is done and a note about it; empty before the run has begun."""
        try:
            return dict(json.loads((self.directory(address) / "progress.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    # ------------------------------------------------------------------ bootstrap

    def p_values(self, address: str) -> dict[str, float]:
        """Returns the known p-values of a run's translations, by the address of the run they are compared with."""
        path = self._bootstrap(address)
        kept: dict[str, float] = self.published.get(address, {}).get("bootstrap", {})
        return {**kept, **(_json(path) if path.is_file() else {})}

    def write_p_values(self, address: str, p_values: Mapping[str, float]) -> None:
        """Keep p-values beside the result, so that they outlive the translations."""
        files.write_json(self._bootstrap(address), dict(p_values))

    def _bootstrap(self, address: str) -> Path:
        return self.directory(address) / "bootstrap.json"


def seconds_of(result: Mapping[str, Any]) -> float:
    """Returns the duration of a run; a training that was resumed counts all its parts."""
    return max(float(result.get("seconds", 0.0)), float(result.get("training_seconds") or 0.0))


def _address(run: Run | str) -> str:
    return run if isinstance(run, str) else run.address


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StorageError(f"{path}: no such run") from None
    except (OSError, ValueError) as error:
        raise StorageError(f"{path}: damaged ({error}); delete {path.parent} and run the study again") from None
    if not isinstance(content, dict):
        raise StorageError(f"{path}: damaged, not an object; delete {path.parent} and run the study again")
    return content


# ------------------------------------------------------------------ the table of runs


def publish(plan: Plan, study: StudyDirectory, to: Path) -> int:
    """Publish the finished runs of a plan in one table, with the report and its pictures.

    Runs that the table at `to` already holds stay in it. Texts of the corpora, models and logs are not
    published. Pictures of scale `quick` are not published either, as its report is a smoke test.

    Args:
        plan: The runs to publish; those that are not done are skipped.
        study: The directory in which they ran and for which the report was written.
        to: The directory for the table; it is created if necessary.

    Returns:
        The number of runs of the plan that the table holds.
    """
    target = StudyDirectory(to)
    rows = dict(target.published)
    done = [address for address in plan.runs if study.result(address) is not None]
    for address in done:
        origin = rows.get(address) or {"title": plan.titles[address], "command": plan.command(address)}
        row = table_row(study.result(address) or {}, study.p_values(address))
        rows[address] = {"title": origin["title"], "command": origin["command"], **row}
    write_table(target.table, rows.values())
    if study.path.resolve() != to.resolve():
        for name in REPORT_FILES:
            shutil.copyfile(study.path / name, to / name)
        if plan.scale != "quick":
            target.figures.mkdir(exist_ok=True)
            for picture in sorted(study.figures.glob("*.png")):
                shutil.copyfile(picture, target.figures / picture.name)
    return len(done)


def table_row(result: Mapping[str, Any], p_values: Mapping[str, float]) -> dict[str, Any]:
    """Returns what the table keeps of a result: all that a verdict, a figure or a resumed study reads.

    Training curves and telemetry that nothing is drawn from are left out.
    """
    row = {key: value for key, value in result.items() if key not in UNPUBLISHED}
    snapshots = row.get("telemetry", [])
    if snapshots:
        last = snapshots[-1]["step"]
        row["telemetry"] = [
            {"step": snapshot["step"], "reads": _kept_reads(snapshot["reads"], snapshot["step"] == last)}
            for snapshot in snapshots
        ]
    if p_values:
        row["bootstrap"] = dict(sorted(p_values.items()))
    return row


def _kept_reads(reads: Mapping[str, Mapping[str, Any]], last: bool) -> dict[str, dict[str, Any]]:
    kept = {}
    for name, read in reads.items():
        ffn = name.endswith("ffn")
        keys = measures.FFN_TELEMETRY if ffn else measures.ATTENTION_TELEMETRY
        if ffn and last:
            keys = (*keys, *measures.LAST_FFN_TELEMETRY)
        kept[name] = {key: read[key] for key in keys if key in read}
    return kept


def write_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows in the order of their addresses; the same rows are always the same file.

    Args:
        path: The file, a gzip-compressed JSON Lines file with a first line that names the format.
        rows: Results with an `address`.
    """
    header = {"format": TABLE_FORMAT, "content": "runs of a reluformer study"}
    lines = [header, *sorted(rows, key=lambda row: str(row["address"]))]
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    if path.is_file() and _unpacked(path) == text:  # another version of zlib may compress it otherwise
        return
    with files.whole_file(path) as file:
        file.write(gzip.compress(text.encode("utf-8"), compresslevel=9, mtime=0))


def read_table(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the rows of a table by address.

    Raises:
        StorageError: The file is damaged, or its format is of another version.
    """
    try:
        header, *rows = [json.loads(line) for line in _unpacked(path).splitlines()]
        if header["format"] != TABLE_FORMAT:
            raise StorageError(f"{path}: table of format {header['format']}, this version reads {TABLE_FORMAT}")
        return {row["address"]: row for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path}: damaged ({error}); publish the results again") from None


def _unpacked(path: Path) -> str:
    try:
        return gzip.decompress(path.read_bytes()).decode("utf-8")
    except (OSError, EOFError) as error:
        raise StorageError(f"{path}: cannot read the table of runs: {error}; publish the results again") from None


# ------------------------------------------------------------------ the results of a plan


class Results:
    """The results of a plan by their place in the grid; runs that are not done are missing."""

    def __init__(self, plan: Plan, study: StudyDirectory) -> None:
        self.plan, self.study = plan, study
        self._results: list[tuple[Cell, dict[str, dict[str, Any]]]] = []
        for cell in plan.cells:
            found = {run.kind: result for run in cell.runs if (result := study.result(run)) is not None}
            if found:
                self._results.append((cell, found))

    def cells(self, experiment: str, part: str) -> Iterator[tuple[Cell, dict[str, dict[str, Any]]]]:
        """Yields the cells of a part with their results by kind of run, in the order of the plan."""
        for cell, results in self._results:
            if (cell.experiment, cell.part) == (experiment, part):
                yield cell, results

    def places(self, experiment: str, part: str) -> list[dict[str, str]]:
        """Returns the labels of a part's cells, each combination once."""
        found = {tuple(cell.labels.items()): dict(cell.labels) for cell, _ in self.cells(experiment, part)}
        return list(found.values())

    def at(self, experiment: str, part: str, place: Mapping[str, str]) -> dict[int, dict[str, dict[str, Any]]]:
        """Returns the results of one place by seed."""
        return {cell.seed: results for cell, results in self.cells(experiment, part) if cell.labels == dict(place)}

    def values(self, experiment: str, part: str, place: Mapping[str, str], metric: str) -> dict[int, float]:
        """Returns a metric at one place by seed, where it was measured."""
        found = {seed: measures.value(metric, results) for seed, results in self.at(experiment, part, place).items()}
        return {seed: value for seed, value in found.items() if value is not None}
