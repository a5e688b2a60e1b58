"""Settings for all tests: Triton under its interpreter where there is no GPU, and a summary of what was skipped.

Triton decides when it is imported whether functions are interpreted, those of its own library
included, and other packages import it as well (transformers). So this file imports it before any test module.
"""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

import pytest
import torch

SHOWN_REASONS = 12

with pytest.MonkeyPatch.context() as environment:
    if not torch.cuda.is_available():
        environment.setenv("TRITON_INTERPRET", "1")
    if find_spec("triton") is not None:
        from reluformer.kernels import triton_tiles  # noqa: F401


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each reason for which tests were skipped, with the number of tests, the most frequent first.

    With xdist this runs in the controller, which holds the reports of all workers.
    """
    skipped: list[pytest.TestReport] = terminalreporter.stats.get("skipped", [])
    if not skipped:
        terminalreporter.write_line("No test was skipped.")
        return
    reasons = Counter(skip_reason(report) for report in skipped)
    terminalreporter.section(f"{len(skipped)} skipped, and why", sep="-")
    for reason, count in reasons.most_common(SHOWN_REASONS):
        terminalreporter.write_line(f"{count:5}  {reason}")
    rest = reasons.most_common()[SHOWN_REASONS:]
    if rest:
        terminalreporter.write_line(f"{sum(count for _, count in rest):5}  for {len(rest)} other reasons (pytest -rs)")


def skip_reason(report: pytest.TestReport) -> str:
    """Return the reason that the test gave, on one line and without the word that pytest puts before it."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(reason.removeprefix("Skipped: ").split()) or "no reason given"
