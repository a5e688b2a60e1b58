"""Results for a repository, and verdicts in a table of claims."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reluformer import files
from reluformer.errors import DataError
from reluformer.study import report
from reluformer.study.folder import StudyFolder
from reluformer.study.plan import make_plan
from reluformer.study.publishing import enter_verdicts, publish
from reluformer.study.verdicts import Verdict

TABLE = """# Map

| claim | code | verdict |
| --- | --- | --- |
| C1 first | `a.py` | none yet |
| C10 tenth | `b.py` | none yet |
"""


def verdict(claim: str, experiment: str = "ffn", smoke: bool = False) -> Verdict:
    return Verdict(claim, experiment, "reproduced", smoke, (), ())


def test_results_without_texts(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs reluformer[plots]")
    plan = make_plan(["recall"], "quick", 1)
    folder = StudyFolder(tmp_path / "study")
    first, *others = plan.runs.values()
    folder.write_result(first, {"status": "finished", "seconds": 3.0, "accuracy": {"64": 1.0}})
    (folder.directory(first) / "translations.jsonl").write_text("{}\n")
    files.write_json(folder.bootstrap(first.address), {others[0].address: 0.5})
    folder.write_run(others[0])
    report.write(plan, folder)
    assert publish(plan, folder, tmp_path / "public") == 1
    there = StudyFolder(tmp_path / "public")
    assert there.result(first) == folder.result(first)
    assert sorted(path.name for path in there.directory(first).iterdir()) == ["bootstrap.json", "result.json"]
    assert [path.name for path in there.runs.iterdir()] == [first.address]
    assert json.loads((there.path / "results.json").read_text())["scale"] == "quick"


def test_verdicts_enter_the_rows_of_their_claims(tmp_path: Path) -> None:
    path = tmp_path / "map.md"
    path.write_text(TABLE)
    enter_verdicts(path, [verdict("C1"), verdict("C1", "slots")])
    once = path.read_text()
    assert "| C1 first | `a.py` | `ffn`: reproduced; `slots`: reproduced |\n" in once
    assert "| C10 tenth | `b.py` | none yet |\n" in once
    enter_verdicts(path, [verdict("C1"), verdict("C1", "slots")])
    assert path.read_text() == once
    enter_verdicts(path, [verdict("C1", "recall")])
    assert "`ffn`: reproduced; `slots`: reproduced; `recall`: reproduced |" in path.read_text()


def test_publishing_before_anything_is_done(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs reluformer[plots]")
    plan, folder = make_plan(["recall"], "quick", 1), StudyFolder(tmp_path / "study")
    report.write(plan, folder)
    assert publish(plan, folder, tmp_path / "public" / "quick") == 0
    assert (tmp_path / "public" / "quick" / "report.md").is_file()


def test_a_smoke_test_has_no_place_in_the_table(tmp_path: Path) -> None:
    path = tmp_path / "map.md"
    path.write_text(TABLE)
    with pytest.raises(DataError, match="smoke test"):
        enter_verdicts(path, [verdict("C1", smoke=True)])
    assert path.read_text() == TABLE


def test_a_claim_without_a_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "map.md"
    path.write_text(TABLE)
    with pytest.raises(DataError, match="begins with C2"):
        enter_verdicts(path, [verdict("C2")])
