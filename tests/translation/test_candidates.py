from __future__ import annotations

import pytest
import torch

from reluformer.translation import candidates


@pytest.mark.parametrize("size", [5, 1000, 1024, 1030, 8000, 8191])
@pytest.mark.parametrize("k", [1, 4, 40])
def test_the_best_are_those_of_a_full_sort(size, k):
    logits = torch.randn(6, size, generator=torch.Generator().manual_seed(size + k))
    logits[1, : size - 3] = float("-inf")
    values, places = candidates.best(logits, k)
    torch.testing.assert_close(values, logits.sort(1, descending=True).values[:, : min(k, size)])
    torch.testing.assert_close(logits.gather(1, places), values)
    assert all(len(set(row)) == len(row) for row in places.tolist())
