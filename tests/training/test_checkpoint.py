from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from reluformer.errors import StorageError
from reluformer.training import checkpoint as module
from reluformer.training.checkpoint import Checkpoint, CheckpointStore


def checkpoint(step: int) -> Checkpoint:
    tensors = {"model": {"w": torch.full((3,), float(step))}, "optimizer": {"w/step": torch.tensor(float(step))}}
    return Checkpoint(step, tensors, {"tokens": step * 10, "loss": 0.1 + 0.2})


def store_with(directory: Path, *steps: int, keep: int = 9) -> CheckpointStore:
    store = CheckpointStore(directory)
    for step in steps:
        store.write(checkpoint(step), keep=keep)
    return store


def test_comes_back_exactly(tmp_path: Path) -> None:
    found, problems = store_with(tmp_path, 7).newest()
    assert found is not None and problems == []
    assert found.step == 7
    assert found.state == {"tokens": 70, "loss": 0.1 + 0.2}
    assert torch.equal(found.tensors["model"]["w"], torch.full((3,), 7.0))
    assert found.tensors["optimizer"]["w/step"] == 7


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    assert store_with(tmp_path, 1, 2, 10, keep=2).steps() == [2, 10]


def tear_tensor(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])


def flip_bit(path: Path) -> None:
    file = path / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))


def tear_state(path: Path) -> None:
    (path / "state.json").write_text('{"format": 1, "st')


def change_state(path: Path) -> None:
    state = path / "state.json"
    state.write_text(state.read_text().replace('"tokens": 60', '"tokens": 61'))


def rename_checksum(path: Path) -> None:
    state = path / "state.json"
    state.write_text(state.read_text().replace('"checksum"', '"checksun"'))


def nest_state(path: Path) -> None:
    (path / "state.json").write_text("[" * 200_000)


def list_files(path: Path) -> None:
    content = json.loads((path / "state.json").read_text())
    del content["checksum"]
    (path / "state.json").write_text(json.dumps({**content, "files": ["model.safetensors"]}))


def put_pipe(path: Path) -> None:
    (path / "model.safetensors").unlink()
    os.mkfifo(path / "model.safetensors")


def lose_tensor(path: Path) -> None:
    (path / "model.safetensors").unlink()


@pytest.mark.parametrize(
    "damage",
    [
        tear_tensor,
        flip_bit,
        tear_state,
        change_state,
        rename_checksum,
        nest_state,
        list_files,
        put_pipe,
        lose_tensor,
    ],
)
def test_a_torn_checkpoint_is_skipped_and_told(tmp_path: Path, damage: Any) -> None:
    store = store_with(tmp_path, 3, 6)
    damage(store.path(6))
    found, problems = store.newest()
    assert found is not None and found.step == 3
    assert len(problems) == 1 and "step-00000006" in problems[0]


def test_a_state_of_version_0_1_has_no_checksum_and_is_read(tmp_path: Path) -> None:
    store = store_with(tmp_path, 3)
    content = json.loads((store.path(3) / "state.json").read_text())
    del content["checksum"]
    (store.path(3) / "state.json").write_text(json.dumps(content))
    assert store.read(3).state == {"tokens": 30, "loss": 0.1 + 0.2}


def test_a_state_that_cannot_be_used_is_skipped(tmp_path: Path) -> None:
    def check(found: Checkpoint) -> None:
        if found.step == 6:
            raise StorageError("step 6: damaged")

    found, problems = store_with(tmp_path, 3, 6).newest(check)
    assert found is not None and (found.step, problems) == (3, ["step 6: damaged"])


def test_without_any_there_is_none(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "nowhere").newest() == (None, [])


def test_a_full_disk_leaves_the_old_one_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_with(tmp_path, 3)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(StorageError, match=r"No space left.*step 3 is intact"):
        store.write(checkpoint(6), keep=1)
    found, _ = store.newest()
    assert found is not None and found.step == 3
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


def test_what_is_past_a_step_can_be_dropped(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1, 2, 3)
    (tmp_path / ".step-00000004.reluformer-3f080efa.partial").mkdir()
    store.drop_after(2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_a_step_can_be_written_again(tmp_path: Path) -> None:
    store = store_with(tmp_path, 3, 3)
    assert store.steps() == [3]
    assert store.read(3).step == 3
