"""Levels with a cap: the kernel reads a few rows once more, and must agree with the reference on all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import reluformer as rf
from reluformer import kernels, rules
from reluformer.errors import ArgumentError
from reluformer.kernels import RowKeyBias, cpu_operators
from reluformer.rules import Formula, Level

pytestmark = pytest.mark.usefixtures("kernel")
IMPLEMENTATIONS = ("cpu", "cpu_dense", "cpu_sparse")
SOME = rules.ReluExp(threshold=0.0, spread=2.0, growth=0.0, cap=0.7)
"""At 2 deviations some rows have a best score less than 0.7 above their level, and some have not."""
ALL = rules.ReluExp(threshold=100.0, cap=0.7)
"""Every level lies above all scores."""


@dataclass(frozen=True)
class Squared(rules.Formulated):
    """ReLU(s - level)^2 with a cap, of a level that does not move with the scores."""

    name: ClassVar[str] = "squared"

    def formula(self) -> Formula:
        return Formula("relu_squared", exponent=0.5, level=Level(threshold=1.4, cap=0.5))


def memory(queries: int, slots: int, biased: bool = False) -> list[Tensor]:
    """Queries, keys, values (2, 2, T, 16) and, where `biased`, a bias of rows and one of keys."""
    generator = torch.Generator().manual_seed(queries + slots)
    tensors = [torch.randn(2, length, 2, 16, generator=generator).transpose(1, 2) for length in (queries, slots, slots)]
    if biased:
        tensors += [torch.randn(2, queries, generator=generator), torch.randn(2, 1, slots, generator=generator)]
    return tensors


def everything(tensors: list[Tensor], **options: Any) -> tuple[Tensor, ...]:
    """Return the read, its row sums, entropies and zeros, and the gradients of all inputs."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    bias = RowKeyBias(*leaves[3:]) if len(leaves) > 3 else None
    out, stats = rf.read(*leaves[:3], bias=bias, return_stats=True, **options)
    generator = torch.Generator().manual_seed(3)
    parts = (out, stats.row_sum)
    loss = sum((part * torch.randn(part.shape, generator=generator).to(part.dtype)).sum() for part in parts)
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)  # a centred level ignores the bias of a row
    found = (torch.zeros_like(x) if g is None else g for x, g in zip(leaves, gradients, strict=True))
    return (out.detach(), stats.row_sum.detach(), stats.entropy.detach(), stats.zero_fraction, *found)


def assert_like_reference(tensors: list[Tensor], impl: str, **options: Any) -> None:
    got = everything(tensors, impl=impl, **options)
    expected = everything([tensor.double() for tensor in tensors], impl="reference", **options)
    for one, other in zip(got, expected, strict=True):
        assert float((one - other).abs().max()) <= 2e-5 * max(1.0, float(other.abs().max()))


def test_the_cap_of_these_tests_changes_some_rows() -> None:
    q, k, _ = memory(233, 450)
    (capped, _), (free, _) = (rf.weights(q, k, rule=rule) for rule in (SOME, replace(SOME, cap=None)))
    assert 0.01 < float((capped != free).any(-1).double().mean()) < 0.9


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("rule", [SOME, ALL, Squared()], ids=["some", "all", "squared"])
def test_reads_statistics_and_gradients(rule: rules.Rule, biased: bool, causal: bool, masked: bool, impl: str) -> None:
    key_mask = torch.arange(450) < torch.tensor([450, 201])[:, None] if masked else None
    assert_like_reference(memory(233, 450, biased), impl, rule=rule, causal=causal, key_mask=key_mask)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("slots", [1, 2, 300])
def test_few_queries_and_rows_of_one_slot(slots: int, impl: str) -> None:
    assert_like_reference(memory(1, slots), impl, rule=ALL)
    assert_like_reference(memory(min(slots, 3), slots), impl, rule=SOME, causal=True)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_rows_of_equal_scores_take_their_first_slot(impl: str) -> None:
    """All keys are equal, so all scores are; the gradient of the level goes to the first slot that a row sees.

    Whole numbers, as products of them are exact in any order.
    """
    q, k, v = memory(40, 100)
    q, k = q.round(), k.round()[:, :, :1].expand(-1, -1, 100, -1).contiguous()
    key_mask = torch.arange(100) >= torch.tensor([0, 7])[:, None]
    assert_like_reference([q, k, v], impl, rule=SOME, key_mask=key_mask, scale=0.25)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_a_row_that_sees_nothing(impl: str) -> None:
    key_mask = torch.tensor([[True] * 90, [False] * 90])
    assert_like_reference(memory(70, 90), impl, rule=ALL, key_mask=key_mask)


def test_no_row_dies() -> None:
    q, k, v = memory(300, 300)
    for rule in (SOME, ALL):
        _, stats = rf.read(q, k, v, rule=rule, causal=True, impl="cpu", return_stats=True)
        assert not stats.dead.any()


def test_pairs_that_were_not_kept_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = memory(233, 450, biased=True)
    kept = everything(tensors, impl="cpu_sparse", rule=SOME)
    monkeypatch.setattr(cpu_operators, "KEPT_PAIRS", 0)
    for one, other in zip(kept, everything(tensors, impl="cpu_sparse", rule=SOME), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_threads_change_no_bit(impl: str, threads: None) -> None:
    found = []
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append(everything(memory(400, 400), impl=impl, rule=SOME, causal=True))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_second_derivative() -> None:
    tensors = [tensor[:, :, :9].contiguous() for tensor in memory(66, 66)]

    def second(impl: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [tensor.to(dtype).requires_grad_() for tensor in tensors]
        out = rf.read(*leaves, rule=ALL, impl=impl)
        first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(gradient.square().sum() for gradient in first), leaves)

    for one, other in zip(second("cpu", torch.float32), second("reference", torch.float64), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))


def test_auto_takes_the_kernel() -> None:
    q, k, v = memory(200, 200)
    visibility = kernels.Visibility(200, 200, q.device, causal=True)
    assert kernels.fastest(q, k, v, SOME, visibility, None, True) == "cpu"


def test_a_sigmoid_has_no_cap_here() -> None:
    @dataclass(frozen=True)
    class Soft(rules.Formulated):
        name: ClassVar[str] = "soft"

        def formula(self) -> Formula:
            return Formula("sigmoid", level=Level(threshold=1.0, cap=1.0))

    q, k, v = memory(70, 70)
    with pytest.raises(ArgumentError, match="a cap is for activations with exact zeros"):
        rf.read(q, k, v, rule=Soft(), impl="cpu")
