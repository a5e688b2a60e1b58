"""The report from results that are there, without any training."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reluformer.errors import DataError
from reluformer.study import report
from reluformer.study.plan import Plan, make_plan
from reluformer.study.report import enter_verdicts
from reluformer.study.results import StudyDirectory, publish
from reluformer.study.verdicts import Verdict

pytest.importorskip("matplotlib", reason="needs reluformer[plots]")

LOSSES = {
    "relu": 2.0,
    "softmax": 2.2,
    "softmax_ln": 2.001,
    "softmax_sqrt": 2.1,
    "softmax_scaled": 2.15,
}
RATIOS = {"softmax": 0.001}


def finished(rule: str, seed: int) -> dict[str, Any]:
    """A training of `ffn` as its worker would leave it; seeds differ by more than the rules do."""
    loss = LOSSES[rule] + 0.3 * seed + 0.001 * ((seed * 7) % 3)
    read = {"rule": rule, "output_variance": RATIOS.get(rule, 1.0), "residual_variance": 1.0}
    return {
        "status": "finished",
        "seconds": 1.0,
        "lr": 0.004,
        "loss": loss,
        "valid": [{"step": 1, "loss": 2 * loss}, {"step": 2, "loss": loss}],
        "telemetry": [{"step": 2, "reads": {"encoder.0.ffn": read, "decoder.0.ffn": read}}],
    }


@pytest.fixture
def plan() -> Plan:
    return make_plan(["ffn"], "small", 3)


@pytest.fixture
def study(tmp_path: Path, plan: Plan) -> StudyDirectory:
    study = StudyDirectory(tmp_path)
    for cell in plan.cells:
        training, evaluation = cell.runs
        study.write_result(training, finished(cell.labels["rule"], cell.seed))
        translations = {"bleu": 40 - 10 * LOSSES[cell.labels["rule"]] + cell.seed, "d_bleu": 20.0}
        study.write_result(evaluation, {"status": "finished", "translations": translations})
    return study


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pictures, which take most of the time."""
    monkeypatch.setattr(report, "draw_figure", lambda *arguments: None)


@pytest.mark.usefixtures("undrawn")
def test_verdicts_follow_from_the_numbers(plan: Plan, study: StudyDirectory) -> None:
    written = report.write(plan, study)
    assert [(v.claim, v.word) for v in written.verdicts] == [("C1", "reproduced"), ("C2", "reproduced")]
    assert any(
        "softmax worse than relu in validation cross-entropy: holds" in reason for reason in written.verdicts[0].reasons
    )


