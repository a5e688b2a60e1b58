from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reluformer.config import load_yaml
from reluformer.errors import ConfigError, StorageError
from reluformer.models import storage
from reluformer.training.run import RunDirectory, RunLog, find_run
from reluformer.translation.recipe import Recipe


def test_recipe_comes_back(make_recipe: Any, tmp_path: Path) -> None:
    recipe = make_recipe(regularizer={}, model={"encoder_attention": {"name": "relu", "gamma": 2.0}})
    run = RunDirectory(tmp_path / "run")
    run.begin(recipe)
    assert run.recipe(Recipe) == recipe
    assert load_yaml(Recipe, tmp_path / "run/recipe.yaml").model_config_for(300) == recipe.model_config_for(300)


def test_another_recipe_is_refused_with_the_keys_that_differ(make_recipe: Any, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.begin(make_recipe())
    with pytest.raises(ConfigError, match=r"model\.width \(32 -> 64\), training\.lr"):
        run.check_resumable(make_recipe(model={"width": 64}, lr=1.0))


def test_limits_may_change_on_the_way(make_recipe: Any, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.begin(make_recipe())
    run.check_resumable(make_recipe(updates=100, patience=3, checkpoint_every=7))
    spelled_out = dict.fromkeys(("encoder_attention", "decoder_attention", "cross_attention"), "relu")
    run.check_resumable(make_recipe(model={"architecture": "transformer", **spelled_out}))
    assert run.exists


def test_a_cosine_does_not_stretch(make_recipe: Any, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.begin(make_recipe(schedule="cosine"))
    with pytest.raises(ConfigError, match=r"training\.updates"):
        run.check_resumable(make_recipe(schedule="cosine", updates=100))


def test_a_directory_of_something_else_is_refused(make_recipe: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(StorageError, match=r"thesis\.tex"):
        RunDirectory(tmp_path).begin(make_recipe())
    assert (tmp_path / "thesis.tex").read_text() == "precious"


@pytest.mark.parametrize("name", ["checkpoints", storage.WEIGHTS, storage.CONFIG, "tokenizer.json", "evaluation"])
def test_what_only_looks_like_a_part_of_a_run_is_kept(make_recipe: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / name).write_text("precious")
    with pytest.raises(StorageError, match=f"not a run, it holds {name}"):
        RunDirectory(tmp_path).begin(make_recipe())
    assert (tmp_path / name).read_text() == "precious"


def test_a_kill_while_a_run_is_deleted_is_not_in_the_way(
    make_recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path)
    run.begin(make_recipe())
    (tmp_path / "evaluation").mkdir()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            run.begin(make_recipe(lr=1.0))
    run.begin(make_recipe(lr=1.0))
    assert run.recipe(Recipe) == make_recipe(lr=1.0)
    assert not (tmp_path / "evaluation").exists()


def test_what_a_kill_left_half_written_is_not_in_the_way(make_recipe: Any, tmp_path: Path) -> None:
    (tmp_path / ".recipe.yaml.reluformer-3f080efa.partial").write_text("data:")
    RunDirectory(tmp_path).begin(make_recipe())
    assert RunDirectory(tmp_path).recipe(Recipe) == make_recipe()


def test_a_partial_download_of_another_program_is_kept(make_recipe: Any, tmp_path: Path) -> None:
    (tmp_path / "film.partial").write_text("precious")
    with RunDirectory(tmp_path).alone(), pytest.raises(StorageError, match=r"not a run, it holds film\.partial"):
        RunDirectory(tmp_path).begin(make_recipe())
    assert (tmp_path / "film.partial").read_text() == "precious"


def test_early_stopping_needs_a_validation_split(make_recipe: Any) -> None:
    with pytest.raises(ConfigError, match=r"training\.patience needs.*data\.valid"):
        make_recipe(data={"valid": None}, patience=2)


def test_a_file_in_the_way_is_named(make_recipe: Any, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(StorageError, match="is a file"):
        RunDirectory(tmp_path / "run").begin(make_recipe())


def test_a_new_run_deletes_what_the_old_one_made_and_nothing_else(make_recipe: Any, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.begin(make_recipe())
    run.log.append("train", 1, loss=2.0)
    for name in (storage.CONFIG, "notes.txt"):
        (tmp_path / name).write_text("{}")
    run.begin(make_recipe(lr=1.0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "recipe.yaml"]


def test_log_is_cut_to_a_step_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    for step in (1, 2, 3):
        log.append("train", step, loss=0.1 * step)
    with log.path.open("a") as file:
        file.write('{"event": "train", "st')
    assert [event["step"] for event in log.events()] == [1, 2, 3]
    assert log.problems() == []
    log.cut_after(2)
    assert [json.loads(line)["loss"] for line in log.path.read_text().splitlines()] == [0.1, 0.2]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda line: line[:10], "damaged, not JSON"),
        (lambda line: b"\xff" + line[1:], "damaged, not JSON"),
        (lambda line: b"\0" * len(line), "damaged, not JSON"),
        (lambda line: b"[" * 100_000, "damaged, not JSON"),
        (lambda line: b"", "damaged, not JSON"),
        (lambda line: b"[1]", "damaged, not an event with its step"),
        (lambda line: line.replace(b'"step"', b'"stop"'), "damaged, not an event with its step"),
        (lambda line: line.replace(b"train", b"trail"), "damaged, or changed since it was written"),
        (lambda line: line.replace(b"0.25", b"0.75"), "damaged, or changed since it was written"),
        (lambda line: line.replace(b'"step": 2', b'"step": 3'), "damaged, or changed since it was written"),
        (lambda line: line.replace(b'"crc32"', b'"crc3n2"'), "damaged, or changed since it was written"),
        (lambda line: line[: line.rindex(b",")] + b', "crc32": null}', "damaged, or changed since it was written"),
    ],
)
def test_a_damaged_line_of_the_log_is_reported_and_not_the_end_of_the_history(
    tmp_path: Path, damage: Callable[[bytes], bytes], problem: str
) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    for step in (1, 2, 3):
        log.append("train", step, loss=0.125 * step)
    first, second, third = log.path.read_bytes().splitlines()
    log.path.write_bytes(b"\n".join([first, damage(second), third, b""]))
    assert [event["step"] for event in log.events()] == [1, 3]
    assert log.problems() == [f"{log.path}:2: {problem}"]
    log.cut_after(3)
    assert log.problems() == [] and log.path.read_bytes().splitlines() == [first, third]


def test_a_log_of_version_0_1_has_no_checksums_and_is_read(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    log.path.write_text('{"event": "train", "step": 1}\n')
    assert (log.events(), log.problems()) == ([{"event": "train", "step": 1}], [])


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl")
    log.append("telemetry", 1, reads={"a": [float("nan"), 1.0]}, loss=float("inf"))
    assert json.loads(log.path.read_text()).items() >= {"step": 1, "loss": None}.items()
    assert log.events() == [{"event": "telemetry", "step": 1, "reads": {"a": [None, 1.0]}, "loss": None}]


def test_only_one_process_trains_in_a_directory(tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="this system has no file locks")
    with RunDirectory(tmp_path).alone():
        second = RunDirectory(tmp_path).alone()
        with pytest.raises(StorageError, match="another process"):
            second.__enter__()
    with RunDirectory(tmp_path).alone():
        assert tmp_path.is_dir()


def test_vocab_size_is_not_the_models_to_choose(make_recipe: Any) -> None:
    with pytest.raises(ConfigError, match="comes from the tokenizer"):
        make_recipe(model={"vocab_size": 9})


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"widht": 32}, "did you mean 'width'"), ({"heads": 5}, "heads=5"), ({"encoder_attention": "rleu"}, "relu")],
)
def test_a_models_keys_are_checked_in_the_recipe(make_recipe: Any, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make_recipe(model=changes)


def test_the_best_model_of_version_0_1_has_the_tokenizer_and_the_recipe_of_its_run(
    make_recipe: Any, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path)
    run.begin(make_recipe())
    run.best.mkdir()
    (tmp_path / "tokenizer.json").write_text("{}")
    best = RunDirectory(run.best)
    assert (best.tokenizer, best.recipe(Recipe)) == (tmp_path, make_recipe())
    (run.best / "tokenizer.json").write_text("{}")
    assert best.tokenizer == run.best
    assert RunDirectory(tmp_path / "other").tokenizer == tmp_path / "other", "only best/ stands in a run"


def test_the_best_model_has_a_recipe_that_follows_that_of_the_run(make_recipe: Any, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.begin(make_recipe())
    run.save_best(lambda directory: (directory / "model").write_text("weights") and None, step=3)
    assert (run.best_step, sorted(path.name for path in run.best.iterdir())) == (
        3,
        ["best.json", "model", "recipe.yaml"],
    )
    run.set_recipe(make_recipe(updates=9))
    assert RunDirectory(run.best).recipe(Recipe) == make_recipe(updates=9)


def test_without_its_checkpoints_a_run_keeps_its_model_and_its_history(make_recipe: Any, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.begin(make_recipe())
    run.set_status("finished")
    run.drop_checkpoints()  # there are none yet
    (run.checkpoints.path(3)).mkdir(parents=True)
    run.save_best(lambda directory: (directory / "model").write_text("weights") and None, step=3)
    (run.path / storage.CONFIG).write_text("{}")
    before = {path.name for path in run.path.iterdir()}
    run.drop_checkpoints()
    assert {path.name for path in run.path.iterdir()} == before - {"checkpoints", "best"}
    assert run.checkpoints.steps() == [] and run.best_step is None


def test_a_directory_says_what_it_is_instead_of_a_run(make_recipe: Any, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such directory"):
        RunDirectory(tmp_path / "none").check()
    with pytest.raises(StorageError, match="not a run, it holds neither"):
        RunDirectory(tmp_path).check()
    run = RunDirectory(tmp_path / "reluformer")
    run.begin(make_recipe())
    with pytest.raises(StorageError, match="the run is not started and has no model yet"):
        run.check_model()
    with pytest.raises(StorageError, match="it holds the runs reluformer; name one"):
        RunDirectory(tmp_path).check()
    assert find_run(tmp_path) == run.path
    (tmp_path / storage.CONFIG).write_text("{}")
    with pytest.raises(StorageError, match=r"a model without recipe\.yaml"):
        RunDirectory(tmp_path).check_recipe()


def test_each_start_in_a_new_environment_is_recorded(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.environments == [], "as a run of version 0.1"
    old, new = {"torch": "2.6", "command": "reluformer train a.yaml"}, {"torch": "2.7", "command": "x"}
    run.add_environment(0, old)
    run.add_environment(10, old)
    run.add_environment(20, new)
    assert run.environments == [{"step": 0, **old}, {"step": 20, **new}]
    run.add_environment(15, new)
    assert run.environments == [{"step": 0, **old}, {"step": 15, **new}], "what came after the checkpoint is gone"
    (tmp_path / "environment.json").write_text("{", encoding="utf-8")
    assert run.environments == [], "a damaged record does not keep a run from loading"
