"""The option `--impl`, and which cases apply to which implementation.

pytest must know the option before it looks into the package, so this is a plugin. A test of the suite takes
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


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "reads(stats, mask): what a test of reluformer.conformance asks of read()")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.startswith("reluformer.conformance") and "impl_name" in metafunc.fixturenames:
        from reluformer.conformance.cases import parameters
        from reluformer.kernels import IMPLEMENTATIONS

        chosen = metafunc.config.getoption("--impl") or IMPLEMENTATIONS
        marker = metafunc.definition.get_closest_marker("reads")
        options = dict(marker.kwargs) if marker else {}
        item = "case" if "case" in metafunc.fixturenames else "rule"
        found = [parameter for impl in chosen for parameter in parameters(impl, item, **options)]
        metafunc.parametrize(("impl_name", item), found)
