from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from reluformer.models import storage
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.training.objective import DivergedError
from reluformer.training.progress import SilentProgress, UpdateReport
from reluformer.training.run import RunDirectory
from reluformer.translation.corpus import PreparedCorpus
from reluformer.translation.recipe import Recipe
from reluformer.translation.task import TrainingBatches, train

ROOT = Path(__file__).parents[2]


def losses(directory: Path, event: str = "train") -> list[float]:
    return [values["loss"] for values in RunDirectory(directory).log.events(event)]


class Watching(SilentProgress):
    """Calls `at` after every update, and keeps what is said."""

    def __init__(self, at: Any = None) -> None:
        self.at = at
        self.said: list[str] = []

    def update(self, report: UpdateReport) -> None:
        if self.at is not None:
            self.at(report.step)

    def message(self, text: str) -> None:
        self.said.append(text)


def run(recipe: Recipe, directory: Path, prepared: Path, **options: Any) -> Any:
    return train(recipe, directory, prepared=prepared, **{"progress": SilentProgress(), **options})


# Float32 on other machines and thread counts adds in another order: a few units of 1e-6, doubled now and
# then by an update. A changed formula shows in the second digit.
GOLDEN_TOLERANCE = 2e-4
GOLDEN = [5.938541, 6.193075, 5.752457, 5.822199, 5.702813, 5.414941, 5.176732, 5.207503]


