"""Two processes never do the same run, and results of another version are not mixed in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reluformer.errors import StorageError
from reluformer.study.folder import STALE_SECONDS, StudyFolder, TakenError
from reluformer.study.plan import VERSION, Run

RUN = Run({"study": VERSION, "kind": "reads", "rule": "relu"})


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path)


def test_a_claimed_run_is_refused_to_others_until_it_is_released(folder: StudyFolder) -> None:
    with folder.claim(RUN):
        assert folder.taken(RUN.address)
        with pytest.raises(TakenError, match="another process is at this run"), folder.claim(RUN):
            pass
    assert not folder.taken(RUN.address)
    with folder.claim(RUN):
        assert folder.taken(RUN.address)


def leave_claim(folder: StudyFolder, host: str, pid: int) -> Path:
    path = folder.directory(RUN) / "claim-0"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"host": host, "pid": pid}))
    return path


def test_the_claim_of_a_dead_process_is_stale(folder: StudyFolder) -> None:
    import socket

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    leave_claim(folder, socket.gethostname(), ended.pid)
    assert not folder.taken(RUN.address)
    with folder.claim(RUN):
        assert (folder.directory(RUN) / "claim-1").exists()
    assert list(folder.directory(RUN).glob("claim-*")) == []


def test_the_claim_of_another_machine_is_stale_when_nobody_touches_it(folder: StudyFolder) -> None:
    path = leave_claim(folder, "another-machine", 1)
    assert folder.taken(RUN.address)
    long_ago = path.stat().st_mtime - STALE_SECONDS - 1
    os.utime(path, (long_ago, long_ago))
    assert not folder.taken(RUN.address)


def test_two_that_take_over_a_stale_claim_do_not_both_get_it(folder: StudyFolder) -> None:
    path = leave_claim(folder, "another-machine", 1)
    os.utime(path, (0, 0))
    with folder.claim(RUN), pytest.raises(TakenError), folder.claim(RUN):
        pass


def test_results_of_another_version_are_counted_and_left_out(folder: StudyFolder) -> None:
    folder.write_result(RUN, {"status": "finished"})
    assert folder.result(RUN) is not None
    path = folder.directory(RUN) / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "study": 0}))
    assert folder.result(RUN) is None
    assert folder.foreign() == {"0": 1}


def test_a_run_that_was_changed_by_hand_is_refused(folder: StudyFolder) -> None:
    folder.write_run(RUN)
    assert folder.read_run(RUN.address).content == RUN.content
    (folder.directory(RUN) / "run.json").write_text(json.dumps({**RUN.content, "rule": "softmax"}))
    with pytest.raises(StorageError, match="was changed, it is not the run of its address"):
        folder.read_run(RUN.address)


def test_a_damaged_result_says_what_to_do(folder: StudyFolder) -> None:
    folder.write_result(RUN, {})
    (folder.directory(RUN) / "result.json").write_text("{")
    with pytest.raises(StorageError, match=r"damaged .*; delete .* and run the study again"):
        folder.result(RUN)
