"""The command line as a user types it: results, exit codes, messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reluformer.cli import app, doctor

PLUGIN = """
import torch
from reluformer import rules

@rules.register("gelu_mean")
def gelu_mean(scores, n):
    return torch.nn.functional.gelu(scores) / n
"""


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "reluformer", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "my_rules.py"
    path.write_text(PLUGIN)
    return path


def test_study_with_a_rule_of_ones_own(tmp_path: Path, plugin: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs reluformer[plots]")
    mine = ("--plugin", str(plugin), "--rule", "gelu_mean")
    result = run("study", "variance", "--part", "reads", *mine, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "5 of 5 runs are done" in result.stdout
    out = tmp_path / "runs" / "study" / "quick"
    assert {"report.html", "report.md", "results.json", "figures", "runs"} <= {path.name for path in out.iterdir()}
    panels = json.loads((out / "figures" / "variance.json").read_text())["panels"]
    rules = ["relu_plain", "relu", "relu_seqlen", "softmax", "gelu_mean"]
    assert [series["label"] for series in panels[0]["series"]] == rules
    plugin.write_text(PLUGIN.replace("gelu(scores)", "no_such_function(scores)"))
    broken = run("study", "variance", "--part", "reads", *mine, cwd=tmp_path)
    assert broken.returncode == 1
    assert "4 of 5 runs are done" in broken.stdout and "no_such_function" in broken.stdout.replace("\n", "")


def test_bench_compares_rules_with_softmax() -> None:
    shape = ("--length", "24", "--length", "128", "--heads", "1", "--width", "8", "--repeats", "1")
    result = run("bench", *shape, "--causal", "--rule", "relu", "--rule", "sparsemax", "--json")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)["bench"]
    assert [(row["length"], row["rule"]) for row in rows] == [
        (length, rule) for length in (24, 128) for rule in ("softmax", "relu", "sparsemax")
    ]
    assert {row["rule"]: row["forward"]["impl"] for row in rows if row["rule"] != "relu"} == {
        "softmax": "sdpa",
        "sparsemax": "reference",
    }
    assert all(row[kind]["milliseconds"] > 0 for row in rows for kind in ("forward", "forward+backward"))
    assert rows[0]["forward"]["times_as_fast"] == 1.0


def test_bench_as_a_table() -> None:
    result = run("bench", "--length", "16", "--heads", "1", "--width", "4", "--repeats", "1", "--rule", "relu")
    assert result.returncode == 0, result.stderr
    assert "as fast as softmax" in result.stdout and "sdpa" in result.stdout


def test_study_lists_its_experiments() -> None:
    result = run("study", "--list")
    assert result.returncode == 0, result.stderr
    for word in ("ffn", "slots", "recall", "variance", "regularizer", "length", "speed", "maps", "C10"):
        assert word in result.stdout


def test_a_dry_run_tells_runs_tokens_and_hours_and_touches_nothing(tmp_path: Path) -> None:
    result = run("study", "ffn", "--scale", "quick", "--dry-run", "--json", "--jobs", "1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert (figures["runs"], figures["done"], figures["target_tokens"]) == (10, 0, 5 * 250 * 1000)
    assert figures["hours"] > 0
    assert list(tmp_path.iterdir()) == []


def test_doctor_lists_rules_and_versions(plugin: Path) -> None:
    result = run("doctor", "--json", "--plugin", str(plugin))
    assert result.returncode == 0, result.stderr
    findings = json.loads(result.stdout)
    assert {"relu", "softmax", "gelu_mean"} <= set(findings["rules"])
    assert findings["implementations"][0] == "auto"


def test_doctor_names_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "_has", lambda module: module != "matplotlib")
    doctor.doctor()
    assert "reluformer[plots]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["study", "variance", "--rule", "rleu"], 1, "error: unknown rule 'rleu'; did you mean 'relu'"),
        (["doctor", "--plugin", "none.py"], 1, "error: --plugin none.py: no such file"),
        (["study", "variance", "--ruel", "x"], 2, "No such option"),
        (["deom"], 2, "No such command"),
        (["study", "varience"], 1, "error: unknown experiment 'varience'; did you mean 'variance'"),
        (["study", "ffn", "--scale", "smal"], 1, "error: unknown scale 'smal'; did you mean 'small'"),
        (["study", "ffn", "--scale", "small"], 1, "error: the set 'multi30k' is needed; say with --data FOLDER"),
        (["study", "ffn", "--shard", "3/2"], 1, "error: --shard 3/2: write it as i/n"),
    ],
)
def test_errors_are_one_line_with_a_way_out(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = run("--debug", "study", "variance", "--rule", "rleu", cwd=tmp_path)
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_version() -> None:
    assert run("--version").stdout.startswith("reluformer 0.")


@pytest.mark.parametrize("verb", [command.name for command in app.registered_commands])
def test_every_verb_shows_an_example(verb: str) -> None:
    result = CliRunner().invoke(app, [verb, "--help"])
    assert result.exit_code == 0
    assert f"Example: reluformer {verb}" in result.stdout
