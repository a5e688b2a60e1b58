"""Which implementation `auto` takes, and what happens without a compiled library."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import reluformer as rf
from reluformer import kernels, rules
from reluformer.errors import ArgumentError, UnknownNameError
from reluformer.kernels import cpu, reference


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The implementations that were called, in order."""
    calls: list[str] = []

    def watched(name: str, read: Any) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(name)
            return read(*arguments)

        return call

    for module, name in ((cpu, "cpu"), (reference, "reference")):
        monkeypatch.setattr(module, "read", watched(name, module.read))
    return calls


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(
    ("rule", "queries", "slots", "options", "expected"),
    [
        ("relu", 8 + 1, 9, {}, "reference"),
        ("relu", 8 + 1, 9, {"return_stats": True}, "cpu"),
        ("relu", 8 + 1, 9, {"causal": True}, "cpu"),
        ("relu", 8 + 1, 9, {"key_mask": torch.arange(9)[None] < 7}, "cpu"),
        ("relu", 512, 512, {}, "cpu"),
        ("relu", 1, 512, {}, "reference"),
        ("relu", 1, 512, {"causal": True}, "reference"),  # which hides nothing
        ("relu", 2, 512, {"causal": True}, "cpu"),
        ("relu", 1, 16384, {}, "cpu"),
        ("relu_exp", 1, 16384, {}, "reference"),
        ("relu_exp", 63, 4096, {"causal": True}, "reference"),
        ("relu_exp", 64, 64, {"causal": True}, "cpu"),
        ("relu_exp", 127, 512, {"return_stats": True}, "reference"),
        ("relu_exp", 128, 128, {}, "cpu"),
    ],
)
def test_auto_takes_what_pays(
    taken: list[str], rule: str, queries: int, slots: int, options: dict[str, Any], expected: str
) -> None:
    q, k, v = torch.randn(1, 2, queries, 8), torch.randn(1, 2, slots, 8), torch.randn(1, 2, slots, 8)
    rf.read(q, k, v, rule=rule, **options)
    assert taken == [expected]


@pytest.mark.usefixtures("kernel")
def test_a_few_queries_that_train_take_the_reference(taken: list[str]) -> None:
    q, k = torch.randn(1, 2, 1, 8, requires_grad=True), torch.randn(1, 2, 16384, 8)
    rf.read(q, k, k, rule="relu")
    assert taken == ["reference"]


def test_what_the_kernel_refuses_the_reference_does(taken: list[str]) -> None:
    q = torch.randn(1, 2, 512, 8)
    rf.read(q, q, q, rule="relu", mask=torch.ones(512, 512, dtype=torch.bool))
    assert taken == ["reference"]


def test_without_a_library_the_reference_serves(taken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "unavailable", lambda: "nobody built it")
    q = torch.randn(1, 2, 512, 8)
    assert torch.equal(rf.read(q, q, q), rf.read(q, q, q, impl="reference"))
    assert taken == ["reference", "reference"]
    with pytest.raises(ArgumentError, match="nobody built it"):
        rf.read(q, q, q, impl="cpu")
    assert kernels.availability()["cpu"] == "not available: nobody built it"


@pytest.mark.parametrize("has_library", [True, False])
@pytest.mark.parametrize("stats", [False, True])
def test_centred_scores_keep_their_digits_under_autocast(
    monkeypatch: pytest.MonkeyPatch, has_library: bool, stats: bool
) -> None:
    """What all slots have in common is far larger than what tells them apart, and bfloat16 has three digits."""
    if not has_library:
        monkeypatch.setattr(cpu, "unavailable", lambda: "nobody built it")
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 4, 8, 128, 64, generator=generator).bfloat16()
    q, k = q + 15 / 8, k + 15 / 8
    with torch.autocast("cpu", dtype=torch.bfloat16):
        read = rf.read(q, k, v, rule="relu_exp", return_stats=stats)
    out = read[0] if isinstance(read, tuple) else read
    expected = rf.read(q.double(), k.double(), v.double(), rule="relu_exp", impl="reference")
    assert float((out - expected).norm() / expected.norm()) <= 4e-3  # the values and the result are in bfloat16


def test_every_implementation_tells_whether_it_can_be_used() -> None:
    states = kernels.availability()
    assert ("auto", *states) == kernels.IMPLEMENTATIONS
    assert all(state.startswith(("available", "not available: ")) for state in states.values())


def test_an_implementation_that_does_not_exist() -> None:
    q = torch.randn(1, 1, 2, 4)
    with pytest.raises(UnknownNameError, match="unknown impl 'cpuu'"):
        rf.read(q, q, q, impl="cpuu")


@pytest.mark.parametrize("rule", rules.names())
@pytest.mark.parametrize(("width", "value_width"), [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_heads_of_width_0_are_read_by_the_reference(rule: str, width: int, value_width: int, masked: bool) -> None:
    q, k, v = (torch.randn(1, 2, 70, size, requires_grad=True) for size in (width, width, value_width))
    key_mask = torch.arange(70)[None] < 60 if masked else None
    out, stats = rf.read(q, k, v, rule=rule, causal=True, key_mask=key_mask, return_stats=True)
    plain = rf.read(q, k, v, rule=rule, causal=True, key_mask=key_mask)
    assert out.shape == plain.shape == (1, 2, 70, value_width)
    for read in (out.sum() + stats.row_sum.sum(), plain.sum()):
        gradients = torch.autograd.grad(read, (q, k, v), allow_unused=True)
        assert all(gradient is None or torch.isfinite(gradient).all() for gradient in gradients)
    for impl in ("cpu", "sdpa", "triton"):
        with pytest.raises(ArgumentError, match="the heads have width 0"):
            rf.read(q, k, v, rule=rule, impl=impl)


def test_statistics_and_weights_of_rows_that_do_not_see_a_nan() -> None:
    q, k, v = torch.randn(3, 1, 2, 9, 8)
    spoilt = k.clone()
    spoilt[:, :, 6] = torch.nan
    for impl in ("reference", "auto"):
        expected, got = (
            rf.read(q, keys, v, rule="relu_exp", causal=True, impl=impl, return_stats=True)[1] for keys in (k, spoilt)
        )
        for a, b in zip(expected, got, strict=True):
            torch.testing.assert_close(a[:, :, :6], b[:, :, :6])
    q.requires_grad_()
    dense, _ = rf.weights(q, spoilt, "relu", causal=True)
    torch.testing.assert_close(dense[:, :, :6], rf.weights(q, k, "relu", causal=True)[0][:, :, :6])
    [gradient] = torch.autograd.grad(dense[:, :, :6].sum(), q)
    assert torch.isfinite(gradient).all()


def test_a_memory_of_nothing_but_nan_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that diverged must not also become slow."""
    calls = []
    once = reference.read
    monkeypatch.setattr(reference, "read", lambda *arguments: calls.append(1) or once(*arguments))
    q = torch.full((1, 1, 9, 8), torch.nan)
    assert rf.read(q, q, q, causal=True, impl="reference").isnan().all()
    assert len(calls) == 1


@pytest.mark.parametrize("rule", ["sparsemax", "entmax15"])
def test_a_row_of_a_sparse_rule_that_sees_a_nan_is_nan(rule: str) -> None:
    q, k, v = torch.randn(3, 1, 2, 9, 8)
    k[0, 1, 4] = torch.nan
    out = rf.read(q, k, v, rule=rule)
    assert torch.isfinite(out[0, 0]).all()
    assert out[0, 1].isnan().all()