def test_golden_loss_curve(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    recipe = make_recipe(model={"dropout": 0.0}, regularizer={}, ema_decay=0.9)
    run(recipe, tmp_path / "run", prepared)
    assert losses(tmp_path / "run") == pytest.approx(GOLDEN, rel=GOLDEN_TOLERANCE)


def test_learns_to_copy(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    recipe = make_recipe(
        model={"architecture": "transformer", "dropout": 0.0},
        updates=60, lr=0.01, tokens_per_batch=512, log_every=10, validate_every=20,
        validate_bleu=0, checkpoint_every=100, ema_decay=0.9,
    )  # fmt: skip
    result = run(recipe, tmp_path / "run", prepared)
    validation = losses(tmp_path / "run", "valid")
    assert len(validation) == 3
    assert validation[-1] < 3.0 < 4.5 < losses(tmp_path / "run")[0]
    assert result.weights == "best"
    assert result.best_loss == min(validation)
    assert ReLUFormer.load(tmp_path / "run").parameter_count() == result.parameters


def test_accumulated_batches_equal_one_large_batch_of_the_same_rows(
    make_recipe: Any, prepared: Path, tmp_path: Path
) -> None:
    """Both updates see every segment exactly once: the small batches are an epoch, and so is the large one."""
    data = TrainingBatches(PreparedCorpus(prepared).store("train"), make_recipe().training)
    small = make_recipe(model={"dropout": 0.0}, updates=1, accumulate=round(data.updates_per_epoch), clip=None)
    large = make_recipe(model={"dropout": 0.0}, updates=1, tokens_per_batch=1_000_000, clip=None)
    run(small, tmp_path / "small", prepared)
    run(large, tmp_path / "large", prepared)
    (one,), (other,) = (RunDirectory(tmp_path / name).log.events("train") for name in ("small", "large"))
    assert one["tokens"] == other["tokens"]
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


def test_resumes_bit_for_bit_after_an_interruption(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    recipe = make_recipe(regularizer={}, ema_decay=0.9, validate_every=4, accumulate=2, log_every=2)

    def crash(step: int) -> None:
        if step == 5:
            raise RuntimeError("power cut")

    run(recipe, tmp_path / "whole", prepared)
    with pytest.raises(RuntimeError, match="power cut"):
        run(recipe, tmp_path / "cut", prepared, progress=Watching(crash))
    assert RunDirectory(tmp_path / "cut").status["status"] == "running"
    run(recipe, tmp_path / "cut", prepared)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert losses(tmp_path / "cut", "valid") == losses(tmp_path / "whole", "valid")
    weights = [(tmp_path / name / storage.WEIGHTS).read_bytes() for name in ("cut", "whole")]
    assert weights[0] == weights[1]


def test_a_torn_checkpoint_is_passed_over(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    recipe = make_recipe()
    run(recipe, tmp_path / "whole", prepared)

    def crash(step: int) -> None:
        if step == 7:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run(recipe, tmp_path / "torn", prepared, progress=Watching(crash))
    (tmp_path / "torn/checkpoints/step-00000006/optimizer.safetensors").write_bytes(b"torn")
    watching = Watching()
    run(recipe, tmp_path / "torn", prepared, progress=watching)
    assert "resuming after update 3" in watching.said
    assert any("step-00000006" in text for text in watching.said)
    assert losses(tmp_path / "torn") == losses(tmp_path / "whole")


def test_ctrl_c_ends_the_update_saves_and_can_be_resumed(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    import signal

    recipe = make_recipe()
    before = signal.getsignal(signal.SIGINT)
    watching = Watching(lambda step: os.kill(os.getpid(), signal.SIGINT) if step == 4 else None)
    result = run(recipe, tmp_path / "run", prepared, progress=watching)
    assert (result.status, result.reason, result.step) == ("interrupted", "interrupted", 4)
    assert signal.getsignal(signal.SIGINT) is before
    directory = RunDirectory(tmp_path / "run")
    assert directory.status["status"] == "interrupted"
    assert directory.checkpoints.steps() == [3, 4]
    assert not (tmp_path / "run" / storage.CONFIG).exists()
    assert any("same command" in text for text in watching.said)
    assert run(recipe, tmp_path / "run", prepared).status == "finished"
    run(recipe, tmp_path / "whole", prepared)
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


def test_divergence_names_layer_and_rule_and_saves(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    rules = {"encoder_attention": "relu_plain", "dropout": 0.0}
    recipe = make_recipe(model=rules, updates=50, clip=None, warmup=0, schedule="constant", lr=1e9)
    with pytest.raises(DivergedError) as caught:
        run(recipe, tmp_path / "run", prepared)
    error = caught.value
    assert error.layer == "encoder.0.attention"
    assert error.rule == "relu_plain"
    assert "'relu' divides" in str(error) and "training.clip=1.0" in str(error) and "training.lr=" in str(error)
    directory = RunDirectory(tmp_path / "run")
    assert directory.status["status"] == "diverged"
    assert directory.checkpoints.steps()[-1] == error.step - 1
    with pytest.raises(OSError, match="diverged and would do so again"):
        run(recipe, tmp_path / "run", prepared)


def test_early_stopping_counts_validations_without_a_better_loss(
    make_recipe: Any, prepared: Path, tmp_path: Path
) -> None:
    recipe = make_recipe(updates=50, lr=1e-30, validate_every=2, patience=2)
    result = run(recipe, tmp_path / "run", prepared)
    assert result.reason == "patience"
    assert result.step == 6
    assert result.best_step == 2


def test_time_limit_ends_the_run(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    result = run(make_recipe(max_minutes=1e-9), tmp_path / "run", prepared)
    assert (result.status, result.reason) == ("finished", "max_minutes")


def test_final_model_is_the_mean_of_the_last_checkpoints(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    recipe = make_recipe(average_last=2)
    result = run(recipe, tmp_path / "run", prepared)
    store = RunDirectory(tmp_path / "run").checkpoints
    assert store.steps() == [3, 6, 8] and result.weights == "average of 2"
    name = "decoder.0.ffn.layer.keys.weight"
    mean = (store.read(6).tensors["model"][name] + store.read(8).tensors["model"][name]) / 2
    torch.testing.assert_close(ReLUFormer.load(tmp_path / "run").state_dict()[name], mean)


def test_evaluate_is_called_with_the_model_and_logged(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    seen = []

    def evaluate(model: ReLUFormer) -> dict[str, float]:
        seen.append(model.training)
        return {"bleu": 12.5}

    run(make_recipe(validate_every=4), tmp_path / "run", prepared, evaluate=evaluate)
    events = RunDirectory(tmp_path / "run").log.events("valid")
    assert [event["bleu"] for event in events] == [12.5, 12.5]
    assert seen == [False, False]


def test_telemetry_stands_in_the_log_as_valid_json(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    run(make_recipe(telemetry_every=4), tmp_path / "run", prepared)
    events = RunDirectory(tmp_path / "run").log.events("telemetry")
    assert [event["step"] for event in events] == [4, 8]
    assert events[0]["reads"]["encoder.0.attention"]["rule"] == "relu"
    assert all(norm > 0 for norm in events[0]["reads"]["encoder.0.attention"]["query_gradient"])
    assert "NaN" not in (tmp_path / "run/log.jsonl").read_text()


def test_bfloat16_trains(make_recipe: Any, prepared: Path, tmp_path: Path) -> None:
    run(make_recipe(), tmp_path / "fp32", prepared)
    run(make_recipe(precision="bf16"), tmp_path / "bf16", prepared)
    assert losses(tmp_path / "bf16") == pytest.approx(losses(tmp_path / "fp32"), rel=0.02)
    assert losses(tmp_path / "bf16") != losses(tmp_path / "fp32")


def test_two_processes_have_the_loss_of_one_with_twice_the_batch(
    make_recipe: Any, prepared: Path, tmp_path: Path
) -> None:
    """Batches of one row, too: then the second process has nothing in its share."""
    changes: dict[str, Any] = dict(updates=4, regularizer={}, clip=None, validate_every=4)
    one = make_recipe(model={"dropout": 0.0}, tokens_per_batch=56, **changes)
    run(one, tmp_path / "one", prepared)
    two = make_recipe(model={"dropout": 0.0}, tokens_per_batch=28, **changes)
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(two.model_dump(mode="json")))
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(ROOT / "configs/accelerate/cpu.yaml"),
        str(Path(__file__).with_name("train_process.py")), str(tmp_path / "two.yaml"), str(tmp_path / "two"),
        str(prepared),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for event in ("train", "valid"):
        assert losses(tmp_path / "two", event) == pytest.approx(losses(tmp_path / "one", event), rel=1e-5)
    first, second = (RunDirectory(tmp_path / name).log.events("train") for name in ("one", "two"))
    for a, b in zip(first, second, strict=True):
        assert a["tokens"] == b["tokens"]
        # the first update is equal but for rounding; Adam divides by the size of a gradient, however small,
        # and so enlarges that in the updates after it
        near = 1e-5 if a["step"] == 1 else 2e-3
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=near)
        assert a["regularizer"] == pytest.approx(b["regularizer"], rel=near)
