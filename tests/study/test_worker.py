"""Two processes never do the same run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from reluformer.study.worker import STALE_SECONDS, LockedError, lock, locked


def test_a_locked_run_is_refused_to_others_until_it_is_released(tmp_path: Path) -> None:
    with lock(tmp_path):
        assert locked(tmp_path)
        with pytest.raises(LockedError, match="another process works on this run"), lock(tmp_path):
            pass
    assert not locked(tmp_path)
    with lock(tmp_path):
        assert locked(tmp_path)


def leave_lock(tmp_path: Path, host: str, pid: int) -> Path:
    path = tmp_path / "lock-0"
    path.write_text(json.dumps({"host": host, "pid": pid}))
    return path


def test_the_lock_of_a_dead_process_is_stale(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    leave_lock(tmp_path, socket.gethostname(), ended.pid)
    assert not locked(tmp_path)
    with lock(tmp_path):
        assert (tmp_path / "lock-1").exists()
    assert list(tmp_path.glob("lock-*")) == []


def test_the_lock_of_another_machine_is_stale_when_nobody_touches_it(tmp_path: Path) -> None:
    path = leave_lock(tmp_path, "another-machine", 1)
    assert locked(tmp_path)
    long_ago = path.stat().st_mtime - STALE_SECONDS - 1
    os.utime(path, (long_ago, long_ago))
    assert not locked(tmp_path)


def test_two_that_take_over_a_stale_lock_do_not_both_get_it(tmp_path: Path) -> None:
    path = leave_lock(tmp_path, "another-machine", 1)
    os.utime(path, (0, 0))
    with lock(tmp_path), pytest.raises(LockedError), lock(tmp_path):
        pass
