"""The options `--impl` and `--rules`, and which cases apply to which implementation.

pytest must know the options before it looks into the package, so this is a plugin. A test of the suite takes
`impl_name` and either `case` or `rule`; it gets those pairs that the implementation can read. The marker
`reads(stats=True)` or `reads(mask=True)` says that a test asks for row statistics or for a dense mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--impl",
        action="append",
        metavar="NAME | PACKAGE:FUNCTION",
        help="reluformer.conformance: the implementation of read() to test (default: every built-in one)",
    )
    parser.addoption(
        "--rules",
        metavar="NAME,NAME",
        help="reluformer.conformance: the rules to test (default: every rule)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "reads(stats, mask): what a test of reluformer.conformance asks of read()")
    if config.getoption("--impl"):
        _check_implementations(config)
    if config.getoption("--rules") is not None:
        _check_rules(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.startswith("reluformer.conformance") and "impl_name" in metafunc.fixturenames:
        from reluformer.conformance.cases import distinct, parameters
        from reluformer.kernels import IMPLEMENTATIONS

        chosen = metafunc.config.getoption("--impl") or IMPLEMENTATIONS
        named = metafunc.config.getoption("--rules")
        rules = None if named is None else distinct(named.split(","))
        marker = metafunc.definition.get_closest_marker("reads")
        options = dict(marker.kwargs) if marker else {}
        item = "case" if "case" in metafunc.fixturenames else "rule"
        found = [parameter for impl in chosen for parameter in parameters(impl, item, rules, **options)]
        metafunc.parametrize(("impl_name", item), found)


def _check_implementations(config: pytest.Config) -> None:
    """Raise a usage error, which ends pytest with exit code 4, if an implementation does not exist."""
    import pytest

    from reluformer.conformance.cases import implementation
    from reluformer.errors import ArgumentError

    for impl in config.getoption("--impl"):
        try:
            implementation(impl)
        except ArgumentError as refusal:
            raise pytest.UsageError(str(refusal)) from None


def _check_rules(config: pytest.Config) -> None:
    """Raise a usage error, which ends pytest with exit code 4, unless some implementation reads the named rules."""
    import pytest

    from reluformer.conformance.cases import check_rules
    from reluformer.errors import ArgumentError
    from reluformer.kernels import IMPLEMENTATIONS

    refusals = []
    for impl in config.getoption("--impl") or IMPLEMENTATIONS:
        try:
            return check_rules(impl, config.getoption("--rules").split(","))
        except ArgumentError as refusal:
            refusals.append(str(refusal))
    raise pytest.UsageError(refusals[0])


class Outcome:
    """A pytest plugin that collects which tests passed and which failed, for `conformance.check`."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid.rpartition("::")[2])
        elif report.when == "call" and report.passed:
            self.passed.append(report.nodeid.rpartition("::")[2])
