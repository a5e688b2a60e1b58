"""Results are kept by run and in a table, and those of another version are not mixed in."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from reluformer.errors import StorageError
from reluformer.study import measures
from reluformer.study.plan import VERSION, Plan, Run, make_plan
from reluformer.study.results import StudyDirectory, publish, read_table, table_row, write_table
from reluformer.study.trainings import TELEMETRY

RUN = Run({"study": VERSION, "kind": "reads", "rule": "relu"})


@pytest.fixture
def study(tmp_path: Path) -> StudyDirectory:
    return StudyDirectory(tmp_path)


def test_results_of_another_version_are_counted_and_left_out(study: StudyDirectory) -> None:
    study.write_result(RUN, {"status": "finished"})
    assert study.result(RUN) is not None
    path = study.directory(RUN) / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "study": 0}))
    assert study.result(RUN) is None
    assert study.foreign() == {"0": 1}


def test_a_run_that_was_changed_by_hand_is_refused(study: StudyDirectory) -> None:
    study.write_run(RUN)
    assert study.read_run(RUN.address).content == RUN.content
    (study.directory(RUN) / "run.json").write_text(json.dumps({**RUN.content, "rule": "softmax"}))
    with pytest.raises(StorageError, match="was changed, it is not the run of its address"):
        study.read_run(RUN.address)


def test_a_damaged_result_says_what_to_do(study: StudyDirectory) -> None:
    study.write_result(RUN, {})
    (study.directory(RUN) / "result.json").write_text("{")
    with pytest.raises(StorageError, match=r"damaged .*; delete .* and run the study again"):
        study.result(RUN)


# ------------------------------------------------------------------ the table


@pytest.fixture
def recall() -> Plan:
    return make_plan(["recall"], "quick", 1)


def write_report(study: StudyDirectory) -> None:
    study.path.mkdir(parents=True, exist_ok=True)
    for name in ("report.md", "results.json"):
        (study.path / name).write_text("{}")


def test_a_table_is_a_directory_of_its_own_without_texts(tmp_path: Path, recall: Plan) -> None:
    study, public = StudyDirectory(tmp_path / "study"), tmp_path / "public"
    first, other, *_ = recall.runs.values()
    study.write_result(first, {"status": "finished", "seconds": 3.0, "accuracy": {"64": 1.0}, "curve": [1, 2]})
    (study.directory(first) / "translations.jsonl").write_text("{}\n")
    study.write_p_values(first.address, {other.address: 0.5})
    study.write_run(other)
    write_report(study)
    assert publish(recall, study, public) == 1
    assert sorted(path.name for path in public.iterdir()) == ["report.md", "results.json", "runs.jsonl.gz"]
    there = StudyDirectory(public)
    row = there.result(first)
    assert row is not None and row["run"] == first.content and row["accuracy"] == {"64": 1.0}
    assert "curve" not in row and row["title"] == recall.titles[first.address]
    assert row["command"].startswith("reluformer study recall --part ") and row["command"].endswith("--scale quick")
    assert there.p_values(first.address) == {other.address: 0.5}
    assert there.result(other) is None


def test_what_a_table_holds_is_not_run_again(tmp_path: Path, recall: Plan) -> None:
    runs = list(recall.runs.values())
    rows = [{"study": VERSION, "address": run.address, "status": "finished"} for run in runs[:-1]]
    study = StudyDirectory(tmp_path)
    write_table(study.table, rows)
    assert study.left(recall, list(recall.runs)) == [runs[-1].address]
    study.write_result(runs[0], {"status": "diverged"})
    assert (study.result(runs[0]) or {})["status"] == "diverged", "a run of the directory itself comes first"


def test_publishing_adds_to_a_table_and_the_same_results_are_the_same_file(tmp_path: Path, recall: Plan) -> None:
    first, other, *_ = recall.runs.values()
    for name, run in (("a", first), ("b", other)):
        study = StudyDirectory(tmp_path / name)
        study.write_result(run, {"status": "finished"})
        write_report(study)
        publish(recall, study, tmp_path / "public")
    path = tmp_path / "public" / "runs.jsonl.gz"
    assert set(read_table(path)) == {first.address, other.address}
    before = path.read_bytes()
    for name in ("b", "a"):
        publish(recall, StudyDirectory(tmp_path / name), tmp_path / "public")
    publish(recall, StudyDirectory(tmp_path / "public"), tmp_path / "public")
    assert path.read_bytes() == before


def test_rows_in_any_order_are_the_same_file(tmp_path: Path) -> None:
    rows = [{"address": letter, "study": VERSION} for letter in "abc"]
    paths = [tmp_path / "one.gz", tmp_path / "other.gz"]
    write_table(paths[0], rows)
    write_table(paths[1], rows[::-1])
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_every_metric_and_series_can_be_computed_from_a_row() -> None:
    """The telemetry that a row drops is telemetry that nothing reads."""
    reads = {
        name: {key: (i + 1.0) * (k + 2.0) for k, key in enumerate(TELEMETRY)}
        for i, name in enumerate(("encoder.0.attention", "encoder.0.ffn", "decoder.0.cross", "decoder.0.ffn"))
    }
    result: dict[str, Any] = {
        "status": "finished",
        "loss": 2.0,
        "valid": [{"step": 1, "loss": 2.0, "accuracy": 0.5}],
        "train": [{"step": 1, "nll": 2.0}],
        "accuracy": {"64": 0.5},
        "ceiling": {"64": 1.0},
        "telemetry": [{"step": step, "reads": reads} for step in (1, 2)],
    }
    row = table_row(result, {})
    assert len(json.dumps(row)) < len(json.dumps(result))
    arguments = {"speed": "speed@relu@softmax"}
    of_a_size = ("accuracy", "zeros_by_slots", "dead_by_slots", "l1_error", "class_zeros", "zeros_at_scale")
    of_rows = ("context_loss", "needles_found", "context_zeros", "pairs_skipped")
    arguments |= {name: f"{name}@64" for name in (*of_a_size, *of_rows)}
    for name in measures.MEASURES:
        metric = arguments.get(name, name)
        assert measures.value(metric, {"training": row}) == measures.value(metric, {"training": result}), name
    for name, series in measures.SERIES.items():
        assert series.points({"training": row}) == series.points({"training": result}), name


def test_pictures_are_published_but_for_a_smoke_test(tmp_path: Path, recall: Plan) -> None:
    study = StudyDirectory(tmp_path / "study")
    study.figures.mkdir(parents=True)
    for name in ("a.png", "a.svg", "a.json"):
        (study.figures / name).write_text("")
    write_report(study)
    small = make_plan(["recall"], "small", 1)
    for plan, expected in ((recall, []), (small, ["a.png"])):
        publish(plan, study, tmp_path / plan.scale)
        assert [path.name for path in (tmp_path / plan.scale / "figures").glob("*")] == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not compressed", "cannot read the table of runs"),
        (gzip.compress(b"{"), "damaged"),
        (gzip.compress(b'{"format": 0}\n'), "table of format 0, this version reads 1"),
    ],
    ids=["plain", "cut", "format"],
)
def test_a_damaged_table_says_what_to_do(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "runs.jsonl.gz").write_bytes(content)
    with pytest.raises(StorageError, match=message):
        StudyDirectory(tmp_path).result(RUN)
