from __future__ import annotations

from reluformer.translation.resume_check import resume_check


def test_killed_with_sigkill_resumes_bit_for_bit() -> None:
    result = resume_check(updates=8, kill_after=(4,))
    assert result.killed_after == [4]
    assert result.exact, f"first difference at update {result.first_difference}"