def test_the_page_and_its_figures(plan: Plan, study: StudyDirectory) -> None:
    report.write(plan, study)
    page = (study.path / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3
    assert not re.search(r"""(src|href)=["']?https?:""", page.replace('xmlns:xlink="http', "")), "it stands alone"
    assert "ReLU 34.22, Softmax 33.08" in page and "validation cross-entropy: softmax 2.5" in page, (
        "the paper's figures and ours"
    )
    text = (study.path / "report.md").read_text(encoding="utf-8")
    assert "![Learning](figures/ffn-curves.png)" in text
    assert "| C1 | `ffn` |" in text
    names = {path.stem for path in study.figures.iterdir()}
    assert names == {"ffn-loss", "ffn-curves", "ffn-variance"}
    for name in names:
        assert (study.figures / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert (study.figures / f"{name}.svg").read_text().startswith("<svg")
    data = json.loads((study.figures / "ffn-loss.json").read_text())
    losses = data["panels"][0]["series"][0]["points"]
    assert [point["x"] for point in losses] == list(LOSSES)
    assert losses[0]["low"] < losses[0]["y"] < losses[0]["high"]


@pytest.mark.usefixtures("undrawn")
def test_what_contradicts_the_paper_comes_first(plan: Plan, study: StudyDirectory) -> None:
    both = make_plan(["variance", "ffn"], "small", 3)
    assert _headings(both, study) == ["variance", "ffn"], "in their order while nothing does"
    for cell in plan.cells:
        if cell.labels["rule"] == "softmax":
            study.write_result(cell.runs[0], finished("relu", cell.seed))
    assert _headings(both, study) == ["ffn", "variance"]
    assert "Not as in the paper: C1 and C2 (ffn)." in (study.path / "report.md").read_text(encoding="utf-8")


def _headings(plan: Plan, study: StudyDirectory) -> list[str]:
    report.write(plan, study)
    return re.findall(r"^## .*\(`(\w+)`\)", (study.path / "report.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.usefixtures("undrawn")
def test_without_a_seed_it_is_inconclusive(plan: Plan, study: StudyDirectory) -> None:
    for cell in plan.cells:
        if cell.seed == 2:
            (study.directory(cell.runs[0]) / "result.json").unlink()
    written = report.write(plan, study)
    assert {verdict.word for verdict in written.verdicts} == {"inconclusive"}


def test_a_diverged_run_is_shown_and_counts_as_worse(plan: Plan, study: StudyDirectory) -> None:
    for cell in plan.cells:
        if cell.labels["rule"] == "softmax":
            study.write_result(cell.runs[0], {"status": "diverged", "seconds": 1.0, "lr": 0.004, "loss": None})
            study.write_result(cell.runs[1], {"status": "diverged"})
    written = report.write(plan, study)
    assert written.verdicts[0].word == "reproduced"
    assert "diverged" in (study.path / "report.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("undrawn")
def test_a_training_in_parts_counts_as_a_whole(plan: Plan, study: StudyDirectory) -> None:
    before = report.write(plan, study).notes
    study.write_result(plan.cells[0].runs[0], {**finished("relu", 0), "training_seconds": 3600.0})
    assert before != report.write(plan, study).notes == ["30 of 40 runs are done; together they took 60 minutes."]


@pytest.mark.usefixtures("undrawn")
def test_results_of_another_version_are_told(plan: Plan, study: StudyDirectory) -> None:
    path = study.directory(plan.cells[0].runs[0]) / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "study": 0}))
    assert any("1 result was written by version 0" in note for note in report.write(plan, study).notes)


@pytest.mark.usefixtures("undrawn")
def test_paired_bootstrap_where_translations_exist(plan: Plan, study: StudyDirectory) -> None:
    references = [["ein kleiner Hund läuft schnell"], ["die Katze schläft auf dem Dach"]] * 6
    for cell in plan.cells:
        if cell.labels["rule"] in ("relu", "softmax") and cell.seed == 0:
            hypotheses = references if cell.labels["rule"] == "relu" else [["ein Hund"]] * 12
            for name, documents in (("translations", hypotheses), ("references", references)):
                lines = "\n".join(json.dumps({"hyp": document}) for document in documents)
                (study.directory(cell.runs[1]) / f"{name}.jsonl").write_text(lines + "\n", encoding="utf-8")
    for _ in range(2):  # the second time without the translations, as from results that were published
        report.write(plan, study)
        text = (study.path / "report.md").read_text(encoding="utf-8")
        assert "softmax against relu: seed 0: p = 0.00" in text
        assert "seed 1: translations not kept" in text
        for path in study.runs.glob("*/*.jsonl"):
            path.unlink()


@pytest.mark.usefixtures("undrawn")
def test_corpora_that_differ_are_told(plan: Plan, study: StudyDirectory) -> None:
    corpus = {"tokenizer": "a0", "train_target_tokens": 400}
    for cell in plan.cells:
        study.write_result(cell.runs[0], {**finished(cell.labels["rule"], cell.seed), "data": corpus})
    assert len(report.write(plan, study).notes) == 1
    study.write_result(plan.cells[0].runs[0], {**finished("relu", 0), "data": {**corpus, "tokenizer": "b1"}})
    assert any(
        "runs on multi30k were made with corpora that differ" in note for note in report.write(plan, study).notes
    )


def test_quick_is_smoke(tmp_path: Path) -> None:
    plan = make_plan(["ffn"], "quick", 1)
    assert {verdict.word for verdict in report.write(plan, StudyDirectory(tmp_path)).verdicts} == {
        "smoke: inconclusive"
    }


@pytest.mark.usefixtures("undrawn")
def test_models_that_do_not_translate_are_reported(plan: Plan, study: StudyDirectory) -> None:
    assert {verdict.translates for verdict in report.write(plan, study).verdicts} == {True}
    for cell in plan.cells:
        if cell.labels["rule"] == "softmax":
            study.write_result(cell.runs[1], {"status": "finished", "translations": {"bleu": 0.5 + 0.3 * cell.seed}})
    first, second = report.write(plan, study).verdicts
    assert (first.translates, second.translates) == (False, True), "the second one does not rest on a BLEU of softmax"
    text = (study.path / "report.md").read_text(encoding="utf-8")
    assert text.count("reproduced (models do not translate: BLEU under 1)") == 2
    assert "models do not translate: BLEU under 1" in (study.path / "report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("undrawn")
def test_the_report_from_a_table_is_the_report(tmp_path: Path, plan: Plan, study: StudyDirectory) -> None:
    report.write(plan, study)
    assert publish(plan, study, tmp_path / "public") == 30
    published = {name: (tmp_path / "public" / name).read_text() for name in ("report.md", "results.json")}
    report.write(plan, StudyDirectory(tmp_path / "public"))
    assert {name: (tmp_path / "public" / name).read_text() for name in published} == published


def test_publishing_before_anything_is_done(tmp_path: Path) -> None:
    plan, study = make_plan(["recall"], "quick", 1), StudyDirectory(tmp_path / "study")
    report.write(plan, study)
    assert publish(plan, study, tmp_path / "public" / "quick") == 0
    assert (tmp_path / "public" / "quick" / "report.md").is_file()


# ------------------------------------------------------------------ the table of claims

TABLE = """# Map

| claim | code | verdict |
| --- | --- | --- |
| C1 first | `a.py` | none yet |
| C10 tenth | `b.py` | none yet |
"""


def verdict(claim: str, experiment: str = "ffn", smoke: bool = False) -> Verdict:
    return Verdict(claim, experiment, "reproduced", smoke, (), ())


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


def test_a_remark_enters_the_table_and_stays_there(tmp_path: Path) -> None:
    path = tmp_path / "map.md"
    path.write_text(TABLE)
    enter_verdicts(path, [Verdict("C1", "ffn", "reproduced", False, (), (), translates=False)])
    enter_verdicts(path, [verdict("C1", "slots")])
    remark = "models do not translate: BLEU under 1"
    assert f"| `ffn`: reproduced ({remark}); `slots`: reproduced |" in path.read_text()


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
