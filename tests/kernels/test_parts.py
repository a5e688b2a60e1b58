"""Reads in parts: key heads, packed sequences, and blocks that forget gates prune without any loss."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import reluformer as rf
from reluformer import memory, rules
from reluformer.kernels import cpu, parts

pytestmark = pytest.mark.skipif(cpu.unavailable() is not None, reason=f"cpu: {cpu.unavailable()}")
PRUNED = ("relu", "relu_plain", "relu2", "relu_norm", "relu_exp", "relu_chance", "tra")


def draw(heads: int, length: int, key_heads: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, 2, key_heads, length, 16, generator=generator)
    return torch.randn(2, heads, length, 16, generator=generator), k, v


def gate_of(half_lives: list[float], length: int) -> Tensor:
    """Return the sums of constant gates that forget half in so many tokens, (1, H, length)."""
    rates = math.log(2) / torch.tensor(half_lives)
    return torch.cumsum(-rates[:, None].expand(-1, length), dim=-1)[None]


@pytest.mark.parametrize("rule", PRUNED)
def test_pruned_reads_and_their_gradients_lose_nothing(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    length, calls = 1100, []
    pruned = parts.read_blocks
    monkeypatch.setattr(parts, "read_blocks", lambda *given: calls.append(1) or pruned(*given))
    given = (*draw(4, length, 2), gate_of([2, 8, 20, 40], length).repeat(2, 1, 1))
    found = []
    for impl, dtype in (("cpu", torch.float32), ("reference", torch.float64)):
        leaves = [x.to(dtype).requires_grad_() for x in given]
        out = rf.read(*leaves[:3], rule, causal=True, gate=leaves[3], impl=impl)
        probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        found.append((out, *torch.autograd.grad((out * probe).sum(), leaves)))
    assert len(calls) == 2  # one for each head of keys
    for got, expected in zip(*found, strict=True):
        assert (got.double() - expected).abs().max() <= 3e-5 * expected.abs().max()


@pytest.mark.parametrize("rule", ["relu", "relu_exp", "relu_chance"])
def test_sums_of_minus_11000_cost_no_digits(rule: str) -> None:
    length, newest = 16384, torch.arange(40, 16384, 331)
    q, k, v = (x[:1] for x in draw(2, length, 2))
    gate = gate_of([1.0, 100.0], length)
    assert gate.min() < -11_000
    out = rf.read(q, k, v, rule, causal=True, gate=gate, impl="cpu")
    mask = torch.arange(length) <= newest[:, None]
    sums = gate.double()
    moved = memory.RowKeyBias(sums[:, :, newest], -sums)
    expected, _ = memory.weights(q[:, :, newest].double(), k.double(), rule, mask=mask, gate=moved)
    read = expected @ v.double()
    assert (out[:, :, newest] - read).abs().max() <= 2e-5 * read.abs().max()


def test_the_share_of_pairs_that_are_never_multiplied() -> None:
    q, k, _ = draw(2, 2000, 2)
    for half_life, least, most in ((2.0, 0.8, 0.95), (1e5, 0.0, 0.0)):
        share = memory.skipped_share(q, k, "relu", gate=gate_of([half_life] * 2, 2000))
        assert least <= share <= most
    weights, _ = memory.weights(q, k, "relu", causal=True, gate=gate_of([2.0] * 2, 2000))
    zeros = float((weights == 0).sum() - 4 * 2000 * 1999 // 2) / (4 * 2000 * 2001 // 2)
    assert memory.skipped_share(q, k, "relu", gate=gate_of([2.0] * 2, 2000)) < zeros
    assert memory.skipped_share(q, k, "softmax", gate=gate_of([2.0] * 2, 2000)) == 0


@pytest.mark.parametrize("stray", [math.nan, math.inf])
def test_what_is_not_finite_is_read_where_it_is_seen(stray: float) -> None:
    q, k, v = draw(2, 1100, 2)
    k[:, :, 500] = stray
    out = rf.read(q, k, v, "relu", causal=True, gate=gate_of([2.0] * 2, 1100), impl="cpu")
    assert torch.isfinite(out[:, :, :500]).all()
    assert not torch.isfinite(out[:, :, 500]).all()


@pytest.mark.parametrize("mode", ["cpu", "cpu_dense", "cpu_sparse"])
def test_packed_sequences_with_grouped_heads_and_a_key_mask(mode: str) -> None:
    q, k, v = (x[:1] for x in draw(4, 300, 2))
    options = {"offsets": torch.tensor([0, 130, 130, 131, 300]), "key_mask": torch.arange(300)[None] % 7 > 0}
    for rule in ("relu", "relu_chance"):
        for causal in (False, True):
            got, stats = rf.read(q, k, v, rule, causal=causal, impl=mode, return_stats=True, **options)
            wide = [x.double() for x in (q, k, v)]
            expected, exact = rf.read(*wide, rule, causal=causal, impl="reference", return_stats=True, **options)
            assert (got - expected).abs().max() <= 2e-5 * expected.abs().max()
            assert torch.equal(stats.n_visible, exact.n_visible)


def test_long_reads_with_a_window_need_no_scores_of_all_slots() -> None:
    q, k, v = (x[:1] for x in draw(2, 3000, 1))
    out = rf.read(q, k, v, "relu_chance", causal=True, window=(40, 0))
    expected = rf.read(q[:, :, -50:], k[:, :, -90:], v[:, :, -90:], "relu_chance", causal=True, window=(40, 0))
    torch.testing.assert_close(out[:, :, -50:], expected)
    assert rules.get("relu_chance").wide_scores


@pytest.mark.parametrize("rule", ["relu", "relu_exp", "relu_chance"])
def test_a_gate_that_is_no_number_is_not_pruned_away(rule: str) -> None:
    length, place = 1500, 700
    q, k, v = draw(2, length, 2)
    gate = gate_of([2, 40], length).repeat(2, 1, 1)
    gate[..., place] = math.nan
    rows = [
        rf.read(q, k, v, rule=rule, gate=gate, causal=True, impl=impl).isfinite().all(-1)
        for impl in ("cpu", "reference")
    ]
    assert not rows[0][..., place:].any() and torch.equal(*rows)
