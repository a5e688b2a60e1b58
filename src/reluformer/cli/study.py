"""`reluformer study`: runs the claims of the paper as experiments and reports a verdict on each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from reluformer.cli.options import AsJson, Plugins, require_extra
from reluformer.errors import ArgumentError
from reluformer.training.progress import SECONDS_BETWEEN_LINES, activity, duration

if TYPE_CHECKING:
    from reluformer.study.plan import Plan
    from reluformer.study.report import Written
    from reluformer.study.results import StudyDirectory
    from reluformer.study.runner import Outlook


def study(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Names of experiments. Default: all.")
    ] = None,
    scale: Annotated[str, typer.Option(help="quick (minutes), small (days on two cores) or paper (GPUs).")] = "quick",
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of seeds. Default: 1 for quick, otherwise 3, or what a part asks for.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time; they share the cores.")] = 2,
    shard: Annotated[
        str, typer.Option(metavar="i/n", help="Run only the i-th of n shards, in a folder that all share.")
    ] = "1/1",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the study. Default: runs/study/SCALE.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder that holds multi30k/, europarl7-doc/, ...", show_default=False)
    ] = None,
    part: Annotated[list[str], typer.Option(help="Run only this part of the experiments; repeatable.")] = [],  # noqa: B006
    only: Annotated[
        list[str],
        typer.Option(
            metavar="AXIS=VALUE,...", help="Run only these values of an axis, e.g. rule=softmax,relu; repeatable."
        ),
    ] = [],  # noqa: B006
    sweeps: Annotated[bool, typer.Option("--sweeps", help="Also run the sweeps on which no verdict rests.")] = False,
    rule: Annotated[
        list[str], typer.Option(help="Also run this rule in the parts that need no recipe; repeatable.")
    ] = [],  # noqa: B006
    listing: Annotated[bool, typer.Option("--list", help="Show the experiments and stop.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show runs, tokens and hours, and stop.")] = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Write the report from the results that exist.")
    ] = False,
    publish: Annotated[
        Path | None,
        typer.Option(help="Also copy report and results to this folder, without any texts.", show_default=False),
    ] = None,
    paper_map: Annotated[
        Path | None,
        typer.Option(help="Also write the verdicts into the table of claims in this file.", show_default=False),
    ] = None,
    plugin: Plugins = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Run the paper's claims as experiments, and write report.html with a verdict on each.

    Stop it at any time: the same command resumes it, and no run is repeated.
    Several machines can share the work through one folder.

    Example: reluformer study ffn variance --scale small --data data --jobs 2
    """
    from reluformer.study import experiment, plan, results
    from reluformer.study.results import StudyDirectory

    chosen = names or list(experiment.names())
    at = experiment.check_scale(scale)
    for name in chosen:
        experiment.load(name)
    _check_rules(rule)
    from reluformer.study.trainings import register_controls  # after the checks, as it imports all of training

    register_controls()
    console = Console(stderr=as_json)
    if listing:
        _list(chosen, as_json, console)
        return
    if not dry_run:
        require_extra("study", "the report of a study")
    planned = plan.make_plan(chosen, at, seeds, sweeps=sweeps, parts=part, only=_axes(only), rules=rule, plugins=plugin)
    folder = StudyDirectory(out or Path("runs/study") / scale)
    if dry_run:
        _dry_run(planned, folder, shard, jobs, as_json, console)
        return
    failures = 0 if report_only else _run(planned, folder, jobs, shard, data, plugin, console)
    written = _report(planned, folder, as_json, console)
    if publish is not None:
        console.print(f"{results.publish(planned, folder, publish)} results are in {publish}.", highlight=False)
    if paper_map is not None:
        from reluformer.study.report import enter_verdicts

        enter_verdicts(paper_map, written.verdicts)
    if failures:
        raise typer.Exit(1)


def _axes(only: list[str]) -> dict[str, list[str]]:
    """Returns the values of each axis in AXIS=VALUE,VALUE."""
    found: dict[str, list[str]] = {}
    for given in only:
        axis, separator, values = given.partition("=")
        if not separator or not values:
            raise ArgumentError(f"--only {given}: give an axis and its values, as in --only rule=softmax,relu")
        found.setdefault(axis.strip(), []).extend(value.strip() for value in values.split(","))
    return found


def _check_rules(names: list[str]) -> None:
    from reluformer import rules

    for name in names:
        rules.get(name)


