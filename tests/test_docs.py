"""What the README and docs/ say about files, commands and code is true."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from reluformer.cli import app
from reluformer.study.plan import make_plan
from reluformer.study.results import Results, StudyDirectory
from reluformer.study.verdicts import judge

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")
FILE = re.compile(r"(?<![\w./-])((?:src|tests|benchmarks|configs|docs|notebooks)/[\w./-]+\.\w+)")
INLINE = re.compile(r"`(reluformer [^`]+)`")

LONG_SENTENCES = {
    "findings.md": "quotes the findings of the study with their conditions",
    "measurements.md": "each paragraph is one measurement with its machine and command",
    "kernels.md": "each paragraph is one measurement with its machine and command",
}
"""Pages whose sentences may be longer than those of the others, and why."""

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


CHECKS = """
assert out.shape == (2, 8, 256, 64)
assert 0 < stats.zero_fraction.mean() < 1
assert rf.read(q, k, v, rule="gelu_mean").shape == out.shape
"""


def test_the_python_of_the_readme_runs() -> None:
    """The blocks one after the other, as a reader would paste them, in a process of its own."""
    bodies = blocks(ROOT / "README.md", "python")
    assert len(bodies) == 2
    result = subprocess.run([sys.executable, "-c", "".join(bodies) + CHECKS], capture_output=True, check=False)
    assert result.returncode == 0, result.stderr.decode()


def prose(text: str) -> list[str]:
    """Return the sentences outside of code, tables, pictures and headings."""
    text = re.sub(r"!\[[^]]*\]\([^)]*\)", "", FENCE.sub("", text))
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^(#|\|).*$", "", text, flags=re.MULTILINE)
    items = re.split(r"\n\s*\n|^(?:\*|\d+\.) ", text, flags=re.MULTILINE)
    return [one for item in items for one in re.split(r"(?<=[.!?])\**\s+(?=[A-Z`*])", " ".join(item.split())) if one]


def count_words(text: str) -> int:
    return sum(any(character.isalnum() for character in word) for word in text.split())


def test_the_readme_is_short() -> None:
    """At most 900 words, code and tables included; sentences under 25 words, and under 16 on average."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert count_words(text) <= 900
    lengths = {sentence: count_words(sentence) for sentence in prose(text)}
    assert [sentence for sentence, length in lengths.items() if length >= 25] == []
    assert sum(lengths.values()) / len(lengths) < 16


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in LONG_SENTENCES], ids=lambda page: page.name
)
def test_sentences_of_a_page_are_short(page: Path) -> None:
    """At most 30 words, those of commands in the text included."""
    sentences = prose(page.read_text(encoding="utf-8"))
    assert [sentence for sentence in sentences if count_words(sentence) > 30] == []


def test_the_findings_of_the_readme_are_those_of_the_study() -> None:
    """Each verdict is the published one, and a row whose models do not translate says so.

    The verdicts on other papers, with letters of their own, stand in docs/paper-map.md alone.
    """
    content = json.loads((ROOT / "docs/results/study/small/results.json").read_text(encoding="utf-8"))
    published = {v["claim"]: v["verdict"] for v in content["verdicts"] if v["claim"][0] in "CPZ"}
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## What we found")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in section.splitlines() if "|" in line][2:]
    assert {row[0].split()[0]: row[1] for row in rows} == published
    for _, _, _, bleu, _ in rows:
        numbers = [float(number) for number in re.findall(r"\d+\.\d+", bleu)]
        assert ("none translates" in bleu) == any(number < 1 for number in numbers)


def test_published_verdicts_follow_from_the_published_results() -> None:
    """Judged anew from the result of every run, and entered into the map of the paper as they are."""
    folder = StudyDirectory(ROOT / "docs" / "results" / "study" / "small")
    published = json.loads((folder.path / "results.json").read_text(encoding="utf-8"))["verdicts"]
    plan = make_plan(list(dict.fromkeys(verdict["experiment"] for verdict in published)), "small", None)
    results = Results(plan, folder)
    judged = [
        (one.name, verdict.claim, verdict.verdict, list(verdict.reasons))
        for one in plan.experiments
        for verdict in (judge(one, j, results, "small") for j in one.verdicts if "small" in j.scales)
    ]
    assert sorted(judged) == sorted((v["experiment"], v["claim"], v["verdict"], v["reasons"]) for v in published)
    rows = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8").splitlines()
    for name, claim, verdict, _ in judged:
        row = next(row for row in rows if row.startswith(f"| {claim} "))
        assert f"`{name}`: {verdict}" in row.rpartition(" | ")[2]


def test_the_design_names_every_module_of_the_tree() -> None:
    source = ROOT / "src" / "reluformer"
    modules = {path.stem for path in source.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|", (ROOT / "docs" / "design.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == modules - {"__init__", "__main__"}
