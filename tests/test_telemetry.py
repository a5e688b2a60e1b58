"""What telemetry reports is what the reads did, and watching changes nothing."""

from __future__ import annotations

import math

import pytest
import torch

import reluformer as rf
from reluformer.errors import ArgumentError
from reluformer.kernels.reference import row_stats
from reluformer.telemetry import Telemetry, anisotropy, read_summary


def model_and_batch(length: int = 12, **changes: object) -> tuple[rf.ReLUFormer, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    small = dict(vocab_size=40, width=16, heads=2, encoder_layers=1, decoder_layers=1, slots=24, dropout=0.0)
    model = rf.ReLUFormer(rf.ModelConfig(**{**small, **changes}))
    return model, torch.randint(4, 40, (3, length)), torch.randint(4, 40, (3, 9))


def test_every_memory_is_watched_when_due() -> None:
    model, source, target = model_and_batch()
    telemetry = Telemetry(model, every=10)
    with telemetry.watch(3):
        model(source, target)
    assert telemetry.latest == {}
    with telemetry.watch(10):
        model(source, target)
    assert telemetry.step == 10
    assert list(telemetry.latest) == [
        *("encoder.0.attention", "encoder.0.ffn"),
        *("decoder.0.attention", "decoder.0.cross", "decoder.0.ffn"),
    ]
    assert telemetry.latest["encoder.0.attention"].rule == "relu"
    assert telemetry.latest["encoder.0.ffn"].rule == "relu_plain"


def test_figures_equal_those_of_all_rows() -> None:
    """With at least as many rows as there are, the sample is everything."""
    model, source, target = model_and_batch()
    telemetry = Telemetry(model, rows=64)
    with telemetry.watch(0):
        output = model(source, target, stats=True)
    for name, stats in output.reads.items():
        seen = telemetry.latest[name]
        live = ~stats.dead
        for head in range(2):
            assert seen.zero_fraction[head] == pytest.approx(stats.zero_fraction[:, head].mean().item(), abs=1e-6)
            assert seen.dead[head] == pytest.approx(stats.dead[:, head].float().mean().item(), abs=1e-6)
            entropy = stats.entropy[:, head][live[:, head]].mean().item()
            assert seen.entropy[head] == pytest.approx(entropy, abs=1e-5)


def test_padded_rows_do_not_count() -> None:
    model, source, target = model_and_batch()
    source_mask = torch.arange(12) < torch.tensor([12, 5, 3])[:, None]
    target_mask = torch.arange(9) < torch.tensor([9, 2, 4])[:, None]
    reports = []
    for garbage in (4, 39):
        padded_source = source.masked_fill(~source_mask, garbage)
        padded_target = target.masked_fill(~target_mask, garbage)
        telemetry = Telemetry(model)
        with telemetry.watch(0, {"encoder": source_mask, "decoder": target_mask}):
            model(padded_source, padded_target, source_mask)
        reports.append({name: seen.to_dict() for name, seen in telemetry.latest.items()})
    for name, report in reports[0].items():
        for key, value in report.items():
            if name == "decoder.0.attention" and key == "anisotropy":
                continue  # causality hides padded slots, so their values are not masked
            assert value == pytest.approx(reports[1][name][key], nan_ok=True), (name, key)


def test_dead_rows_by_position() -> None:
    """Queries that meet only their negation are dead at the first causal position."""
    model, source, target = model_and_batch()
    attention = model.decoder[0].attention.layer
    with torch.no_grad():
        attention.key_value.weight[:16] = -attention.query.weight  # k = -q: the own slot never fires
    telemetry = Telemetry(model)
    with telemetry.watch(0):
        model(source, target)
    dead = telemetry.latest["decoder.0.attention"].dead_by_position
    assert list(dead) == ["0", "1", "2-3", "4-7", "8-15"]
    assert dead["0"] == 1.0


def test_top_mass_and_margin_from_500_slots_on() -> None:
    model, source, target = model_and_batch(length=600, slots=512)
    telemetry = Telemetry(model)
    with telemetry.watch(0):
        model(source, target)
    seen = telemetry.latest
    assert seen["decoder.0.attention"].top_mass is None
    assert all(0 < mass < 0.5 for mass in seen["encoder.0.attention"].top_mass or [math.nan])
    assert all(0 < mass < 0.5 for mass in seen["encoder.0.ffn"].top_mass or [math.nan])
    assert all(share == 1.0 for share in seen["encoder.0.attention"].margin_active)


@pytest.mark.parametrize("slots", [1500, 3000, 6000])
def test_the_top_of_multiples_of_500_slots(slots: int) -> None:
    """The share of 0.2 % is a whole number there, which float32 misses."""
    weights = torch.rand(1, 1, 2, slots)
    model, source, target = model_and_batch(slots=slots)
    telemetry = Telemetry(model)
    with telemetry.watch(0):
        model(source, target)
    assert telemetry.latest["encoder.0.ffn"].top_mass is not None
    everything = torch.ones(1, 2, dtype=torch.bool)
    found = read_summary(weights, row_stats(weights, None, torch.full((1, 1, 2), slots)), everything, "relu")
    expected = weights.topk(slots // 500).values.sum(-1) / weights.sum(-1)
    assert found["top_mass"] == pytest.approx([float(expected.mean())])


def test_anisotropy_is_the_mean_pairwise_cosine() -> None:
    values = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    expected = []
    for head in range(3):
        means = []
        for item, n in ((0, 5), (1, 3)):
            unit = torch.nn.functional.normalize(values[item, head, :n], dim=-1)
            cosines = unit @ unit.T
            means.append((cosines.sum() - cosines.trace()) / (n * (n - 1)))
        expected.append(float(sum(means) / 2))
    assert anisotropy(values, mask) == pytest.approx(expected, abs=1e-6)


def test_watching_changes_neither_result_nor_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model, source, target = model_and_batch(
        encoder_attention="softmax", decoder_attention="softmax", cross_attention="softmax"
    )
    calls = []
    original = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        "reluformer.kernels.sdpa.scaled_dot_product_attention",
        lambda *args, **options: calls.append(1) or original(*args, **options),
    )
    expected = model(source, target).logits
    telemetry = Telemetry(model)
    with telemetry.watch(0):
        watched = model(source, target).logits
    assert torch.equal(watched, expected)
    assert len(calls) == 6  # three reads each time, all fused
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_hooks_are_taken_off_after_an_error() -> None:
    model, source, target = model_and_batch()
    telemetry = Telemetry(model)
    with pytest.raises(ArgumentError), telemetry.watch(0):
        model(source + 1000, target)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_bad_input() -> None:
    with pytest.raises(ArgumentError, match="at least 1"):
        Telemetry(model_and_batch()[0], every=0)


def test_gradients_are_added_head_by_head_after_the_backward_pass() -> None:
    model, source, target = model_and_batch()
    telemetry = Telemetry(model)
    with telemetry.watch(0):
        logits = model(source, target).logits
    telemetry.look_at_gradients()
    assert all(read.query_gradient is None for read in telemetry.latest.values())
    logits.square().sum().backward()
    telemetry.look_at_gradients()
    attention, ffn = model.encoder[0].attention.layer, model.encoder[0].ffn.layer
    seen = telemetry.latest["encoder.0.attention"]
    gradients = (attention.query.weight.grad, *attention.key_value.weight.grad.chunk(2))
    found = (seen.query_gradient, seen.key_gradient, seen.value_gradient)
    for norms, gradient in zip(found, gradients, strict=True):
        assert norms == pytest.approx([float(head.norm()) for head in gradient.chunk(2)])
    learned = telemetry.latest["encoder.0.ffn"]
    assert learned.query_gradient is None
    assert learned.value_gradient == pytest.approx([float(ffn.values.weight.grad.norm())])
