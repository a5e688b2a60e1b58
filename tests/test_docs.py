"""What the README and docs/ say about files, commands and code is true."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from reluformer.cli import app
from reluformer.rules import registry
from reluformer.study.plan import make_plan
from reluformer.study.results import Results, StudyDirectory
from reluformer.study.verdicts import judge

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")
FILE = re.compile(r"(?<![\w./-])((?:src|tests|benchmarks|configs|docs|notebooks)/[\w./-]+\.\w+)")
INLINE = re.compile(r"`(reluformer [^`]+)`")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(page.read_text(encoding="utf-8")) if kind == language]


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link, _ in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))]
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@every_page
def test_files_that_are_named_exist(page: Path) -> None:
    missing = [name for name in FILE.findall(page.read_text(encoding="utf-8")) if not (ROOT / name).exists()]
    assert not missing


def commands(page: Path) -> Iterator[list[str]]:
    """Every command line of ours, in a block or in a sentence, without its comment."""
    text = page.read_text(encoding="utf-8")
    lines = [" ".join(line.split()) for line in INLINE.findall(FENCE.sub("", text).replace("\n", " "))]
    for block in blocks(page, ""):
        lines += re.sub(r"\\\n", " ", block).splitlines()
    for line in lines:
        words = shlex.split(line.replace("[", " ").replace("]", " "), comments=True)
        if "reluformer" in words:
            yield words[words.index("reluformer") + 1 :]


@every_page
def test_commands_have_these_verbs_and_options(page: Path) -> None:
    for words in commands(page):
        command: Any = typer.main.get_command(app)
        while hasattr(command, "commands") and words and not words[0].startswith("-"):
            assert words[0] in command.commands, f"there is no verb {words[0]}"
            command = command.commands[words.pop(0)]
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
        used = {word.partition("=")[0] for word in words if word.startswith("--") and word != "--"}
        assert used <= known, f"{command.name} has no {', '.join(sorted(used - known))}"


def test_the_readme_names_enough_commands_to_be_worth_checking() -> None:
    assert len(list(commands(ROOT / "README.md"))) > 10


@every_page
def test_python_is_python(page: Path) -> None:
    for i, body in enumerate(blocks(page, "python")):
        assert compile(body, f"{page.name} block {i}", "exec")


def test_the_readme_in_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of "In Python", one after the other, as a reader would paste them."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## In Python\n")[2].partition("\n## ")[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    names: dict[str, Any] = {}
    bodies = [body for kind, body in FENCE.findall(section) if kind == "python"]
    for body in bodies:
        exec(body, names)
    assert len(bodies) == 2
    assert names["out"].shape == (2, 8, 256, 64) and names["logits"].shape == (2, 20, 8000)
    assert (tmp_path / "my_model").is_dir()
    assert "gelu_mean" in registry._registry


def test_published_verdicts_follow_from_the_published_results() -> None:
    """Judged anew from the result of every run, and entered into the map of the paper as they are."""
    folder = StudyDirectory(ROOT / "docs" / "results" / "study" / "small")
    published = json.loads((folder.path / "results.json").read_text(encoding="utf-8"))["verdicts"]
    plan = make_plan(list(dict.fromkeys(verdict["experiment"] for verdict in published)), "small", 3)
    results = Results(plan, folder)
    judged = [
        (one.name, verdict.claim, verdict.verdict, list(verdict.reasons))
        for one in plan.experiments
        for verdict in (judge(one, judgement, results, "small") for judgement in one.verdicts)
    ]
    assert sorted(judged) == sorted((v["experiment"], v["claim"], v["verdict"], v["reasons"]) for v in published)
    rows = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8").splitlines()
    for name, claim, verdict, _ in judged:
        row = next(row for row in rows if row.startswith(f"| {claim} "))
        assert f"`{name}`: {verdict}" in row.rpartition(" | ")[2]
