"""Fixtures of the conformance suite."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reluformer.conformance.cases import Read, implementation
from reluformer.errors import ArgumentError


@pytest.fixture
def read(impl_name: str, request: pytest.FixtureRequest) -> Read:
    """Returns the implementation under test; what another package's function refuses or does not know is skipped.

    A rule that --rules names must be read at least without options.
    """
    chosen = implementation(impl_name)
    named = request.config.getoption("--rules") is not None
    if ":" not in impl_name:
        return chosen

    def or_skip(*args: Any, **options: Any) -> Any:
        try:
            return chosen(*args, **options)
        except ArgumentError as refusal:
            if named and options.keys() <= {"rule"}:
                raise
            pytest.skip(f"{impl_name}: {refusal}")
        except TypeError as refusal:
            if "unexpected keyword argument" not in str(refusal):
                raise
            pytest.skip(f"{impl_name}: {refusal}")

    return or_skip


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill uninitialised floating-point memory with NaN, so that a forgotten write shows."""

    def poison(allocate: Any) -> Any:
        def allocate_nan(*args: Any, **options: Any) -> Any:
            tensor = allocate(*args, **options)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        return allocate_nan

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poison(getattr(owner, name)))
