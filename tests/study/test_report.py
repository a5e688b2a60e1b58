"""The report from results that are there, without any training."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reluformer.study import report
from reluformer.study.folder import StudyFolder
from reluformer.study.plan import Plan, make_plan

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
def folder(tmp_path: Path, plan: Plan) -> StudyFolder:
    folder = StudyFolder(tmp_path)
    for cell in plan.cells:
        training, examined = cell.runs
        folder.write_result(training, finished(cell.labels["rule"], cell.seed))
        translations = {"bleu": 40 - 10 * LOSSES[cell.labels["rule"]] + cell.seed, "d_bleu": 20.0}
        folder.write_result(examined, {"status": "finished", "translations": translations})
    return folder


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pictures, which take most of the time."""
    monkeypatch.setattr(report, "_draw", lambda *arguments: None)


@pytest.mark.usefixtures("undrawn")
def test_verdicts_follow_from_the_numbers(plan: Plan, folder: StudyFolder) -> None:
    written = report.write(plan, folder)
    assert [(v.claim, v.word) for v in written.verdicts] == [("C1", "reproduced"), ("C2", "reproduced")]
    assert any(
        "softmax worse than relu in validation cross-entropy: holds" in reason for reason in written.verdicts[0].reasons
    )


def test_the_page_and_its_figures(plan: Plan, folder: StudyFolder) -> None:
    report.write(plan, folder)
    page = (folder.path / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3
    assert not re.search(r"""(src|href)=["']?https?:""", page.replace('xmlns:xlink="http', "")), "it stands alone"
    assert "ReLU 34.22, Softmax 33.08" in page and "validation cross-entropy: softmax 2.5" in page, (
        "the paper's figures and ours"
    )
    text = (folder.path / "report.md").read_text(encoding="utf-8")
    assert "![Learning](figures/ffn-curves.png)" in text
    assert "| C1 | `ffn` |" in text
    names = {path.stem for path in folder.figures.iterdir()}
    assert names == {"ffn-loss", "ffn-curves", "ffn-variance"}
    for name in names:
        assert (folder.figures / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert (folder.figures / f"{name}.svg").read_text().startswith("<svg")
    data = json.loads((folder.figures / "ffn-loss.json").read_text())
    losses = data["panels"][0]["series"][0]["points"]
    assert [point["x"] for point in losses] == list(LOSSES)
    assert losses[0]["low"] < losses[0]["y"] < losses[0]["high"]


@pytest.mark.usefixtures("undrawn")
def test_what_contradicts_the_paper_comes_first(plan: Plan, folder: StudyFolder) -> None:
    both = make_plan(["variance", "ffn"], "small", 3)
    assert _headings(both, folder) == ["variance", "ffn"], "in their order while nothing does"
    for cell in plan.cells:
        if cell.labels["rule"] == "softmax":
            folder.write_result(cell.runs[0], finished("relu", cell.seed))
    assert _headings(both, folder) == ["ffn", "variance"]
    assert "Not as in the paper: C1 and C2 (ffn)." in (folder.path / "report.md").read_text(encoding="utf-8")


def _headings(plan: Plan, folder: StudyFolder) -> list[str]:
    report.write(plan, folder)
    return re.findall(r"^## .*\(`(\w+)`\)", (folder.path / "report.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.usefixtures("undrawn")
def test_without_a_seed_it_is_inconclusive(plan: Plan, folder: StudyFolder) -> None:
    for cell in plan.cells:
        if cell.seed == 2:
            (folder.directory(cell.runs[0]) / "result.json").unlink()
    written = report.write(plan, folder)
    assert {verdict.word for verdict in written.verdicts} == {"inconclusive"}


def test_a_diverged_run_is_shown_and_counts_as_worse(plan: Plan, folder: StudyFolder) -> None:
    for cell in plan.cells:
        if cell.labels["rule"] == "softmax":
            folder.write_result(cell.runs[0], {"status": "diverged", "seconds": 1.0, "lr": 0.004, "loss": None})
            folder.write_result(cell.runs[1], {"status": "diverged"})
    written = report.write(plan, folder)
    assert written.verdicts[0].word == "reproduced"
    assert "diverged" in (folder.path / "report.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("undrawn")
def test_a_training_in_parts_counts_as_a_whole(plan: Plan, folder: StudyFolder) -> None:
    before = report.write(plan, folder).notes
    folder.write_result(plan.cells[0].runs[0], {**finished("relu", 0), "training_seconds": 3600.0})
    assert before != report.write(plan, folder).notes == ["30 of 40 runs are done; together they took 60 minutes."]


@pytest.mark.usefixtures("undrawn")
def test_results_of_another_version_are_told(plan: Plan, folder: StudyFolder) -> None:
    path = folder.directory(plan.cells[0].runs[0]) / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "study": 0}))
    assert any("1 result was written by version 0" in note for note in report.write(plan, folder).notes)


@pytest.mark.usefixtures("undrawn")
def test_paired_bootstrap_where_translations_exist(plan: Plan, folder: StudyFolder) -> None:
    references = [["ein kleiner Hund läuft schnell"], ["die Katze schläft auf dem Dach"]] * 6
    for cell in plan.cells:
        if cell.labels["rule"] in ("relu", "softmax") and cell.seed == 0:
            hypotheses = references if cell.labels["rule"] == "relu" else [["ein Hund"]] * 12
            for name, documents in (("translations", hypotheses), ("references", references)):
                lines = "\n".join(json.dumps({"hyp": document}) for document in documents)
                (folder.directory(cell.runs[1]) / f"{name}.jsonl").write_text(lines + "\n", encoding="utf-8")
    for _ in range(2):  # the second time without the translations, as from results that were published
        report.write(plan, folder)
        text = (folder.path / "report.md").read_text(encoding="utf-8")
        assert "softmax against relu: seed 0: p = 0.00" in text
        assert "seed 1: translations not kept" in text
        for path in folder.runs.glob("*/*.jsonl"):
            path.unlink()


@pytest.mark.usefixtures("undrawn")
def test_corpora_that_differ_are_told(plan: Plan, folder: StudyFolder) -> None:
    corpus = {"tokenizer": "a0", "train_target_tokens": 400}
    for cell in plan.cells:
        folder.write_result(cell.runs[0], {**finished(cell.labels["rule"], cell.seed), "data": corpus})
    assert len(report.write(plan, folder).notes) == 1
    folder.write_result(plan.cells[0].runs[0], {**finished("relu", 0), "data": {**corpus, "tokenizer": "b1"}})
    assert any(
        "runs on multi30k were made with corpora that differ" in note for note in report.write(plan, folder).notes
    )


def test_quick_is_smoke(tmp_path: Path) -> None:
    plan = make_plan(["ffn"], "quick", 1)
    assert {verdict.word for verdict in report.write(plan, StudyFolder(tmp_path)).verdicts} == {"smoke: inconclusive"}
