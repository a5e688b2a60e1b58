"""The results in docs/results are complete, small, and listed in their index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reluformer.study.experiment import names
from reluformer.study.plan import VERSION, Run, make_plan
from reluformer.study.results import StudyDirectory, write_table

RESULTS = Path(__file__).parents[2] / "docs" / "results"
STUDIES = [StudyDirectory(path) for path in sorted((RESULTS / "study").iterdir())]

every_study = pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.path.name)


def test_the_index_lists_every_file_and_no_other() -> None:
    text = (RESULTS / "README.md").read_text(encoding="utf-8").partition("## All files")[2]
    first_cells = " ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    listed = {name.rstrip("/") for name in re.findall(r"`([^`]+)`", first_cells)}
    single = {path.name for path in RESULTS.iterdir() if path.name not in ("README.md", "study")}
    assert listed == single | {f"study/{study.path.name}" for study in STUDIES}


@every_study
def test_every_row_is_the_run_of_its_address_and_says_where_it_comes_from(study: StudyDirectory) -> None:
    assert study.published
    for address, row in study.published.items():
        assert Run(row["run"]).address == address
        assert row["study"] == VERSION
        assert row["command"].startswith("reluformer study ") and row["made_by"]["torch"]


@every_study
def test_writing_the_same_rows_changes_nothing(study: StudyDirectory, tmp_path: Path) -> None:
    before = study.table.read_bytes()
    (tmp_path / "runs.jsonl.gz").write_bytes(before)
    write_table(tmp_path / "runs.jsonl.gz", reversed(list(study.published.values())))
    assert (tmp_path / "runs.jsonl.gz").read_bytes() == before


def test_a_study_resumes_from_the_table() -> None:
    """At scale quick everything is published, and only models are missing for what is not."""
    study = StudyDirectory(RESULTS / "study" / "quick")
    plan = make_plan(names(), "quick", 1)
    assert study.left(plan, list(plan.runs)) == []


@every_study
def test_the_pictures_of_the_report_are_there(study: StudyDirectory) -> None:
    pictures = re.findall(r"\]\((figures/[^)]+)\)", (study.path / "report.md").read_text(encoding="utf-8"))
    assert all((study.path / picture).is_file() for picture in pictures)
    assert {path.name for path in study.figures.glob("*.png")} <= {Path(p).name for p in pictures} or not pictures
