"""The runner with real processes: what is done stays done, what fails takes nothing else down."""

from __future__ import annotations

from pathlib import Path

import pytest

from reluformer.study import runner as running
from reluformer.study.measures import EVALUATION
from reluformer.study.plan import VERSION, Cell, Plan, Run
from reluformer.study.results import StudyDirectory
from reluformer.study.runner import Options, Outlook, Runner
from reluformer.study.worker import lock


def read(rule: str) -> Run:
    content = {"rule": rule, "slots": [16], "correlations": [0.0], "seed": 0}
    return Run({"study": VERSION, "kind": "reads", **content})


def plan_of(*runs: Run) -> Plan:
    plan = Plan("quick", [])
    for number, run in enumerate(runs):
        plan.add(Cell("test", "part", {"rule": str(number)}, 0, (run,)))
    return plan


def test_a_failure_is_reported_and_what_needs_it_is_left_out(tmp_path: Path) -> None:
    good, bad = read("relu"), read("no_such_rule")
    needs_bad = Run({"study": VERSION, "kind": EVALUATION, "of": bad.content, "split": "test", "measures": []})
    study = StudyDirectory(tmp_path)
    outlook = Runner(plan_of(good, bad, needs_bad), study, Options(jobs=2)).run()
    assert outlook.states == {good.address: "done", bad.address: "failed", needs_bad.address: "left out"}
    assert "unknown rule 'no_such_rule'" in outlook.failures[bad.address]
    result = study.result(good)
    assert result is not None
    assert result["made_by"]["torch"]


def test_a_process_that_was_killed_is_not_blamed_for_an_older_error(tmp_path: Path) -> None:
    run, study = read("relu"), StudyDirectory(tmp_path)
    study.write_run(run)
    (study.directory(run) / "worker.log").write_text("error: corpus not found\n")
    assert Runner(plan_of(run), study, Options()).last_words(run.address, -9).startswith("killed by signal 9")


def test_what_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, study = read("relu"), StudyDirectory(tmp_path)
    study.write_result(run, {"seconds": 1})
    runner = Runner(plan_of(run), study, Options())
    monkeypatch.setattr(running.subprocess, "Popen", None)
    assert runner.run().states == {run.address: "done"}


def test_a_training_is_done_again_only_where_its_model_is_missed(tmp_path: Path, make_run) -> None:
    """Published results come without models."""
    start, alone = make_run(), make_run({"training.seed": 1})
    goes_on = make_run({"training.lr": None, "training.updates": 2, "start": dict(start.content)})
    plan, study = plan_of(goes_on, alone), StudyDirectory(tmp_path)
    for run in (start, alone):
        study.write_result(run, {"status": "finished", "seconds": 1, "lr": 0.01})
    assert study.left(plan, list(plan.runs)) == [start.address, goes_on.address]
    assert set(Runner(plan, study, Options()).run().states.values()) == {"done"}
    assert study.left(plan, list(plan.runs)) == []
    assert (study.result(start) or {})["valid"], "trained, and its result written anew"
    assert (study.result(goes_on) or {})["valid"]
    assert not study.training(alone).exists()


def test_nobody_misses_the_model_of_a_training_that_diverged(tmp_path: Path, make_run) -> None:
    start = make_run()
    goes_on = make_run({"training.lr": None, "start": dict(start.content)})
    plan, study = plan_of(goes_on), StudyDirectory(tmp_path)
    study.write_result(start, {"status": "diverged", "seconds": 1})
    assert study.left(plan, list(plan.runs)) == [goes_on.address]


def test_a_run_of_another_process_is_waited_for(tmp_path: Path) -> None:
    run, study = read("relu"), StudyDirectory(tmp_path)
    seen: list[str] = []
    with lock(study.directory(run)):

        def other_process_finishes(outlook: Outlook) -> None:
            seen.append(outlook.states[run.address])
            study.write_result(run, {"seconds": 1})

        Runner(plan_of(run), study, Options()).run(other_process_finishes)
    assert seen == ["elsewhere", "done"]


def test_an_interruption_leaves_the_rest_for_the_next_time(tmp_path: Path) -> None:
    runs = [read("relu"), read("softmax")]

    def interrupt(outlook: Outlook) -> None:
        if not outlook.interrupted:
            raise KeyboardInterrupt

    study = StudyDirectory(tmp_path)
    outlook = Runner(plan_of(*runs), study, Options(jobs=1)).run(interrupt)
    assert outlook.interrupted
    assert set(outlook.states.values()) == {"waiting"}
    again = Runner(plan_of(*runs), study, Options(jobs=2)).run()
    assert set(again.states.values()) == {"done"}
