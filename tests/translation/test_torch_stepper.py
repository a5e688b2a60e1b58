from __future__ import annotations

import pytest
import torch

from reluformer import rules
from reluformer.translation.stepper import best_tokens
from reluformer.translation.torch_stepper import TorchStepper

RULES = [*rules.names(), {"name": "relu", "learn_gamma": True, "gamma": 2.0}, {"name": "relu2", "learn_gamma": True}]


def _rule_id(rule):
    return rule if isinstance(rule, str) else f"{rule['name']}-gamma"


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "both"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("rule", RULES, ids=_rule_id)
def test_a_step_equals_the_model_on_the_whole_prefix(make_model, rule, norm, positions):
    attention = dict.fromkeys(("decoder_attention", "cross_attention", "encoder_attention"), rule)
    ffn = rule if isinstance(rule, str) else rule["name"]  # only heads learn a gamma
    model = make_model(**attention, ffn=ffn, norm=norm, positions=positions)
    _assert_equals_decode(model, widths=(4, 4, 2, 4))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_a_step_knows_the_sentence_of_each_beam(make_model, positions):
    """About one token in six is a separator, so the beams of a source stand in different sentences."""
    model = make_model(positions=positions, separator=5)
    _assert_equals_decode(model, widths=(4, 4, 2, 4), prefix_length=4)


@pytest.mark.parametrize("rule", ["relu", "relu2", "relu_norm"])
def test_learned_offsets_of_scores_are_added_at_every_step(make_model, rule):
    model = make_model(decoder_attention=rule, cross_attention=rule, learn_offset=True)
    assert all(block.cross.layer.read.offset.abs().min() > 0 for block in model.decoder)
    _assert_equals_decode(model, widths=(4, 4, 2, 4))


@pytest.mark.parametrize("rule", ["relu", "softmax", "sparsemax"])
def test_one_beam_needs_no_table_of_ancestors(make_model, rule):
    _assert_equals_decode(make_model(decoder_attention=rule, cross_attention=rule), widths=(1, 1, 1))


@pytest.mark.parametrize("rule", ["relu", "softmax", "sparsemax"])
def test_slots_without_descendants_are_forgotten_and_nothing_changes(make_model, rule):
    beams = _assert_equals_decode(make_model(decoder_attention=rule), widths=(4,) * 40)
    assert beams.table.size(1) < 100, "of the 162 slots that were written"


def test_a_decoder_without_layers(make_model):
    _assert_equals_decode(make_model(decoder_layers=0), widths=(3, 3))


def test_positions_have_no_end(make_model):
    _assert_equals_decode(make_model(), widths=(2,), prefix_length=300)


def test_a_rule_of_a_users_own_that_changes_relu_is_not_taken_for_relu(make_model):
    class Leaky(rules.ReluPlain):
        def activate(self, scores, n):
            return torch.where(scores > 0, scores, 0.1 * scores)

    rule = Leaky()
    _assert_equals_decode(make_model(decoder_attention=rule, cross_attention=rule, ffn=rule), widths=(3, 3))


def _assert_equals_decode(model, widths, prefix_length=2):
    generator = torch.Generator().manual_seed(1)

    def tokens(*shape):
        return torch.randint(3, 9, shape, generator=generator)

    mask = torch.arange(5) < torch.tensor([[5], [3], [1]])
    prefix = tokens(3, prefix_length)
    with torch.inference_mode():
        encoded = model.encode(tokens(3, 5), mask)
        stepper = TorchStepper(model)
        following, beams = stepper.start(encoded, prefix)
        torch.testing.assert_close(following, _expected(model, prefix, encoded))
        width = 1
        for new_width in widths:
            parents = torch.randint(0, width, (3, new_width), generator=generator)
            parents = (parents + width * torch.arange(3)[:, None]).flatten()
            newest = tokens(3 * new_width)
            following = stepper.step(newest, parents, beams)
            prefix, width = torch.cat([prefix[parents], newest[:, None]], 1), new_width
            repeated = encoded._replace(
                states=encoded.states.repeat_interleave(width, 0), mask=mask.repeat_interleave(width, 0)
            )
            torch.testing.assert_close(following, _expected(model, prefix, repeated), rtol=1e-6, atol=1e-6)
    return beams


def _expected(model, prefix, encoded):
    return model.logits(model.decode(prefix, encoded)[0][:, -1]).log_softmax(-1)


def test_sources_can_leave_the_batch(make_model):
    model = make_model(cross_attention="entmax15")
    source, mask = torch.randint(3, 9, (4, 5)), torch.arange(5) < torch.tensor([[5], [3], [1], [4]])
    kept = torch.tensor([3, 1])
    with torch.inference_mode():
        stepper = TorchStepper(model)
        prefix = torch.full((4, 1), 1)
        _, all_beams = stepper.start(model.encode(source, mask), prefix)
        _, few_beams = stepper.start(model.encode(source[kept], mask[kept]), prefix[kept])
        first = torch.tensor([5, 6]).repeat(4)
        stepper.step(first, torch.arange(4).repeat_interleave(2), all_beams)
        stepper.step(first[:4], torch.arange(2).repeat_interleave(2), few_beams)
        all_beams.select(kept)
        tokens, parents = torch.tensor([5, 6, 7, 8]), torch.tensor([1, 0, 3, 3])
        torch.testing.assert_close(stepper.step(tokens, parents, all_beams), stepper.step(tokens, parents, few_beams))


@pytest.mark.parametrize("size", [5, 1000, 1024, 1030, 8000, 8191])
@pytest.mark.parametrize("k", [1, 4, 40])
def test_the_best_are_those_of_a_full_sort(size, k):
    logits = torch.randn(6, size, generator=torch.Generator().manual_seed(size + k))
    logits[1, : size - 3] = float("-inf")
    values, places = best_tokens(logits, k)
    torch.testing.assert_close(values, logits.sort(1, descending=True).values[:, : min(k, size)])
    torch.testing.assert_close(logits.gather(1, places), values)
    assert all(len(set(row)) == len(row) for row in places.tolist())
