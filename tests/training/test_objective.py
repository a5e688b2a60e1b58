from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from reluformer import regularizers
from reluformer.models.config import ModelConfig
from reluformer.models.encoder_decoder import ReLUFormer
from reluformer.regularizers import RegularizerConfig
from reluformer.training import objective as module
from reluformer.training.objective import linear_cross_entropy
from reluformer.translation.task import TranslationObjective


def problem(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    states = torch.randn(7, 4, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, 4, dtype=dtype, requires_grad=True)
    return states, weight, torch.tensor([0, 3, 10, 3, 5, 5, 9])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("chunk_cells", [11, 33, 2**23])
def test_equals_torch_in_value_and_gradient(
    monkeypatch: pytest.MonkeyPatch, smoothing: float, chunk_cells: int
) -> None:
    monkeypatch.setattr(module, "_CHUNK_CELLS", chunk_cells)
    states, weight, target = problem()
    smoothed, plain = linear_cross_entropy(states, weight, target, smoothing)
    expected = F.cross_entropy(states @ weight.t(), target, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(smoothed, expected)
    torch.testing.assert_close(plain, F.cross_entropy(states @ weight.t(), target, reduction="sum"))
    for got, wanted in zip(
        torch.autograd.grad(smoothed * 3, [states, weight]),
        torch.autograd.grad(expected * 3, [states, weight]),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted)


def test_gradient_is_that_of_the_value() -> None:
    states, weight, target = problem()
    assert torch.autograd.gradcheck(lambda s, w: linear_cross_entropy(s, w, target, 0.1)[0], (states, weight))


def test_large_logits_do_not_overflow() -> None:
    states, weight, target = problem(torch.float32)
    smoothed, _ = linear_cross_entropy(states * 1e4, weight, target, 0.1)
    smoothed.backward()
    assert torch.isfinite(smoothed)
    assert states.grad is not None and torch.isfinite(states.grad).all()


def test_bfloat16_states_give_a_float32_loss_near_the_exact_one() -> None:
    states, weight, target = problem(torch.float32)
    half = states.detach().bfloat16().requires_grad_()
    smoothed, _ = linear_cross_entropy(half, weight, target, 0.1)
    exact, _ = linear_cross_entropy(half.detach().float(), weight, target, 0.1)
    assert smoothed.dtype == torch.float32
    torch.testing.assert_close(smoothed, exact, rtol=1e-2, atol=0)  # a bfloat16 has 8 bits
    smoothed.backward()
    assert half.grad is not None and half.grad.dtype == torch.bfloat16
    assert weight.grad is not None and weight.grad.dtype == torch.float32


def test_no_positions_cost_nothing() -> None:
    states, weight, target = problem()
    smoothed, plain = linear_cross_entropy(states[:0], weight, target[:0], 0.1)
    smoothed.backward()
    assert smoothed == 0 and plain == 0
    assert weight.grad is not None and not weight.grad.any()


def tiny_objective(**options: object) -> TranslationObjective:
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=20, width=16, heads=2, encoder_layers=1, decoder_layers=1, slots=16, dropout=0.0)
    return TranslationObjective(ReLUFormer(config), **options)  # type: ignore[arg-type]


def padded_batch() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    source = torch.tensor([[5, 6, 7, 2], [8, 9, 2, 0]])
    target_in, target_out = torch.tensor([[1, 5, 6], [1, 7, 0]]), torch.tensor([[5, 6, 2], [7, 2, 0]])
    return source, target_in, target_out, source != 0, target_out != 0


def test_padding_adds_nothing_to_the_sums() -> None:
    """In double precision: the logarithm of a small row sum magnifies the rounding of another order of sums."""
    objective = tiny_objective(label_smoothing=0.1, regularizer=RegularizerConfig()).double()
    source, target_in, target_out, source_mask, target_mask = padded_batch()
    together = objective(source, target_in, target_out, source_mask, target_mask)
    first = objective(source[:1], target_in[:1], target_out[:1])
    second = objective(source[1:, :3], target_in[1:, :2], target_out[1:, :2])
    torch.testing.assert_close(together.smoothed, first.smoothed + second.smoothed)
    torch.testing.assert_close(together.plain, first.plain + second.plain)
    summed = regularizers.add([first.regularizer, second.regularizer])
    for got, wanted in zip(together.regularizer, summed, strict=True):
        torch.testing.assert_close(got, wanted)


def test_plain_sum_is_that_of_the_models_own_logits() -> None:
    objective = tiny_objective(label_smoothing=0.1)
    source, target_in, target_out, source_mask, target_mask = padded_batch()
    logits = objective.model(source, target_in, source_mask).logits
    expected = F.cross_entropy(logits[target_mask], target_out[target_mask], reduction="sum")
    torch.testing.assert_close(objective(*padded_batch()).plain, expected)


def test_rows_are_measured_only_in_training_and_when_asked() -> None:
    assert tiny_objective()(*padded_batch()).regularizer is None
    assert tiny_objective(regularizer=RegularizerConfig()).eval()(*padded_batch()).regularizer is None


def test_a_share_without_rows_has_zero_sums_and_touches_every_weight() -> None:
    objective = tiny_objective(label_smoothing=0.1, regularizer=RegularizerConfig())
    nothing = torch.zeros(0, 1, dtype=torch.long)
    sums = objective(nothing, nothing, nothing)
    (sums.smoothed + sums.regularizer.normalization).backward()
    assert sums.smoothed == 0 and sums.regularizer.live == 0
    assert all(p.grad is not None and not p.grad.any() for p in objective.parameters())
