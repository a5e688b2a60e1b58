"""`reluformer study`: its listing, its dry run, a rule of the user, and the time that is left."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from reluformer import files
from reluformer.cli import study
from reluformer.study.plan import make_plan
from reluformer.study.results import StudyDirectory
from reluformer.study.runner import Outlook

Command = Callable[..., subprocess.CompletedProcess[str]]


def test_the_time_left_goes_by_what_was_done_since_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that was stopped at 60 % and did a tenth more in a minute needs three more for the rest."""
    plan, folder = make_plan(["ffn"], "small", 1), StudyDirectory(tmp_path)
    address = next(address for address, run in plan.runs.items() if run.kind == "training")
    outlook = Outlook({address: "running"}, started={address: 0.0})
    now = [100.0]
    monkeypatch.setattr(study.time, "monotonic", lambda: now[0])
    display = study.StudyDisplay(plan, folder, Console(), jobs=1)
    for seconds, share, left in ((0, 0.6, None), (60, 0.7, 180.0)):
        now[0] = 100.0 + seconds
        files.write_json(folder.directory(address) / "progress.json", {"share": share})
        assert display.seconds_left(outlook) == (left if left is None else pytest.approx(left))


def test_a_file_sees_the_study_and_the_time_left_three_times_a_minute(tmp_path: Path) -> None:
    plan = make_plan(["variance"], "quick", 1)
    address = next(iter(plan.runs))
    folder = StudyDirectory(tmp_path)
    files.write_json(folder.directory(address) / "progress.json", {"share": 0.25})
    now, file = [0.0], io.StringIO()
    display = study.StudyDisplay(plan, folder, Console(file=file, width=80), jobs=1, clock=lambda: now[0])
    outlook = Outlook({address: "running"}, started={address: 0.0})
    for seconds in (0.0, 10.0, 21.0, 30.0, 45.0):
        now[0] = seconds
        display.print_changes(outlook)
    title = plan.titles[address]
    begun, *lines = file.getvalue().splitlines()
    assert begun == f"running: {title}"
    assert lines == [f"{title} 25%; 0 of 1 done"] * 2


def test_study_with_a_rule_of_ones_own(command: Command, tmp_path: Path, plugin: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs reluformer[plots]")
    mine = ("--plugin", str(plugin), "--rule", "gelu_mean")
    result = command("study", "variance", "--part", "reads", *mine, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "5 of 5 runs are done" in result.stdout
    out = tmp_path / "runs" / "study" / "quick"
    assert {"report.html", "report.md", "results.json", "figures", "runs"} <= {path.name for path in out.iterdir()}
    panels = json.loads((out / "figures" / "variance.json").read_text())["panels"]
    rules = ["relu_plain", "relu", "relu_seqlen", "softmax", "gelu_mean"]
    assert [series["label"] for series in panels[0]["series"]] == rules
    plugin.write_text(plugin.read_text().replace("gelu(scores)", "no_such_function(scores)"))
    broken = command("study", "variance", "--part", "reads", *mine, cwd=tmp_path)
    assert broken.returncode == 1
    assert "4 of 5 runs are done" in broken.stdout and "no_such_function" in broken.stdout.replace("\n", "")


def test_study_lists_its_experiments(command: Command) -> None:
    result = command("study", "--list")
    assert result.returncode == 0, result.stderr
    for word in ("ffn", "slots", "recall", "variance", "regularizer", "length", "speed", "maps", "C10"):
        assert word in result.stdout


def test_a_dry_run_tells_runs_tokens_and_hours_and_touches_nothing(command: Command, tmp_path: Path) -> None:
    result = command("study", "ffn", "--scale", "quick", "--dry-run", "--json", "--jobs", "1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert (figures["runs"], figures["done"], figures["target_tokens"]) == (10, 0, 5 * 250 * 1000)
    assert figures["hours"] > 0
    assert list(tmp_path.iterdir()) == []
