"""The compiled search against torch: every hypothesis, its score by forced decoding in double precision, its reads."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from reluformer import rules
from reluformer.errors import ArgumentError
from reluformer.kernels import cpu
from reluformer.kernels.native.library import PATHS, loaded
from reluformer.translation import native_decoder
from reluformer.translation.alignment import read_windows
from reluformer.translation.beam_search import Outline, beam_search
from reluformer.translation.native_decoder import NativeDecoder
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.tokenizer import END, SEPARATOR
from reluformer.translation.torch_stepper import TorchStepper
from reluformer.translation.translator import score_targets

TOLERANCE = 5e-5  # of a token: three times what torch itself is off by in single precision, with such models
needs_library = pytest.mark.skipif(cpu.unavailable() is not None, reason=str(cpu.unavailable()))
STRICT = {"name": "relu_exp", "threshold": 0.2, "growth": -0.1, "spread": 0.3, "delta": 0.7}
ATTENTION = ("encoder_attention", "decoder_attention", "cross_attention")


def _sources(model, lengths=(9, 3, 1, 4, 8), seed=1):
    generator = torch.Generator().manual_seed(seed)
    size = model.config.vocab_size
    return [[*torch.randint(5, size, (length,), generator=generator).tolist(), END] for length in lengths]


def _search(decoder, sources, config, outlines=None, reads=False):
    search = decoder.search(config)
    outlines = outlines or [Outline.of(source, config) for source in sources]
    numbers = [search.add(source, outline, reads) for source, outline in zip(sources, outlines, strict=True)]
    while not search.done:
        search.run()
    return [search.hypotheses(number) for number in numbers]


def _assert_scores(model, lengths=(9, 3, 1, 4, 8), beam=5, prefix=(), **changes):
    """All hypotheses have the scores that forced decoding in double precision gives them."""
    config = DecodingConfig(beam=beam, n_best=beam, **changes)
    sources = _sources(model, lengths)
    outlines = [Outline(Outline.of(source, config).limits, True, tuple(prefix)) for source in sources]
    found = _search(NativeDecoder(copy.deepcopy(model).float()), sources, config, outlines)
    pairs = [(source, one) for source, hypotheses in zip(sources, found, strict=True) for one in hypotheses]
    exact = score_targets(model, [source for source, _ in pairs], [[*one.tokens, END] for _, one in pairs])
    for (_, one), scored in zip(pairs, exact, strict=True):
        assert one.tokens[: len(prefix)] == prefix
        tokens = scored.tokens[len(prefix) :]
        assert one.score == pytest.approx(sum(tokens), abs=TOLERANCE * len(tokens))
    return found


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
def test_scores_are_those_of_the_model(make_model, rule, norm, positions):
    _assert_scores(make_model(**dict.fromkeys(ATTENTION, rule), norm=norm, positions=positions))


@needs_library
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@pytest.mark.parametrize("separator", [5, SEPARATOR])
def test_a_row_knows_its_sentence(make_model, positions, separator):
    """About one token in six is a separator, so the beams of a source stand in different sentences."""
    model = make_model(positions=positions, separator=separator, vocab_size=11)
    _assert_scores(model, prefix=(6, 5, 7))
    source = [6, SEPARATOR, 7, 8, SEPARATOR, 5, END]
    config = DecodingConfig(n_best=4, length_offset=2)
    ours, theirs = (
        beam_search(kind, torch.tensor([source]), config=config)[0]
        for kind in (NativeDecoder(copy.deepcopy(model).float()), TorchStepper(model))
    )
    assert [one.tokens for one in ours] == [one.tokens for one in theirs]
    assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=1e-3)


@needs_library
@pytest.mark.parametrize(
    "kinds",
    [("softmax", "relu_exp", STRICT), ("relu", STRICT, "relu_exp"), ("relu_exp", "softmax", "relu")],
    ids=str,
)
def test_each_attention_may_have_another_rule(make_model, kinds):
    _assert_scores(make_model(**dict(zip(ATTENTION, kinds, strict=True))))


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
    _assert_scores(make_model(**dict.fromkeys(ATTENTION, rule)), prefix=(6, 7) * 10)


@needs_library
def test_relu_exp_takes_the_floor_of_its_class(make_model):
    class Smooth(rules.ReluExp):
        FLOOR = 0.7

    _assert_scores(make_model(**dict.fromkeys(ATTENTION, Smooth())))


@needs_library
def test_offsets_of_scores(make_model):
    model = make_model(learn_offset=True, width=36, heads=3, decoder_attention="relu", cross_attention="relu_seqlen")
    for name, parameter in model.named_parameters():
        if name.endswith("offset"):
            torch.nn.init.normal_(parameter)
    _assert_scores(model)


@needs_library
@pytest.mark.parametrize("sizes", [dict(width=6, heads=3, slots=5), dict(width=36, heads=1, slots=300), dict(width=40)])
def test_sizes_that_fill_no_vector(make_model, sizes):
    _assert_scores(make_model(**sizes, vocab_size=37))
    _assert_scores(make_model(**sizes, vocab_size=1100), beam=7)


@needs_library
@pytest.mark.parametrize("rule", ["softmax", "relu_exp"])
def test_long_targets_forget_slots_and_nothing_changes(make_model, rule):
    model = make_model(**dict.fromkeys(ATTENTION, rule), vocab_size=30, seed=4)
    found = _assert_scores(model, lengths=(40, 70), length_ratio=4, min_length=90, prefix=(8,) * 37)
    assert all(len(one.tokens) > 120 for hypotheses in found for one in hypotheses)


@needs_library
def test_no_layers_untied_embeddings_and_a_long_prefix(make_model):
    _assert_scores(make_model(decoder_layers=0, encoder_layers=0))
    _assert_scores(make_model(tied_embeddings=False), prefix=(7, 8, 6) * 100)


@needs_library
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("rule", ["softmax", "relu", "relu_exp"])
def test_neighbours_and_threads_change_no_bit(make_model, rule, int8):
    model = make_model(**dict.fromkeys(ATTENTION, rule), vocab_size=50, slots=300).float()
    sources = _sources(model, lengths=[1 + 5 * number % 13 for number in range(60)])
    config = DecodingConfig(n_best=2, batch_tokens=200)
    decoder, threads = NativeDecoder(model, int8), torch.get_num_threads()
    alone = [_search(decoder, [source], config)[0] for source in sources]
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            assert _search(decoder, sources, config) == alone
    finally:
        torch.set_num_threads(threads)


@needs_library
def test_sources_may_be_added_while_others_are_decoded(make_model):
    model = make_model(vocab_size=50).float()
    sources, config = _sources(model), DecodingConfig()
    decoder = NativeDecoder(model)
    search = decoder.search(config)
    numbers = []
    for source in sources:
        numbers.append(search.add(source, Outline.of(source, config)))
        search.advance(3)
    while not search.done:
        search.advance()
    assert [search.hypotheses(number) for number in numbers] == _search(decoder, sources, config)


@needs_library
@pytest.mark.parametrize("kinds", [("relu",) * 3, ("softmax",) * 3, ("relu_exp",) * 3], ids=str)
@pytest.mark.parametrize("beam", [1, 3, 5, 7, 40])
@pytest.mark.parametrize("stop", ["exact", "beam"])
def test_a_search_finds_the_same_as_with_torch(make_model, kinds, beam, stop):
    model = make_model(vocab_size=60, **dict(zip(ATTENTION, kinds, strict=True))).float()
    source = torch.randint(5, 60, (3, 5), generator=torch.Generator().manual_seed(2))
    mask = torch.arange(5) < torch.tensor([[5], [3], [1]])
    config = DecodingConfig(n_best=min(beam, 3), beam=beam, stop=stop, length_penalty=0.8)
    ours, theirs = (beam_search(kind(model), source, mask, config=config) for kind in (NativeDecoder, TorchStepper))
    for found, wanted in zip(ours, theirs, strict=True):
        assert [one.tokens for one in found] == [one.tokens for one in wanted]
        assert [one.score for one in found] == pytest.approx([one.score for one in wanted], abs=30 * TOLERANCE)
        assert [one.normalised for one in found] == pytest.approx([one.normalised for one in wanted], abs=TOLERANCE)


@needs_library
@pytest.mark.parametrize(
    "outline",
    [Outline((3,)), Outline((3,), aligned=True), Outline((1, 2), aligned=True), Outline((1, 2), True, prefix=(6, 3))],
    ids=["free", "sentence", "two-sentences", "prefix"],
)
@pytest.mark.parametrize("min_length", [0, 2, 9])
def test_outlines_constrain_it_as_they_do_in_torch(make_model, outline, min_length):
    model = make_model(vocab_size=8, seed=3).float()
    source, config = torch.tensor([[5, 6, 3, 7, 2]]), DecodingConfig(beam=9, n_best=5, min_length=min_length)
    ours, theirs = (
        beam_search(kind(model), source, config=config, outlines=[outline])[0] for kind in (NativeDecoder, TorchStepper)
    )
    assert [one.tokens for one in ours] == [one.tokens for one in theirs]


@needs_library
def test_what_is_settled_stays(make_model):
    decoder = NativeDecoder(make_model(seed=8).float())
    search = decoder.search(DecodingConfig(beam=3))
    number = search.add([5, 6, 3, 7, 2], Outline((4, 4, 4), aligned=True))
    settled = [search.settled(number).tokens]
    while not search.done:
        search.advance()
        settled.append(search.settled(number).tokens)
        assert settled[-1][: len(settled[-2])] == settled[-2]
    assert settled[0] == () and settled[-1] == search.hypotheses(number)[0].tokens
    assert any(settled[:-1]), "nothing was settled before the end"


@needs_library
@pytest.mark.parametrize("rule", ["softmax", "relu", "relu_exp"])
def test_reads_of_sentences_are_those_of_another_pass(make_model, rule):
    model = make_model(cross_attention=rule, vocab_size=30, seed=5).float()
    source = [6, 7, 8, SEPARATOR, 9, 10, SEPARATOR, 11, 12, 13, END]
    config = DecodingConfig(n_best=3, length_offset=4)
    decoder, prefix = NativeDecoder(model), (6, 9, SEPARATOR, 8)
    outline = Outline.of(source, config, prefix)
    [found] = _search(decoder, [source], config, [outline], reads=True)
    wanted = read_windows(decoder, [source] * 3, [one.tokens for one in found])
    for one, reads in zip(found, wanted, strict=True):
        assert one.reads.shape == (len(one.tokens), 3)
        np.testing.assert_allclose(one.reads[len(prefix) :], reads.by_sentence[len(prefix) :], atol=1e-5)
    assert _search(decoder, [source], config, [outline])[0][0].reads is None


@needs_library
def test_weights_that_are_not_numbers_are_reported(make_model):
    for int8, name in ((False, "output_embedding.weight"), (True, "decoder.1.ffn.layer.keys.bias")):
        model = make_model().float()
        with torch.no_grad():
            model.get_parameter(name).fill_(float("nan"))
        with pytest.raises(ArgumentError, match="finite probability"):
            _search(NativeDecoder(model, int8), _sources(model), DecodingConfig())


@needs_library
def test_tokens_outside_of_the_vocabulary_are_refused(make_model):
    search = NativeDecoder(make_model(vocab_size=20).float()).search(DecodingConfig())
    for source, prefix in (([25, END], ()), ([-1, END], ()), ([5, END], (20,))):
        with pytest.raises(ArgumentError, match="ids 0 to 19"):
            search.add(source, Outline((3,), prefix=prefix))


@needs_library
@pytest.mark.parametrize("sizes", [dict(), dict(width=6, heads=3, slots=5), dict(width=100, slots=130, vocab_size=37)])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_int8_is_near_float32(make_model, sizes, norm):
    """A rounding is off by up to 1/254 of the greatest number of a row; logits of these models are in the tens."""
    model = make_model(**{"vocab_size": 40, **sizes}, norm=norm, **dict.fromkeys(ATTENTION, "softmax"))
    sources, config = _sources(model), DecodingConfig()
    found = _search(NativeDecoder(copy.deepcopy(model).float(), int8=True), sources, config)
    exact = score_targets(model, sources, [[*best[0].tokens, END] for best in found])
    for best, scored in zip(found, exact, strict=True):
        assert best[0].score == pytest.approx(scored.total, abs=0.15 * len(scored.tokens))


@needs_library
@pytest.mark.parametrize("vnni", [2, 0])
def test_int8_is_alike_with_every_instruction_set(make_model, vnni, monkeypatch, request):
    """The sums of bytes are exact, so only the rounding of what lies between them can differ."""
    model = make_model(vocab_size=40, slots=200, **dict.fromkeys(ATTENTION, "softmax")).float()
    sources, config, library = _sources(model), DecodingConfig(beam=2), loaded()
    request.addfinalizer(lambda: library.allow_vnni(2))
    library.allow_vnni(vnni)
    best, found = library.path, []
    for path in range(best + 1):
        monkeypatch.setattr(library, "path", path)
        found.append(_search(NativeDecoder(model, int8=True), sources, config))
    assert len(found) == PATHS.index(PATHS[best]) + 1
    for other in found[1:]:
        for ours, theirs in zip(found[0], other, strict=True):
            assert ours[0].normalised == pytest.approx(theirs[0].normalised, abs=0.02)


@needs_library
def test_decoder_of_takes_the_library_where_it_serves(make_model):
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
        assert isinstance(native_decoder.decoder_of(make_model(decoder_attention=rule).float()), NativeDecoder)
    for model, reason in (
        (make_model(), "float32 on the CPU, the model is torch.float64"),
        (make_model(cross_attention="sparsemax").float(), "not with sparsemax"),
        (make_model(encoder_attention="sparsemax").float(), "not with sparsemax"),
        (make_model(decoder_attention="rela").float(), "not with rela"),
        (make_model(decoder_attention=Leaky()).float(), "not with relu_plain as Leaky defines it"),
        (make_model(decoder_attention=Level()).float(), "not with relu_exp as Level defines it"),
        (make_model(cross_attention=Halved()).float(), "not with relu_exp as Halved defines it"),
        (make_model(cross_attention=Core()).float(), "not with relu_exp as Core defines it"),
        (make_model(ffn="softmax").float(), "feed-forward layers, not with softmax"),
    ):
        assert reason in str(NativeDecoder.refusal(model))
        assert isinstance(native_decoder.decoder_of(model), TorchStepper)
        with pytest.raises(ArgumentError, match="leave int8 out"):
            native_decoder.decoder_of(model, int8=True)


def test_without_the_library_torch_decodes(make_model, monkeypatch):
    monkeypatch.setattr(native_decoder, "unavailable", lambda: "no compiler")
    assert isinstance(native_decoder.decoder_of(make_model().float()), TorchStepper)
