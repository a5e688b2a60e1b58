"""Comparisons with the reference in float64, and the properties that no rule and no implementation may lose."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reluformer.conformance import cases
from reluformer.conformance.cases import ENTROPY_GRADIENT_TOLERANCE, TOLERANCE, Case, Read, error

reference = cases.implementation("reference")


def test_read_and_its_gradients(case: Case, read: Read) -> None:
    inputs, options = case.tensors()
    out, gradients = cases.run(read, inputs, options)
    expected, expected_gradients = cases.run(reference, cases.in_float64(inputs), options)
    assert out.dtype == case.dtype
    assert error(out, expected, case.dtype) <= TOLERANCE[case.dtype]
    for name, gradient in gradients.items():
        assert error(gradient, expected_gradients[name], case.dtype) <= TOLERANCE[case.dtype], name


@pytest.mark.reads(stats=True)
def test_statistics_and_their_gradients(case: Case, read: Read) -> None:
    inputs, options = case.tensors()
    stats, gradients = cases.run_stats(read, inputs, options)
    expected, expected_gradients = cases.run_stats(reference, cases.in_float64(inputs), options)
    assert torch.equal(stats.n_visible, expected.n_visible)
    for field in ("row_sum", "entropy", "zero_fraction"):
        assert (
            error(getattr(stats, field).detach(), getattr(expected, field).detach(), case.dtype)
            <= TOLERANCE[case.dtype]
        ), field
    for name, gradient in gradients.items():
        assert error(gradient, expected_gradients[name], case.dtype) <= ENTROPY_GRADIENT_TOLERANCE, name


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def memory(queries: int, slots: int, batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return draw(batch, 2, queries, 8), draw(batch, 2, slots, 8, seed=1), draw(batch, 2, slots, 6, seed=2)


def close(a: Tensor, b: Tensor) -> bool:
    tolerance = TOLERANCE[torch.float32]
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance)


def test_padding_changes_nothing(rule: str, read: Read) -> None:
    q, k, v = memory(5, 7)
    padded_k = torch.cat([k, 100 * draw(2, 2, 4, 8, seed=3)], dim=2)
    padded_v = torch.cat([v, 100 * draw(2, 2, 4, 6, seed=4)], dim=2)
    key_mask = (torch.arange(11) < 7).expand(2, 11)
    assert close(read(q, padded_k, padded_v, rule=rule, key_mask=key_mask), read(q, k, v, rule=rule))


def test_the_rest_of_the_batch_changes_nothing(rule: str, read: Read) -> None:
    q, k, v = memory(5, 7, batch=3)
    key_mask = torch.arange(7) < torch.tensor([7, 3, 5])[:, None]
    together = read(q, k, v, rule=rule, key_mask=key_mask)
    for i in range(3):
        alone = read(q[i : i + 1], k[i : i + 1], v[i : i + 1], rule=rule, key_mask=key_mask[i : i + 1])
        assert close(together[i : i + 1], alone)


def test_no_row_sees_the_future(rule: str, read: Read) -> None:
    q, k, v = memory(9, 9)
    out = read(q, k, v, rule=rule, causal=True)
    for t in range(1, 9):
        prefix = read(q[:, :, :t], k[:, :, :t], v[:, :, :t], rule=rule, causal=True)
        assert close(prefix, out[:, :, :t])


def test_cached_queries_equal_the_full_pass(rule: str, read: Read) -> None:
    q, k, v = memory(9, 9)
    out = read(q, k, v, rule=rule, causal=True)
    for newest in (1, 2, 5):
        assert close(read(q[:, :, -newest:], k, v, rule=rule, causal=True), out[:, :, -newest:])


def test_the_order_of_slots_changes_nothing(rule: str, read: Read) -> None:
    q, k, v = memory(5, 12)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(5))
    key_mask = (torch.arange(12) % 3 > 0).expand(2, 12)
    shuffled = read(q, k[:, :, order], v[:, :, order], rule=rule, key_mask=key_mask[:, order])
    assert close(shuffled, read(q, k, v, rule=rule, key_mask=key_mask))


@pytest.mark.reads(mask=True)
def test_key_mask_and_mask_agree(rule: str, read: Read) -> None:
    q, k, v = memory(6, 6)
    key_mask = torch.arange(6) < torch.tensor([4, 6])[:, None]
    dense = key_mask[:, None, None, :] & torch.ones(6, 6, dtype=torch.bool).tril()
    by_keys = read(q, k, v, rule=rule, causal=True, key_mask=key_mask)
    assert close(by_keys, read(q, k, v, rule=rule, mask=dense))


def test_a_row_that_sees_nothing_reads_zero_with_finite_gradients(rule: str, read: Read) -> None:
    q, k, v = (tensor.requires_grad_() for tensor in memory(4, 5))
    key_mask = torch.tensor([[True] * 5, [False] * 5])
    out = read(q, k, v, rule=rule, key_mask=key_mask)
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
    for gradient in gradients:
        assert torch.isfinite(gradient).all()
        assert torch.equal(gradient[1], torch.zeros_like(gradient[1]))


@pytest.mark.parametrize("stray", [float("nan"), float("inf"), -float("inf")], ids=["nan", "inf", "-inf"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_what_stands_in_hidden_slots_reaches_nothing(rule: str, read: Read, causal: bool, stray: float) -> None:
    q, k, v = memory(9, 9)
    key_mask = torch.arange(9) < torch.tensor([5, 9])[:, None]
    spoilt_k, spoilt_v = (tensor.masked_fill(~key_mask[:, None, :, None], stray) for tensor in (k, v))
    finite = [tensor.requires_grad_() for tensor in (q.clone(), k, v)]
    spoilt = [tensor.requires_grad_() for tensor in (q.clone(), spoilt_k, spoilt_v)]
    expected, got = (read(*memory, rule=rule, causal=causal, key_mask=key_mask) for memory in (finite, spoilt))
    assert torch.equal(got, expected)
    gradients = (torch.autograd.grad(out.square().sum(), leaves) for out, leaves in ((expected, finite), (got, spoilt)))
    for from_finite, from_spoilt in zip(*gradients, strict=True):
        assert torch.equal(from_spoilt, from_finite)


@pytest.mark.reads(mask=True)
def test_what_a_mask_hides_from_all_queries_reaches_nothing(rule: str, read: Read) -> None:
    q, k, v = memory(4, 7)
    for mask in (torch.arange(7) < 5, (torch.arange(7) < 5).expand(2, 1, 4, 7)):
        hidden = (torch.arange(7) >= 5)[:, None]
        spoilt = [
            tensor.requires_grad_() for tensor in (q.clone(), *(t.masked_fill(hidden, torch.nan) for t in (k, v)))
        ]
        out = read(*spoilt, rule=rule, mask=mask)
        assert torch.equal(out, read(q, k, v, rule=rule, mask=mask))
        for gradient in torch.autograd.grad(out.square().sum(), spoilt):
            assert torch.isfinite(gradient).all()


STRAYS = pytest.mark.parametrize("stray", [float("nan"), float("inf"), -float("inf")], ids=["nan", "inf", "-inf"])
PLACES = pytest.mark.parametrize("places", ["key", "value", "both"])


def check_that_rows_do_not_see(slot: int, rows: int, stray: float, places: str, read: Read, **options: object) -> None:
    """Compare the first `rows` of a read, and the gradients of a loss of these, with those of a finite memory."""
    q, k, v = memory(9, 9)
    spoilt_k, spoilt_v = k.clone(), v.clone()
    if places != "value":
        spoilt_k[:, :, slot] = stray
    if places != "key":
        spoilt_v[0, :, slot, 2] = stray
    assert close(read(q, spoilt_k, spoilt_v, **options)[:, :, :rows], read(q, k, v, **options)[:, :, :rows])
    found = []
    for keys, values in ((k, v), (spoilt_k, spoilt_v)):
        leaves = [tensor.clone().requires_grad_() for tensor in (q, keys, values)]
        out = read(*leaves, **options)[:, :, :rows]
        found.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    for from_finite, from_spoilt in zip(*found, strict=True):
        assert close(from_spoilt, from_finite)


@STRAYS
@PLACES
def test_what_stands_in_the_future_reaches_no_row(rule: str, read: Read, stray: float, places: str) -> None:
    check_that_rows_do_not_see(6, 6, stray, places, read, rule=rule, causal=True)


@STRAYS
@PLACES
@pytest.mark.reads(mask=True)
def test_what_a_mask_hides_from_some_queries_does_not_reach_them(
    rule: str, read: Read, stray: float, places: str
) -> None:
    mask = torch.ones(9, 9, dtype=torch.bool)
    mask[:5, 3] = False
    check_that_rows_do_not_see(3, 5, stray, places, read, rule=rule, mask=mask)


@pytest.mark.parametrize("stray", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_a_row_that_sees_a_value_that_is_not_finite_says_so(rule: str, read: Read, stray: float) -> None:
    q, k, v = memory(9, 9)
    k[:, :, 6] = 10 * q[:, :, 6:].mean(2)
    v[:, :, 6] = stray
    out = read(q, k, v, rule=rule, causal=True)
    assert not torch.isfinite(out[:, :, 6:]).all()
    assert torch.isfinite(out[:, :, :6]).all()


@pytest.mark.parametrize(("queries", "slots"), [(3, 0), (0, 3), (0, 0)])
def test_empty_memories_and_empty_queries(rule: str, read: Read, queries: int, slots: int) -> None:
    q, k, v = memory(queries, slots)
    out = read(q, k, v, rule=rule)
    assert torch.equal(out, torch.zeros(2, 2, queries, 6))


def test_a_bias_is_added_to_the_scores(rule: str, read: Read) -> None:
    q, k, v = memory(4, 5)
    bias = draw(1, 1, 1, 5, seed=6)
    wider_q = torch.cat([q, torch.ones(2, 2, 4, 1)], dim=-1)
    wider_k = torch.cat([k, bias.transpose(-1, -2).expand(2, 2, 5, 1)], dim=-1)
    assert close(read(q, k, v, rule=rule, bias=bias, scale=1.0), read(wider_q, wider_k, v, rule=rule, scale=1.0))
