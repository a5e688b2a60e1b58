"""The compiled decoder against the model in double precision, with the tolerance of single precision sums."""

from __future__ import annotations

import copy

import pytest
import torch

from reluformer import rules
from reluformer.kernels import cpu
from reluformer.translation import native_stepper
from reluformer.translation.beam_search import beam_search
from reluformer.translation.native_stepper import NativeStepper
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.torch_stepper import TorchStepper

TOLERANCE = 5e-5  # three times what torch itself is off by in single precision, with such models
needs_library = pytest.mark.skipif(cpu.unavailable() is not None, reason=str(cpu.unavailable()))
MASK = torch.arange(5) < torch.tensor([[5], [3], [1]])
STRICT = {"name": "relu_exp", "threshold": 0.2, "growth": -0.1, "spread": 0.3, "delta": 0.7}


@needs_library
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "both"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    "rule",
    [
        "relu",
        "relu_plain",
        "relu_seqlen",
        "softmax",
        "relu_exp",
        "relu_chance",
        STRICT,
        {"name": "relu", "learn_gamma": True},
    ],
    ids=str,
)
def test_a_step_equals_the_model_on_the_whole_prefix(make_model, rule, norm, positions):
    attention = dict(decoder_attention=rule, cross_attention=rule, encoder_attention=rule)
    _assert_equals_decode(make_model(**attention, norm=norm, positions=positions), widths=(4, 4, 2, 5, 7))


@needs_library
@pytest.mark.parametrize(
    ("own", "cross"),
    [("relu_exp", STRICT), (STRICT, "relu_exp"), ("softmax", "relu_exp"), (STRICT, "relu"), ("relu", "softmax")],
    ids=str,
)
def test_own_and_cross_attention_may_have_different_rules(make_model, own, cross):
    _assert_equals_decode(make_model(decoder_attention=own, cross_attention=cross), widths=(4, 1, 3, 5))


@needs_library
@pytest.mark.parametrize(
    "options",
    [
        dict(spread=0.0),
        dict(spread=-1.5),
        dict(growth=0.4),
        dict(threshold=-100.0),
        dict(threshold=100.0),
        dict(delta=50.0),
        dict(chance=0.5),
        dict(threshold=100.0, cap=0.4),
        dict(chance=0.6, cap=1.5),
    ],
    ids=str,
)
def test_relu_exp_takes_any_options(make_model, options):
    """With a threshold of -100 all scores are above what counts, with one of 100 no slot weighs anything."""
    rule = {"name": "relu_exp", **options}
    _assert_equals_decode(make_model(decoder_attention=rule, cross_attention=rule), widths=(4, 5), prefix_length=21)


@needs_library
def test_relu_exp_takes_the_floor_of_its_class(make_model):
    class Smooth(rules.ReluExp):
        FLOOR = 0.7

    _assert_equals_decode(make_model(decoder_attention=Smooth(), cross_attention=Smooth()), widths=(4, 5))


@needs_library
def test_values_without_weight_are_not_loaded(make_model):
    nothing_weighs = {"name": "relu_exp", "threshold": 100.0}
    model = make_model(decoder_attention=nothing_weighs, cross_attention=nothing_weighs).float()
    with torch.inference_mode():
        compiled = NativeStepper(model)
        encoded = model.encode(torch.full((3, 5), 4), MASK)
        _, beams = compiled.start(encoded, torch.ones(3, 11, dtype=torch.long))
        for layer in beams.slots:
            layer.own_values.fill_(torch.nan)
            layer.source_values.fill_(torch.nan)
        found = compiled.step(torch.full((6,), 5), torch.arange(3).repeat_interleave(2), beams)
    assert found.isfinite().all()


@needs_library
def test_offsets_of_scores(make_model):
    model = make_model(learn_offset=True, width=36, heads=3, decoder_attention="relu", cross_attention="relu_seqlen")
    for name, parameter in model.named_parameters():
        if name.endswith("offset"):
            torch.nn.init.normal_(parameter)
    _assert_equals_decode(model, widths=(4, 4, 2))


@needs_library
@pytest.mark.parametrize("sizes", [dict(width=6, heads=3, slots=5), dict(width=36, heads=1, slots=300), dict(width=40)])
def test_sizes_that_fill_no_vector(make_model, sizes):
    _assert_equals_decode(make_model(**sizes, vocab_size=37), widths=(1, 3, 4))


@needs_library
def test_slots_without_descendants_are_forgotten_and_nothing_changes(make_model):
    beams = _assert_equals_decode(make_model(), widths=(4,) * 90)
    assert beams.used < 250, "of the 362 slots that were written"


@needs_library
def test_a_decoder_without_layers_and_a_long_prefix(make_model):
    _assert_equals_decode(make_model(decoder_layers=0), widths=(3, 3))
    _assert_equals_decode(make_model(), widths=(2, 2), prefix_length=300)


@needs_library
def test_one_thread_and_two_give_the_same_bits(make_model):
    model = make_model(vocab_size=50).float()
    generator = torch.Generator().manual_seed(3)
    tokens, parents = torch.randint(5, 50, (15,), generator=generator), torch.arange(5).repeat_interleave(3)
    threads, found = torch.get_num_threads(), []
    with torch.inference_mode():
        encoded = model.encode(torch.randint(5, 50, (5, 6), generator=generator))
        compiled = NativeStepper(model)
        _, begun = compiled.start(encoded, torch.ones(5, 1, dtype=torch.long))
        try:
            for number in (1, 2):
                torch.set_num_threads(number)
                found.append(compiled.step(tokens, parents, copy.deepcopy(begun)))
        finally:
            torch.set_num_threads(threads)
    assert torch.equal(*found)


