"""The two terms, by hand and by gradient, and what is left out of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import reluformer as rf
from reluformer import regularizers
from reluformer.errors import ArgumentError
from reluformer.memory import RowStats
from reluformer.regularizers import RegularizerConfig

CONFIG = RegularizerConfig(normalization=1.0, entropy=1.0)


def stats_of(scores: Tensor, n_slots: int | None = None) -> RowStats:
    """Rows whose relu_plain weights are ReLU(scores); scores: (T, Tk), any gradient kept."""
    keys = torch.eye(scores.size(-1), dtype=scores.dtype)[None, None]
    _, stats = rf.read(scores[None, None], keys, keys, rule="relu_plain", scale=1.0, return_stats=True)
    return stats


def test_both_terms_by_hand() -> None:
    # row 0: weights 2, 2, 2, 2 -> R = 8, H = log 4; row 1: 0.5 alone -> R = 0.5, H = 0
    scores = torch.tensor([[2.0, 2.0, 2.0, 2.0], [0.5, -1.0, -1.0, -1.0]])
    sums = regularizers.sums(stats_of(scores))
    assert sums.normalization.item() == pytest.approx(math.log(8) + math.log(2))
    assert sums.entropy.item() == pytest.approx(0.3 * math.log(4))
    assert (sums.live.item(), sums.dead.item(), sums.active.item()) == (2, 0, 1)
    weighted = RegularizerConfig(normalization=0.1, entropy=0.01)
    assert sums.loss(weighted).item() == pytest.approx((0.1 * math.log(16) + 0.01 * 0.3 * math.log(4)) / 2)


def test_the_margin_counts_visible_slots() -> None:
    q = torch.ones(1, 1, 1, 1)
    k = torch.ones(1, 1, 8, 1)
    key_mask = (torch.arange(8) < 4)[None]
    _, stats = rf.read(q, k, k, rule="relu_plain", key_mask=key_mask, return_stats=True)
    assert regularizers.sums(stats).entropy.item() == pytest.approx(0.3 * math.log(4))


def test_dead_rows_are_left_out_and_counted() -> None:
    scores = torch.tensor([[1.0, 1.0], [-1.0, -2.0]], requires_grad=True)
    sums = regularizers.sums(stats_of(scores))
    assert (sums.live.item(), sums.dead.item()) == (1, 1)
    loss = sums.loss(CONFIG)
    assert loss.item() == pytest.approx(math.log(2) + 0.3 * math.log(2))
    loss.backward()
    assert torch.isfinite(scores.grad).all()
    assert torch.equal(scores.grad[1], torch.zeros(2))


def test_only_dead_rows_cost_nothing() -> None:
    scores = torch.full((3, 2), -1.0, requires_grad=True)
    loss = regularizers.sums(stats_of(scores)).loss(CONFIG)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(scores.grad, torch.zeros(3, 2))


def test_padded_query_rows_are_left_out() -> None:
    scores = torch.tensor([[2.0, 2.0], [7.0, 9.0]])
    with_mask = regularizers.sums(stats_of(scores), row_mask=torch.tensor([[True, False]]))
    alone = regularizers.sums(stats_of(scores[:1]))
    assert with_mask.normalization.item() == pytest.approx(alone.normalization.item())
    assert with_mask.live.item() == 1


@pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-8, 1e-30], ids="R~{:g}".format)
def test_the_floor_bounds_the_gradient(size: float) -> None:
    """Below R = 1e-3 the logarithm is that of the floor, and no gradient is larger than log(w)/floor."""
    scores = (size * torch.tensor([[1.0, 0.5, 0.25, 1.0]])).requires_grad_()
    sums = regularizers.sums(stats_of(scores))
    (sums.normalization + sums.entropy).sum().backward()
    assert sums.normalization.item() <= -math.log(1e-3) + 1e-5
    assert scores.grad.abs().max().item() <= max(80 / 1e-3, 1 / size if size >= 1e-3 else 0)
    if size < 1e-3:
        assert sums.normalization.item() == pytest.approx(-math.log(1e-3))


def test_gradients_are_those_of_the_formulas() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(6, 30, generator=generator, dtype=torch.float64).requires_grad_()

    def terms(scores: Tensor) -> tuple[Tensor, Tensor]:
        sums = regularizers.sums(stats_of(scores))
        return sums.normalization, sums.entropy

    assert regularizers.sums(stats_of(scores)).active.item() > 0
    assert torch.autograd.gradcheck(terms, (scores,))


def test_all_attention_modules_together() -> None:
    torch.manual_seed(0)
    model = rf.ReLUFormer(rf.ModelConfig.preset("tiny", vocab_size=20, dropout=0.0))
    source, target = torch.randint(4, 20, (2, 6)), torch.randint(4, 20, (2, 5))
    source_mask = torch.arange(6) < torch.tensor([6, 4])[:, None]
    target_mask = torch.arange(5) < torch.tensor([3, 5])[:, None]
    reads = model(source, target, source_mask, stats=True).reads
    sums = regularizers.total(reads, {"encoder": source_mask, "decoder": target_mask})
    rows = 4 * (3 * 10 + 3 * 2 * 8)  # heads x (encoder reads x source tokens + decoder reads x target tokens)
    assert sums.live.item() + sums.dead.item() == rows
    sums.loss(RegularizerConfig()).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_bad_input() -> None:
    stats = stats_of(torch.ones(2, 2))
    with pytest.raises(ArgumentError, match=r"row_mask must be boolean of shape \(batch, queries\) = \(1, 2\)"):
        regularizers.sums(stats, row_mask=torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(ArgumentError, match="call the model with stats=True"):
        regularizers.total({}, {})
