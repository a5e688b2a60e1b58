"""What the live table of a study says."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from reluformer import files
from reluformer.cli import study
from reluformer.study.folder import StudyFolder
from reluformer.study.plan import make_plan
from reluformer.study.runner import Outlook


def test_the_time_left_goes_by_what_was_done_since_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that was stopped at 60 % and did a tenth more in a minute needs three more for the rest."""
    plan, folder = make_plan(["ffn"], "small", 1), StudyFolder(tmp_path)
    address = next(address for address, run in plan.runs.items() if run.kind == "training")
    outlook = Outlook({address: "running"}, started={address: 0.0})
    now = [100.0]
    monkeypatch.setattr(study.time, "monotonic", lambda: now[0])
    shown = study._Shown(plan, folder, Console(), jobs=1)
    for seconds, share, left in ((0, 0.6, None), (60, 0.7, 180.0)):
        now[0] = 100.0 + seconds
        files.write_json(folder.directory(address) / "progress.json", {"share": share})
        assert shown._left(outlook) == (left if left is None else pytest.approx(left))
