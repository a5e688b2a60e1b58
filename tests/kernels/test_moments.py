from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from reluformer.kernels import cpu
from reluformer.kernels.moments import CHUNK, row_moments
from reluformer.kernels.native.library import PATHS
from reluformer.kernels.operands import Visibility

CASES = list(product([False, True], [False, True], [False, True], [(3, 20), (20, 20), (150, 150), (70, 200)]))


def dense(q: Tensor, k: Tensor, keys: Tensor | None, visibility: Visibility, scale: float) -> tuple[Tensor, Tensor]:
    scores = scale * q @ k.transpose(-1, -2) + (0 if keys is None else keys.unsqueeze(-2))
    visible = visibility.dense()
    scores = scores if visible is None else scores.masked_fill(~visible, 0)
    seen = torch.ones_like(scores) if visible is None else visible.to(scores.dtype).expand_as(scores)
    n = seen.sum(-1)
    mean = (scores * seen).sum(-1) / n
    return mean, ((scores - mean.unsqueeze(-1)).square() * seen).sum(-1) / n


@pytest.mark.parametrize(("causal", "masked", "biased", "size"), CASES)
def test_equal_to_the_moments_of_the_scores_with_their_gradients(
    causal: bool, masked: bool, biased: bool, size: tuple[int, int]
) -> None:
    """In float64, where both ways agree to about the square root of its precision or better."""
    queries, slots = size
    q = torch.randn(2, 2, queries, 5, dtype=torch.float64, requires_grad=True)
    k = torch.randn(2, 2, slots, 5, dtype=torch.float64, requires_grad=True)
    keys = torch.randn(1, 2, slots, dtype=torch.float64, requires_grad=True) if biased else None
    mask = torch.rand(2, slots) < 0.7 if masked else None
    if mask is not None:
        mask[:, slots - queries] = True  # so that every query sees something
    visibility = Visibility(queries, slots, q.device, causal, mask)
    given = [q, k] if keys is None else [q, k, keys]
    weights = torch.randn(2, 2, 2, queries, dtype=torch.float64)
    outcomes = []
    for moments in (row_moments(q, k, keys, visibility, 0.3, True), dense(q, k, keys, visibility, 0.3)):
        assert moments[1] is not None
        gradients = torch.autograd.grad((moments[0] * weights[0] + moments[1] * weights[1]).sum(), given)
        outcomes.append([moments[0], moments[1], *gradients])
    for ours, wanted in zip(*outcomes, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "slots", "width"), [(70, 70, 5), (96, 96, 64), (130, 500, 33), (300, 300, 16)])
def test_the_library_agrees_in_float32(
    monkeypatch: pytest.MonkeyPatch, path: str, causal: bool, queries: int, slots: int, width: int
) -> None:
    """Relative to the greatest entry, with heads that lie between the tokens in memory; hidden slots hold anything."""
    library = cpu.loaded()
    if PATHS.index(path) > library.path:
        pytest.skip(f"this processor has no {path}")
    monkeypatch.setattr(library, "path", PATHS.index(path))
    q, k = (torch.randn(2, length, 3, width).transpose(1, 2).requires_grad_() for length in (queries, slots))
    mask = torch.rand(2, slots) < 0.7
    mask[:, 0] = True
    with torch.no_grad():
        k[:, :, 5][~mask[:, 5]] = 1e30
    visibility, weights = Visibility(queries, slots, q.device, causal, mask), torch.randn(2, 2, 3, queries)
    exact = [part.detach().double().requires_grad_() for part in (q, k)]
    ours_and_wanted = []
    for given, (mean, variance) in (
        ([q, k], row_moments(q, k, None, visibility, 0.3, True)),
        (exact, dense(exact[0], exact[1], None, visibility, 0.3)),
    ):
        assert variance is not None
        loss = (mean * weights[0] + variance * weights[1]).sum()
        ours_and_wanted.append([mean, variance, *torch.autograd.grad(loss, given)])
    for ours, wanted in zip(*ours_and_wanted, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - wanted).abs().max() <= 3e-5 * wanted.abs().max()


@pytest.mark.usefixtures("kernel")
def test_the_operator_is_sound() -> None:
    """Fake tensors, strides and gradients, as torch.compile wants them."""
    y, x = (torch.randn(1, 2, 100, 8, requires_grad=True) for _ in range(2))
    checked = torch.library.opcheck(torch.ops.reluformer.cpu_moments, (y, x, None, True, 0.3))
    assert set(checked.values()) == {"SUCCESS"}


@pytest.mark.parametrize("causal", [False, True])
def test_the_mean_alone(causal: bool) -> None:
    q, k = torch.randn(1, 2, 30, 4), torch.randn(1, 2, 30, 4)
    visibility = Visibility(30, 30, q.device, causal)
    mean, nothing = row_moments(q, k, None, visibility, 1.0, False)
    assert nothing is None
    torch.testing.assert_close(mean, dense(q, k, None, visibility, 1.0)[0])


@pytest.mark.parametrize("causal", [False, True])
def test_what_all_keys_have_in_common_costs_no_digits(causal: bool) -> None:
    """Keys 1000 away from zero in float32: the spread of the scores is still right to four digits."""
    q, k = torch.randn(1, 1, 100, 8), torch.randn(1, 1, 100, 8) + 1000
    visibility = Visibility(100, 100, q.device, causal)
    _, variance = row_moments(q, k, None, visibility, 1.0, True)
    wanted = dense(q.double(), k.double(), None, visibility, 1.0)[1]
    assert variance is not None
    torch.testing.assert_close(variance.double(), wanted, rtol=1e-4, atol=1e-3)


def test_a_causal_row_knows_nothing_of_the_future() -> None:
    length, now = 3 * CHUNK, CHUNK + 7
    q, k = torch.randn(1, 1, length, 6), torch.randn(1, 1, length, 6)
    visibility = Visibility(length, length, q.device, True)
    before = row_moments(q, k, None, visibility, 1.0, True)
    k[:, :, now:] = 100 * torch.randn(1, 1, length - now, 6)
    after = row_moments(q, k, None, visibility, 1.0, True)
    for old, new in zip(before, after, strict=True):
        assert old is not None and new is not None
        assert torch.equal(old[..., :now], new[..., :now]) and not torch.equal(old[..., now:], new[..., now:])