def _list(names: list[str], as_json: bool, console: Console) -> None:
    from reluformer.study import experiment

    loaded = [experiment.load(name) for name in names]
    if as_json:
        typer.echo(json.dumps({e.name: e.model_dump(mode="json") for e in loaded}, indent=2))
        return
    table = Table(title="Experiments", title_justify="left")
    for column in ("name", "claims", "what it asks", "parts"):
        table.add_column(column, style="bold" if column == "name" else None)
    for one in loaded:
        parts = [f"{name} ({'sweep' if part.sweep else part.kind})" for name, part in one.parts.items()]
        table.add_row(one.name, " ".join(one.claims), one.question.strip(), "\n".join(parts), end_section=True)
    console.print(table)


def _dry_run(plan: Plan, folder: StudyDirectory, shard: str, jobs: int, as_json: bool, console: Console) -> None:
    from reluformer.study.runner import parse_shard
    from reluformer.study.speed import estimate

    addresses = plan.shard(*parse_shard(shard))
    left = folder.left(plan, addresses)
    with activity("measuring a few updates of each kind") as tell:
        found = estimate(plan, left, lambda what: tell(f"measuring {what}"))
    figures = {
        "scale": plan.scale,
        "runs": len(addresses),
        "done": len(addresses) - len(left),
        "target_tokens": found.target_tokens,
        "core_hours": round(found.seconds / 3600, 2),
        "hours": round(found.seconds / 3600 / jobs, 2),
        "jobs": jobs,
        "kinds": found.kinds,
        "kinds_measured": found.measured,
    }
    if as_json:
        runs = {address: plan.titles[address] for address in addresses}
        typer.echo(json.dumps({**figures, "addresses": runs}, indent=2))
        return
    table = Table(title=f"{plan.scale}: what would run", title_justify="left")
    for column in ("address", "run", "kind", "state"):
        table.add_column(column, style="dim" if column == "address" else None)
    for address in addresses:
        table.add_row(address, plan.titles[address], plan.runs[address].kind, "to do" if address in left else "done")
    console.print(table)
    all_measured = found.measured == found.kinds
    console.print(
        f"{len(left)} of {len(addresses)} runs to do, {found.target_tokens / 1e6:,.1f} million target tokens; about "
        f"{figures['hours']:,.1f} hours with {jobs} at a time on a machine like this one, measured on one process"
        + ("." if all_measured else f" ({found.measured} of {found.kinds} kinds of runs, as the rest would take long).")
    )


def _run(
    plan: Plan, folder: StudyDirectory, jobs: int, shard: str, data: Path | None, plugins: list[Path], console: Console
) -> int:
    """Run what is not done yet, and return the number of failed runs."""
    from reluformer.study import language_models, trainings
    from reluformer.study.runner import Options, Runner, parse_shard

    options = Options(jobs, parse_shard(shard), data and data.resolve(), tuple(path.resolve() for path in plugins))
    runner = Runner(plan, folder, options)
    for address in folder.left(plan, runner.addresses):  # before anything starts: are all corpora there?
        run = plan.runs[address]
        if run.kind in ("training", "language"):
            (language_models if run.kind == "language" else trainings).data_config(run.content, options.data)
    began = time.monotonic()
    display = StudyDisplay(plan, folder, console, jobs)
    if console.is_terminal:
        from rich.live import Live

        with Live(console=console, refresh_per_second=2) as live:
            outlook = runner.run(lambda outlook: live.update(display.table(outlook)))
    else:
        outlook = runner.run(display.print_changes)
    for address, why in outlook.failures.items():
        console.print(Text(f"failed: {plan.titles[address]}: {why}", style="red"))
    if outlook.interrupted:
        console.print("Stopped; everything is saved. The same command resumes the study.")
        raise typer.Exit(130)
    minutes = (time.monotonic() - began) / 60
    console.print(f"{outlook.count('done')} of {len(runner.addresses)} runs are done; {minutes:.1f} minutes this time.")
    return len(outlook.failures)