@needs_library
@pytest.mark.parametrize(
    ("own", "cross"),
    [("relu", "relu"), ("softmax", "softmax"), ("relu_exp", "relu_exp"), (STRICT, "softmax")],
    ids=str,
)
def test_a_search_finds_the_same_as_with_torch(make_model, own, cross):
    model = make_model(vocab_size=60, decoder_attention=own, cross_attention=cross).float()
    source = torch.randint(5, 60, (3, 5), generator=torch.Generator().manual_seed(2))
    config = DecodingConfig(n_best=3, beam=5)
    native, torchs = (beam_search(kind(model), source, MASK, config=config) for kind in (NativeStepper, TorchStepper))
    for ours, theirs in zip(native, torchs, strict=True):
        assert [found.tokens for found in ours] == [found.tokens for found in theirs]
        assert [found.score for found in ours] == pytest.approx([found.score for found in theirs], abs=TOLERANCE)


@needs_library
@pytest.mark.parametrize("size", [5, 16, 1000, 8191])
@pytest.mark.parametrize("k", [1, 4, 40])
def test_the_best_are_those_of_a_full_sort(make_model, size, k):
    rows = torch.randn(6, size, generator=torch.Generator().manual_seed(size + k))
    rows[1, : size - 3] = float("-inf")
    values, places = NativeStepper(make_model().float()).best(rows, k)
    torch.testing.assert_close(values, rows.sort(1, descending=True).values[:, : min(k, size)])
    torch.testing.assert_close(rows.gather(1, places), values)
    assert all(len(set(row)) == len(row) for row in places.tolist())


@needs_library
def test_stepper_of_takes_the_library_where_it_serves(make_model):
    class Leaky(rules.ReluPlain):
        def activate(self, scores, n):
            return torch.where(scores > 0, scores, 0.1 * scores)

    class Level(rules.ReluExp):
        @property
        def level(self):
            return rules.Level(threshold=1.0)

    class Halved(rules.ReluExp):
        def weights(self, scores, n, visible):
            return super().weights(scores, n, visible) / 2

    class Core(rules.ReluExp):
        @property
        def core(self):
            return rules.ReluNorm(self.delta)

    for rule in ("relu", "softmax", "relu_exp", "relu_chance", STRICT):
        assert isinstance(native_stepper.stepper_of(make_model(decoder_attention=rule).float()), NativeStepper)
    for model, reason in (
        (make_model(), "float32 on the CPU, the model is torch.float64"),
        (make_model(cross_attention="sparsemax").float(), "not with sparsemax"),
        (make_model(decoder_attention="rela").float(), "not with rela"),
        (make_model(decoder_attention=Leaky()).float(), "not with relu_plain as Leaky defines it"),
        (make_model(decoder_attention=Level()).float(), "not with relu_exp as Level defines it"),
        (make_model(cross_attention=Halved()).float(), "not with relu_exp as Halved defines it"),
        (make_model(cross_attention=Core()).float(), "not with relu_exp as Core defines it"),
        (make_model(ffn="softmax").float(), "feed-forward layers, not with softmax"),
    ):
        assert reason in str(NativeStepper.refusal(model))
        assert isinstance(native_stepper.stepper_of(model), TorchStepper)


def test_without_the_library_torch_decodes(make_model, monkeypatch):
    monkeypatch.setattr(native_stepper, "unavailable", lambda: "no compiler")
    assert isinstance(native_stepper.stepper_of(make_model().float()), TorchStepper)


def _assert_equals_decode(model, widths, prefix_length=2):
    generator = torch.Generator().manual_seed(1)
    size = model.config.vocab_size

    def tokens(*shape):
        return torch.randint(3, size, shape, generator=generator)

    def expected(encoded):
        return model.double().logits(model.decode(prefix, encoded)[0][:, -1]).log_softmax(-1)

    prefix, source = tokens(3, prefix_length), tokens(3, 5)
    with torch.inference_mode():
        exact = model.encode(source, MASK)
        compiled = NativeStepper(model.float())
        following, beams = compiled.start(model.encode(source, MASK), prefix)
        torch.testing.assert_close(following.double(), expected(exact), rtol=0, atol=TOLERANCE)
        width = 1
        for new_width in widths:
            parents = torch.randint(0, width, (3, new_width), generator=generator)
            parents = (parents + width * torch.arange(3)[:, None]).flatten()
            newest = tokens(3 * new_width)
            following = compiled.step(newest, parents, beams)
            prefix, width = torch.cat([prefix[parents], newest[:, None]], 1), new_width
            states, mask = exact.states.repeat_interleave(width, 0), MASK.repeat_interleave(width, 0)
            wanted = expected(exact._replace(states=states, mask=mask))
            torch.testing.assert_close(following.double(), wanted, rtol=0, atol=TOLERANCE)
    return beams


@needs_library
def test_sources_can_leave_the_batch(make_model):
    model = make_model().float()
    source, mask = torch.randint(3, 9, (4, 5)), torch.arange(5) < torch.tensor([[5], [3], [1], [4]])
    kept = torch.tensor([3, 1])
    with torch.inference_mode():
        compiled = NativeStepper(model)
        prefix = torch.full((4, 1), 1)
        _, all_beams = compiled.start(model.encode(source, mask), prefix)
        _, few_beams = compiled.start(model.encode(source[kept], mask[kept]), prefix[kept])
        first = torch.tensor([5, 6]).repeat(4)
        compiled.step(first, torch.arange(4).repeat_interleave(2), all_beams)
        compiled.step(first[:4], torch.arange(2).repeat_interleave(2), few_beams)
        all_beams.select(kept)
        tokens, parents = torch.tensor([5, 6, 7, 8]), torch.tensor([1, 0, 3, 3])
        found, wanted = (compiled.step(tokens, parents, beams) for beams in (all_beams, few_beams))
        torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE)
