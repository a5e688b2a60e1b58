"""A check on this very machine that a killed training resumes bit for bit.

A tiny model is trained once without interruption, and once by processes that are killed
with SIGKILL while they run; both logs must hold the same numbers to the last bit.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from reluformer.errors import ReluformerError
from reluformer.training.progress import UpdateReport
from reluformer.training.run import RunDirectory
from reluformer.translation.recipe import Recipe
from reluformer.translation.task import train

_WORDS = ("the", "cat", "saw", "two", "old", "birds", "and", "they", "flew", "over", "a", "house", "by", "sea")


@dataclass(frozen=True)
class ResumeCheck:
    """The outcome of the check."""

    exact: bool
    updates: int
    killed_after: list[int]
    """The last update that each process reported before it was killed."""
    first_difference: int | None
    """The first update whose logged numbers differ."""

    def to_json(self) -> dict[str, Any]:
        """Returns the outcome as plain data."""
        return asdict(self)


def resume_check(updates: int = 14, kill_after: Sequence[int] = (2, 7, 11)) -> ResumeCheck:
    """Trains a tiny model twice, once with a SIGKILL after each of these updates, and compares the logs."""
    with tempfile.TemporaryDirectory(prefix="reluformer-resume-") as name:
        directory = Path(name)
        _write_recipe(directory, updates)
        _train_in_process(directory, "whole")
        killed = [_train_in_process(directory, "killed", after) for after in kill_after]
        _train_in_process(directory, "killed")
        whole, resumed = (_numbers(RunDirectory(directory / run)) for run in ("whole", "killed"))
    steps = sorted(step for step in whole.keys() | resumed.keys() if whole.get(step) != resumed.get(step))
    return ResumeCheck(not steps, updates, [after for after in killed if after], steps[0] if steps else None)


def _numbers(run: RunDirectory) -> dict[int, Any]:
    """Returns what must be equal: everything in the log but the times."""
    clock = ("seconds", "tokens_per_second")
    numbers: dict[int, Any] = {}
    for event in run.log.events():
        values = {key: value for key, value in event.items() if key not in clock}
        numbers.setdefault(event["step"], []).append(values)
    return numbers


def _write_recipe(directory: Path, updates: int) -> None:
    draw = random.Random(0)
    lines = [" ".join(draw.choices(_WORDS, k=draw.randint(2, 9))) for _ in range(200)]
    for side in ("src", "tgt"):
        (directory / f"text.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = {"src": str(directory / "text.src"), "tgt": str(directory / "text.tgt"), "documents": "line"}
    recipe = Recipe.parse(
        {
            "data": {
                "train": files,
                "valid": files,
                "tokenizer": {"vocab_size": 300},
                "segments": {"segment_tokens": "sentence"},
            },
            "model": {"width": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "slots": 64},
            "training": {
                "updates": updates,
                "tokens_per_batch": 256,
                "accumulate": 2,
                "regularizer": {},
                "ema_decay": 0.99,
                "warmup": 4,
                "log_every": 1,
                "validate_every": 5,
                "checkpoint_every": 3,
                "telemetry_every": 4,
                "device": "cpu",
            },
        },
        where="resume_check",
    )
    (directory / "recipe.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json")), encoding="utf-8")


def _train_in_process(directory: Path, run: str, kill_after: int | None = None) -> int | None:
    """Trains in a process of its own, which is killed when it reports update `kill_after`; returns that update."""
    command = [sys.executable, "-m", "reluformer.translation.resume_check", str(directory), run]
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")},
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if kill_after is not None and int(line) >= kill_after:
                process.kill()
                return int(line)
        problem = process.stderr.read()
    if process.returncode:
        raise ReluformerError(f"the training of the resume check failed: {problem.strip().splitlines()[-1:]}")
    return None


class _PrintSteps:
    """Prints the number of every update on a line of its own."""

    def update(self, report: UpdateReport) -> None:
        print(report.step, flush=True)

    def message(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


if __name__ == "__main__":
    place = Path(sys.argv[1])
    train(place / "recipe.yaml", place / sys.argv[2], progress=_PrintSteps(), prepared=place / "data")