class StudyDisplay:
    """Shows which runs are active, how many are done, and how long the rest may take."""

    def __init__(
        self,
        plan: Plan,
        folder: StudyDirectory,
        console: Console,
        jobs: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan, self._folder, self._console, self._jobs = plan, folder, console, jobs
        self._clock = clock
        self._last_line = clock()
        self._told: dict[str, str] = {}
        self._first: dict[str, tuple[float, float]] = {}
        """For each run, when it was first seen here and the share that was done by then."""

    def table(self, outlook: Outlook) -> Group:
        """Returns a table of the active runs, for a terminal."""
        table = Table(title="The study", title_justify="left", min_width=min(90, self._console.width))
        for column in ("run", "done", "", "for"):
            table.add_column(column, justify="right" if column in ("done", "for") else "left")
        for address, state in outlook.states.items():
            if state == "running":
                progress = self._folder.progress(address)
                taken = duration(time.monotonic() - outlook.started[address])
                table.add_row(
                    self._plan.titles[address], f"{progress.get('share', 0):.0%}", progress.get("note", ""), taken
                )
        counts = ", ".join(
            f"{outlook.count(s)} {s}"
            for s in ("done", "waiting", "elsewhere", "failed", "left out")
            if outlook.count(s)
        )
        left = self.seconds_left(outlook)
        return Group(table, Text(counts + (f"; about {duration(left)} left" if left is not None else "")))

    def print_changes(self, outlook: Outlook) -> None:
        """Print a line whenever a run begins or ends, and one about all of them now and then, for a file."""
        for address, state in outlook.states.items():
            if self._told.get(address, "waiting") != state and not (address not in self._told and state == "done"):
                self._console.print(f"{state}: {self._plan.titles[address]}", highlight=False)
                self._last_line = self._clock()
            self._told[address] = state
        if self._clock() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = self._clock()
            self._console.print(self.line(outlook), highlight=False, markup=False, soft_wrap=True)

    def line(self, outlook: Outlook) -> str:
        """Returns how far the active runs are, how many are done, and the time left, on one line."""
        running = [
            f"{self._plan.titles[address]} {self._folder.progress(address).get('share', 0):.0%}"
            for address, state in outlook.states.items()
            if state == "running"
        ]
        left = self.seconds_left(outlook)
        rest = f"; about {duration(left)} left" if left is not None else ""
        return f"{', '.join(running) or 'waiting'}; {outlook.count('done')} of {len(outlook.states)} done{rest}"

    def seconds_left(self, outlook: Outlook) -> float | None:
        """Estimate the seconds left from the pace of runs of the same kind, or return None before there is any."""
        from reluformer.study.results import seconds_of

        pace: dict[str, list[float]] = {}
        for address, state in outlook.states.items():
            result = self._folder.result(address) if state == "done" else None
            if result is not None:
                pace.setdefault(_pace_class(self._plan, address), []).append(seconds_of(result))
            elif state == "running":
                now, share = time.monotonic(), float(self._folder.progress(address).get("share", 0))
                began, had = self._first.setdefault(address, (now, share))
                if share - had > 0.05:
                    pace.setdefault(_pace_class(self._plan, address), []).append((now - began) / (share - had))
        if not pace:
            return None
        overall = [seconds for found in pace.values() for seconds in found]
        total = 0.0
        for address, state in outlook.states.items():
            if state in ("waiting", "running", "elsewhere"):
                found = pace.get(_pace_class(self._plan, address), overall)
                share = self._folder.progress(address).get("share", 0) if state == "running" else 0.0
                total += (1 - share) * sum(found) / len(found)
        return total / self._jobs


def _pace_class(plan: Plan, address: str) -> str:
    """Returns a key that is equal for runs that take about the same time."""
    content = plan.runs[address].content
    training = content.get("training", {})
    return json.dumps([content["kind"], content.get("dataset"), training.get("updates"), training.get("slots")])


def _report(plan: Plan, folder: StudyDirectory, as_json: bool, console: Console) -> Written:
    from reluformer.study import report

    written = report.write(plan, folder)
    if as_json:
        typer.echo(json.dumps(written.to_dict(), indent=2))
        return written
    console.print(_verdicts(written))
    for note in written.notes:
        console.print(note)
    console.print(f"Open {folder.path / 'report.html'}; figures and their data are in {folder.figures}.")
    return written


def _verdicts(written: Any) -> Table:
    table = Table(title="Verdicts", title_justify="left")
    for column in ("claim", "experiment", "verdict", "because"):
        table.add_column(column, style="bold" if column == "verdict" else None)
    for verdict in written.verdicts:
        reasons = "\n".join(f"• {reason}" for reason in verdict.reasons)
        table.add_row(verdict.claim, verdict.experiment, verdict.word, reasons)
    return table
