from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import reluformer as rf
from reluformer import environment, load
from reluformer.errors import ArgumentError, ConfigError, DataError, ReluformerError, StorageError
from reluformer.models import storage
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.training import checkpoint as checkpoint_module
from reluformer.training.progress import SilentProgress, UpdateReport
from reluformer.training.run import RunDirectory
from reluformer.translation.recipe import Recipe
from reluformer.translation.task import train
from reluformer.translation.tokenizer import Tokenizer


def run(recipe: Recipe, directory: Path, prepared: Path | None, **options: Any) -> Any:
    return train(recipe, directory, prepared=prepared, **{"progress": SilentProgress(), **options})


class Messages(SilentProgress):
    """Keeps the messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_finished_run_is_left_alone(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    first = run(make_recipe(updates=2), tmp_path / "run", prepared)
    before = (tmp_path / "run" / storage.WEIGHTS).stat().st_mtime_ns
    assert run(make_recipe(updates=2), tmp_path / "run", prepared) == first
    assert (tmp_path / "run" / storage.WEIGHTS).stat().st_mtime_ns == before


def test_a_finished_run_can_be_made_longer(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    data = {"valid": None}  # else the end of the shorter run is validated too, and a longer one has no such look
    run(make_recipe(data=data, updates=4), tmp_path / "longer", prepared)
    result = run(make_recipe(data=data, updates=8), tmp_path / "longer", prepared)
    run(make_recipe(data=data, updates=8), tmp_path / "at once", prepared)
    assert (result.step, result.weights, result.best_loss) == (8, "last", None)
    longer, at_once = (
        [event["loss"] for event in RunDirectory(tmp_path / name).log.events("train")] for name in ("longer", "at once")
    )
    assert longer == at_once


def test_a_corpus_may_move_but_not_change(make_recipe: Any, corpus: dict[str, Any], tmp_path: Path) -> None:
    def moved(name: str, more: str = "") -> dict[str, Any]:
        """The same corpus in a folder of its own."""
        splits = {}
        for split in ("train", "valid"):
            sides = {side: tmp_path / name / f"{split}.{side}" for side in ("src", "tgt")}
            for side, path in sides.items():
                path.parent.mkdir(exist_ok=True)
                path.write_text(Path(corpus[split][side]).read_text(encoding="utf-8") + more, encoding="utf-8")
            splits[split] = {"documents": "line", **sides}
        return splits

    run(make_recipe(updates=4, data=moved("here")), tmp_path / "run", None)
    run(make_recipe(updates=8, data=moved("there")), tmp_path / "run", None)
    run(make_recipe(updates=8), tmp_path / "at once", None)
    in_parts, at_once = (
        [event["loss"] for event in RunDirectory(tmp_path / name).log.events("train")] for name in ("run", "at once")
    )
    assert in_parts == at_once
    before = contents(tmp_path / "run" / "checkpoints")
    changed = moved("changed", "snow fell\n")
    for split in ("train", "valid"):
        with pytest.raises(ConfigError, match=rf"the corpus is not the one that this run began with .*{split}_tokens"):
            run(make_recipe(updates=12, data={**moved("there"), split: changed[split]}), tmp_path / "run", None)
    assert contents(tmp_path / "run" / "checkpoints") == before
    assert run(make_recipe(updates=8), tmp_path / "run", None).step == 8
    assert RunDirectory(tmp_path / "run").recipe(Recipe) == make_recipe(updates=8), "a finished run follows its corpus"
    log = RunDirectory(tmp_path / "run").log
    log.path.write_text(log.path.read_text(encoding="utf-8").replace('"corpus"', '"unknown"'), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"another recipe; different: data\.train\.src"):
        run(make_recipe(updates=12, data=moved("there")), tmp_path / "run", None)


def swap_lines(lines: list[str]) -> list[str]:
    return [*lines[:5], lines[6], lines[5], *lines[7:]]


def shift_lines(lines: list[str]) -> list[str]:
    return lines[1:] + lines[:1]


@pytest.mark.parametrize("change", [swap_lines, shift_lines])
def test_lines_that_were_swapped_or_misaligned_are_noticed(
    make_recipe: Any, corpus: dict[str, Any], tmp_path: Path, change: Any
) -> None:
    target = tmp_path / "train.tgt"
    lines = Path(corpus["train"]["tgt"]).read_text(encoding="utf-8").splitlines()
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = {"train": {**corpus["train"], "tgt": str(target)}}
    run(make_recipe(updates=3, data=data), tmp_path / "run", None)
    target.write_text("\n".join(change(lines)) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"the corpus is not the one that this run began with \(train_checksum"):
        run(make_recipe(updates=6, data=data), tmp_path / "run", None)


def test_a_run_of_version_0_1_is_known_by_its_numbers_of_tokens(
    make_recipe: Any, prepared: Path, tmp_path: Path
) -> None:
    run(make_recipe(updates=3), tmp_path, prepared)
    log = RunDirectory(tmp_path).log
    events = log.events()
    for key in ("train_checksum", "valid_checksum"):
        del events[0]["corpus"][key]
    log.path.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    assert run(make_recipe(updates=4), tmp_path, prepared).step == 4


def test_a_changed_state_is_reported_and_an_earlier_checkpoint_used(
    make_recipe: Any, prepared: Path, tmp_path: Path
) -> None:
    run(make_recipe(updates=6), tmp_path / "run", prepared)
    state = tmp_path / "run" / "checkpoints" / "step-00000006" / "state.json"
    content = json.loads(state.read_text(encoding="utf-8"))
    content["state"]["training"]["step"] = 5
    for version in ("today", "0.1"):
        shutil.copytree(tmp_path / "run", tmp_path / version)
        if version == "0.1":
            del content["checksum"]
        path = tmp_path / version / state.relative_to(tmp_path / "run")
        path.write_text(json.dumps(content), encoding="utf-8")
        progress = Messages()
        run(make_recipe(updates=9), tmp_path / version, prepared, progress=progress)
        assert any(text.startswith("skipped a checkpoint: ") and "6" in text for text in progress.messages)
        assert "resuming after update 3" in progress.messages


def test_a_checkpoint_without_its_tensors_is_reported_and_an_earlier_one_used(
    make_recipe: Any, prepared: Path, tmp_path: Path
) -> None:
    run(make_recipe(updates=6), tmp_path, prepared)
    state = tmp_path / "checkpoints" / "step-00000006" / "state.json"
    content = json.loads(state.read_text(encoding="utf-8"))
    del content["checksum"], content["files"]["optimizer.safetensors"]
    state.write_text(json.dumps(content), encoding="utf-8")
    progress = Messages()
    run(make_recipe(updates=9), tmp_path, prepared, progress=progress)
    assert "skipped a checkpoint: step 6: lacks optimizer" in progress.messages
    assert "resuming after update 3" in progress.messages


def test_a_damaged_line_of_the_log_is_reported_and_the_history_kept(
    make_recipe: Any, prepared: Path, tmp_path: Path
) -> None:
    run(make_recipe(updates=4, log_every=1), tmp_path, prepared)
    log = RunDirectory(tmp_path).log
    lines = log.path.read_bytes().split(b"\n")
    number = next(number for number, line in enumerate(lines) if b'"step": 2' in line)
    log.path.write_bytes(b"\n".join([*lines[:number], b"\xff" + lines[number], *lines[number + 1 :]]))
    progress = Messages()
    run(make_recipe(updates=6, log_every=1), tmp_path, prepared, progress=progress)
    problem = f"{log.path}:{number + 1}: damaged, not JSON"
    assert f"warning: skipped a line of the log: {problem}" in progress.messages
    assert [event["step"] for event in log.events("train")] == [1, 3, 4, 5, 6]
    assert log.problems() == []


def test_without_resuming_a_run_starts_anew(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    run(make_recipe(updates=4), tmp_path, prepared)
    assert run(make_recipe(updates=2, lr=0.1), tmp_path, prepared, resume=False).step == 2


def test_a_start_that_fails_changes_nothing(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    run(make_recipe(updates=2), tmp_path / "run", prepared)
    before = contents(tmp_path / "run")
    (tmp_path / "file").write_text("")
    for changes, place, options in [
        ({}, prepared, {"resume": False, "init_from": tmp_path / "run"}),
        ({}, prepared, {"resume": False, "init_from": tmp_path / "rum"}),
        ({"tokens_per_batch": 4}, prepared, {"resume": False}),
        ({"data": {"train": {"path": "missing.tsv"}}}, tmp_path / "data", {"resume": False}),
        ({}, tmp_path / "file", {}),
    ]:
        with pytest.raises(ReluformerError):
            run(make_recipe(updates=3, **changes), tmp_path / "run", place, **options)
        assert contents(tmp_path / "run") == before


def test_after_a_start_that_failed_the_mended_recipe_trains(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing\.tsv"):
        run(make_recipe(data={"train": {"path": "missing.tsv"}}), tmp_path / "run", None)
    with pytest.raises(ArgumentError, match="tokens_per_batch=4 has no room"):
        run(make_recipe(tokens_per_batch=4), tmp_path / "run", None)
    assert RunDirectory(tmp_path / "run").status == {}
    assert run(make_recipe(updates=1), tmp_path / "run", None).status == "finished"


def test_a_run_that_came_to_no_checkpoint_protects_nothing(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    class Crash(SilentProgress):
        def update(self, report: UpdateReport) -> None:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run(make_recipe(), tmp_path, prepared, progress=Crash())
    run(make_recipe(updates=2, lr=0.1), tmp_path, prepared)
    assert RunDirectory(tmp_path).recipe(Recipe).training.lr == 0.1
    assert [event["step"] for event in RunDirectory(tmp_path).log.events("train")] == [1, 2]


def test_checkpoints_that_cannot_be_read_are_kept(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    run(make_recipe(updates=4), tmp_path, prepared)
    for state in tmp_path.glob("checkpoints/*/state.json"):
        state.write_text(state.read_text().replace('"format": 1', '"format": 2'))
    before = contents(tmp_path)
    with pytest.raises(StorageError, match=r"no checkpoint .* can be read: .*step-00000004.*format 2.*--fresh"):
        run(make_recipe(updates=8), tmp_path, prepared)
    assert contents(tmp_path) == before


def test_a_model_without_checkpoints_is_not_trained_over(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    run(make_recipe(updates=2), tmp_path, prepared)
    shutil.rmtree(tmp_path / "checkpoints")
    before = contents(tmp_path)
    with pytest.raises(StorageError, match="no checkpoints to resume from"):
        run(make_recipe(updates=4), tmp_path, prepared)
    assert contents(tmp_path) == before


def test_a_finished_run_takes_another_way_to_translate(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    first = run(make_recipe(updates=1), tmp_path, prepared)
    assert run(make_recipe(updates=1).replace(decoding={"beam": 7}), tmp_path, prepared) == first
    assert load(tmp_path).config.beam == 7


def test_the_corpus_has_a_directory_of_its_own(make_recipe: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="is the directory of the run"):
        run(make_recipe(), tmp_path / "run", tmp_path / "elsewhere" / ".." / "run")


def test_starts_from_the_weights_of_another_run(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    run(make_recipe(updates=3), tmp_path / "first", prepared)
    recipe = make_recipe(updates=1, lr=1e-30, weight_decay=0.0, model={"dropout": 0.2})
    run(recipe, tmp_path / "second", prepared, init_from=tmp_path / "first")
    first, second = (ReLUFormer.load(tmp_path / name).state_dict() for name in ("first", "second"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_weights_of_another_tokenizer_are_refused(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    run(make_recipe(updates=1), tmp_path / "first", prepared)
    Tokenizer.train(["other words"] * 9, make_recipe().data.tokenizer).save(tmp_path / "first")
    with pytest.raises(ConfigError, match=r"another tokenizer.*data\.tokenizer\.path"):
        run(make_recipe(), tmp_path / "second", prepared, init_from=tmp_path / "first")


def test_weights_of_another_size_are_refused(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    run(make_recipe(updates=1), tmp_path / "first", prepared)
    with pytest.raises(ConfigError, match="sizes of that model"):
        run(make_recipe(model={"width": 16}), tmp_path / "second", prepared, init_from=tmp_path / "first")


def test_what_is_no_model_is_refused(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match="not a saved model"):
        run(make_recipe(), tmp_path / "run", prepared, init_from=tmp_path / "empty")


def test_the_corpus_is_prepared_in_the_run_unless_told(make_recipe: Any, tmp_path: Path) -> None:
    run(make_recipe(updates=1), tmp_path, None)
    assert (tmp_path / "data/train.arrow").is_file()
    assert Tokenizer.load(tmp_path).fingerprint == Tokenizer.load(tmp_path / "data").fingerprint


def test_a_full_disk_is_told_and_the_run_can_be_resumed(
    make_recipe: Any, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, recipe = checkpoint_module.save_file, make_recipe(updates=6)

    def full(tensors: Any, path: Path) -> None:
        if "step-00000006" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        save(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_module, "save_file", full)
        with pytest.raises(StorageError, match=r"No space left on device.*step 3 is intact"):
            run(recipe, tmp_path, prepared)
    assert RunDirectory(tmp_path).status["status"] == "interrupted"
    assert not (tmp_path / storage.CONFIG).exists()
    assert run(recipe, tmp_path, prepared).status == "finished"


def test_half_precision_on_a_cpu_is_refused(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bf16"):
        run(make_recipe(precision="fp16"), tmp_path / "run", prepared)
    assert not (tmp_path / "run").exists()


def test_validation_translates_and_scores(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    run(make_recipe(updates=2, validate_bleu=3, validate_every=1), tmp_path, prepared)
    events = RunDirectory(tmp_path).log.events("valid")
    assert [0 <= event["bleu"] <= 100 for event in events] == [True, True]


def test_a_recipe_may_be_a_file_or_a_mapping(
    make_recipe: Any, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = make_recipe(updates=1)
    Path("copy.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")))
    results = [
        rf.train(given, prepared=prepared, progress=SilentProgress())
        for given in ("copy.yaml", recipe, recipe.model_dump())
    ]
    assert [result.directory for result in results] == ["runs/copy", "runs/model", "runs/model"]
    with pytest.raises(ConfigError, match="recipe: unknown key 'trianing'; did you mean 'training'"):
        rf.train({**recipe.model_dump(), "trianing": {}})


def test_the_best_model_loads_by_itself(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    recipe = make_recipe(updates=2, validate_every=2).replace(decoding={"beam": 3})
    run(recipe, tmp_path / "run", prepared)
    (tmp_path / "run" / "best").rename(tmp_path / "elsewhere")
    translator = load(tmp_path / "elsewhere")
    assert translator.config.beam == 3
    assert translator.translate(["we saw it"]) == load(tmp_path / "run").translate(["we saw it"])


def test_tensorboard_gets_the_curves(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is an extra")
    run(make_recipe(updates=2, tensorboard=True), tmp_path, prepared)
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"train/loss" in events.read_bytes()


def test_a_run_records_versions_machine_and_command(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    run(make_recipe(updates=2), tmp_path, prepared)
    (entry,) = RunDirectory(tmp_path).environments
    assert (entry["step"], entry["reluformer"], entry["torch"]) == (0, rf.__version__, torch.__version__)
    assert entry["command"] == environment.command_line()
    assert {"commit", "python", "kernel", "cpu", "cores", "system", "gpu"} <= entry.keys()
    run(make_recipe(updates=2), tmp_path, prepared, resume=False)
    assert len(RunDirectory(tmp_path).environments) == 1, "a new run begins a new record"


def test_a_mixture_resumes_exactly_and_its_weights_stay(
    make_recipe: Any, corpus: dict[str, Any], tmp_path: Path
) -> None:
    def mixed(weight: float) -> dict[str, Any]:
        return {"train": [corpus["train"], {**corpus["valid"], "weight": weight}], "valid": None}

    class Stopped(SilentProgress):
        def update(self, report: UpdateReport) -> None:
            if report.step == 5:
                raise KeyboardInterrupt

    recipe = make_recipe(data=mixed(2.5), updates=16)
    run(recipe, tmp_path / "whole", None)
    with pytest.raises(KeyboardInterrupt):
        run(recipe, tmp_path / "parts", None, progress=Stopped())
    with pytest.raises(ConfigError, match=r"data\.train\.1\.weight \(2\.5 -> 2\.0\)"):
        run(make_recipe(data=mixed(2.0), updates=16), tmp_path / "parts", None)
    run(recipe, tmp_path / "parts", None)
    whole, parts = (
        [event["loss"] for event in RunDirectory(tmp_path / name).log.events("train")] for name in ("whole", "parts")
    )
    assert whole == parts
    run(make_recipe(data=mixed(1.0), updates=16), tmp_path / "other", None)
    assert [e["loss"] for e in RunDirectory(tmp_path / "other").log.events("train")] != whole
