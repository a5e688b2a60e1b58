"""What the tests of the kernels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from reluformer.kernels import cpu


@pytest.fixture
def kernel() -> None:
    """Skips where the C++ library was not built."""
    if reason := cpu.unavailable():
        pytest.skip(reason)


@pytest.fixture
def threads() -> Iterator[None]:
    """Leaves torch with as many threads as it had."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
