"""The command line as a user types it: results, exit codes, messages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from reluformer.cli import app, doctor
from reluformer.cli.options import EXTRAS
from reluformer.errors import MissingExtraError

Invoke = Callable[..., Result]
Command = Callable[..., subprocess.CompletedProcess[str]]


def test_bench_compares_rules_with_softmax(command: Command) -> None:
    shape = ("--length", "24", "--length", "128", "--heads", "1", "--width", "8", "--repeats", "1")
    result = command("bench", *shape, "--causal", "--rule", "relu", "--rule", "sparsemax", "--json")
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


def test_bench_as_a_table(command: Command) -> None:
    result = command("bench", "--length", "16", "--heads", "1", "--width", "4", "--repeats", "1", "--rule", "relu")
    assert result.returncode == 0, result.stderr
    assert "as fast as softmax" in result.stdout and "sdpa" in result.stdout


def test_doctor_lists_rules_and_versions(command: Command, plugin: Path) -> None:
    result = command("doctor", "--json", "--plugin", str(plugin))
    assert result.returncode == 0, result.stderr
    findings = json.loads(result.stdout)
    assert {"relu", "softmax", "gelu_mean"} <= set(findings["rules"])
    assert findings["implementations"][0] == "auto"


def test_doctor_names_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for module in ("matplotlib", "scipy", "mkdocs"):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    doctor.doctor(as_json=True)
    missing = json.loads(capsys.readouterr().out)["missing_extras"]
    assert {
        "matplotlib (pip install 'reluformer[plots]')",
        "matplotlib, scipy (pip install 'reluformer[study]')",
        "mkdocs (pip install 'reluformer[docs]')",
    } <= set(missing)


def test_every_extra_of_the_package_is_known() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"dev", "triton"}
    for name, modules in EXTRAS.items():
        assert len(modules) == len(project["optional-dependencies"][name])


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (
            "matplotlib",
            ["demo", "--set", "training.updates=1"],
            "the report of the demo needs matplotlib; pip install ",
        ),
        ("matplotlib", ["study", "variance"], "the report of a study needs matplotlib; pip install "),
        ("scipy", ["study", "variance"], "the report of a study needs scipy; pip install 'reluformer[study]'"),
    ],
)
def test_a_command_checks_what_it_needs_before_it_starts(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, arguments: list[str], message: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(MissingExtraError, match=re.escape(message)):
        invoke(*arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_only_looks_needs_no_extra(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "variance" in invoke("study", "variance", "--list").stdout
    assert "variance" in invoke("study", "variance", "--dry-run").stdout


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
def test_errors_are_one_line_with_a_way_out(
    command: Command, tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    result = command(*arguments, cwd=tmp_path)
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback(command: Command, tmp_path: Path) -> None:
    result = command("--debug", "study", "variance", "--rule", "rleu", cwd=tmp_path)
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_help_imports_only_what_it_shows() -> None:
    """The start of every command is that of the help, so what only some commands need is imported by them."""
    code = "import sys, reluformer.cli; print(*sys.modules)"
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(started.stdout.split())
    assert not loaded & {"torch", "numpy", "pydantic", "yaml", "hashlib", "rich.live", "rich.progress"}


def test_version(command: Command) -> None:
    pattern = r"reluformer \d+\.\d+\.\d+( \(commit [0-9a-f]{7,}\))?, kernel: (avx512|avx2|portable|none)\n"
    assert re.fullmatch(pattern, command("--version").stdout)


@pytest.mark.parametrize("verb", [command.name for command in app.registered_commands])
def test_every_verb_shows_an_example(verb: str) -> None:
    result = CliRunner().invoke(app, [verb, "--help"])
    assert result.exit_code == 0
    assert f"Example: reluformer {verb}" in result.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("arguments", [("recipe",), ("doctor", "--json"), ("data", "list")])
def test_a_full_disk_is_an_error_and_no_traceback(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "reluformer", *arguments]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "error: the output cannot be written: No space left on device; free some space, or write it elsewhere"
    ]
