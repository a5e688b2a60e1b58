"""Trainings that are killed at random moments and resumed, until each is finished.

The end must be that of a training that nobody disturbed: the same weights, bit for bit, and the same losses.
"""

from __future__ import annotations

import multiprocessing
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import torch
from targets import tiny_recipe

from reluformer.training.progress import SilentProgress
from reluformer.training.run import RunDirectory
from reluformer.translation.task import train

FORK = multiprocessing.get_context("fork")
UPDATES = 24


def _train(directory: Path, prepared: Path) -> None:
    torch.set_num_threads(1)
    recipe = tiny_recipe(updates=UPDATES, validate_every=5, keep_checkpoints=2)  # many kills hit a checkpoint
    train(recipe, directory, prepared=prepared, progress=SilentProgress())


def _run(directory: Path, prepared: Path, seconds: float | None) -> bool:
    """Trains in a process of its own, which is killed after some seconds; returns whether it was killed."""
    process = FORK.Process(target=_train, args=(directory, prepared))
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
        return True
    if process.exitcode:
        raise RuntimeError(f"training failed with exit code {process.exitcode}")
    return False


def _end_of(directory: Path) -> tuple[bytes, list[tuple[int, float]]]:
    events = RunDirectory(directory).log.events("train")
    return (directory / "model.safetensors").read_bytes(), [(event["step"], event["loss"]) for event in events]


def kill_trainings(place: Path, seed: str, most: int, until: float) -> Counter[str]:
    """Kills trainings until there were `most` kills or the time is over.

    Args:
        place: A folder to train in.
        seed: Decides the moments, as far as a machine repeats them.
        most: The most kills.
        until: A time of `time.monotonic`.

    Returns:
        How many kills there were, and how the killed trainings ended.
    """
    draw, counts = random.Random(seed), Counter[str]()
    shutil.rmtree(place, ignore_errors=True)
    prepared = place / "data"
    _run(place / "first", prepared, None)
    started = time.monotonic()
    _run(place / "undisturbed", prepared, None)
    whole = time.monotonic() - started
    expected = _end_of(place / "undisturbed")
    while counts["kills"] < most and time.monotonic() < until:
        killed = 0
        try:
            while _run(place / "killed", prepared, draw.uniform(0, 1.2 * whole)):
                killed += 1
                if killed > 1000:
                    raise RuntimeError("the training does not advance")
            equal = _end_of(place / "killed") == expected
            counts["ended as undisturbed" if equal else "FINDING ended otherwise"] += 1
        except (RuntimeError, OSError) as error:
            counts[f"FINDING {error}"] += 1
        counts["kills"] += killed
        shutil.rmtree(place / "killed", ignore_errors=True)
    return counts
