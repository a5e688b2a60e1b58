"""The `--impl` option. pytest must know it before it looks into the package, so it is a plugin."""

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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.startswith("reluformer.conformance") and "impl_name" in metafunc.fixturenames:
        from reluformer.kernels import IMPLEMENTATIONS

        chosen = metafunc.config.getoption("--impl") or IMPLEMENTATIONS
        metafunc.parametrize("impl_name", chosen)
