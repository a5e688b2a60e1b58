from __future__ import annotations

import itertools

import pytest
import torch

from reluformer.errors import ArgumentError, ConfigError
from reluformer.translation.beam_search import beam_search, start_search
from reluformer.translation.native_decoder import decoder_of
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.search import Outline
from reluformer.translation.tokenizer import BEGIN, END, PAD, SEPARATOR
from reluformer.translation.translator import score_targets

SOURCE = torch.tensor([[5, 6, 3, 7, 2], [8, 5, 2, 0, 0], [6, 2, 0, 0, 0]])
MASK = SOURCE != PAD


def _config(**changes) -> DecodingConfig:
    return DecodingConfig(**{"length_offset": 3, "length_ratio": 0.5, **changes})


def _fits(tokens, outline) -> bool:
    """The outline's meaning, said another way."""
    sentences = [list(group) for is_break, group in itertools.groupby(tokens, lambda t: t == SEPARATOR) if not is_break]
    if not outline.aligned:
        return len(tokens) <= outline.limits[0]
    right_count = len(sentences) == len(outline.limits) == tokens.count(SEPARATOR) + 1
    return right_count and all(len(s) <= limit for s, limit in zip(sentences, outline.limits, strict=True))


@pytest.mark.parametrize(
    "outline",
    [Outline((3,)), Outline((3,), aligned=True), Outline((1, 2), aligned=True), Outline((1, 2), True, prefix=(6, 3))],
    ids=["free", "sentence", "two-sentences", "prefix"],
)
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_a_wide_beam_finds_what_an_exhaustive_search_finds(make_model, outline, penalty):
    model = make_model(vocab_size=8, seed=3)
    config = _config(beam=400, n_best=5, length_penalty=penalty)
    found = beam_search(model, SOURCE[:1], config=config, outlines=[outline])[0]
    every = [
        tokens
        for length in range(5)
        for tokens in itertools.product((3, 4, 5, 6, 7), repeat=length)
        if _fits(tokens, outline) and tokens[: len(outline.prefix)] == outline.prefix
    ]
    skipped = len(outline.prefix)
    ranked = []
    scores = score_targets(model, [SOURCE[0].tolist()] * len(every), [[*tokens, END] for tokens in every])
    for tokens, scored in zip(every, scores, strict=True):
        total = sum(scored.tokens[skipped:])
        ranked.append((total / (len(tokens) - skipped + 1) ** penalty, total, tokens))
    ranked.sort(reverse=True)
    assert [hypothesis.tokens for hypothesis in found] == [tokens for _, _, tokens in ranked[:5]]
    assert [hypothesis.score for hypothesis in found] == pytest.approx([total for _, total, _ in ranked[:5]])
    assert [hypothesis.normalised for hypothesis in found] == pytest.approx([norm for norm, _, _ in ranked[:5]])


def _naive_beam_search(model, source, outline, config):
    """Beam search as one would write it on paper: whole prefixes, no cache, one source."""
    live, finished = [(0.0, ())], []
    encoded = model.encode(torch.tensor([source]))
    for _ in range(outline.most_tokens):
        continuations = []
        for total, tokens in live:
            states, _ = model.decode(torch.tensor([[BEGIN, *tokens]]), encoded)
            values = torch.log_softmax(model.logits(states[0, -1]), -1).tolist()
            for token, value in enumerate(values):
                longer = (*tokens, token)
                if token == END:
                    allowed = _fits(tokens, outline)
                else:
                    allowed = token not in (PAD, BEGIN) and _may_begin(longer, outline)
                if allowed:
                    continuations.append((total + value, longer))
        continuations.sort(reverse=True)
        finished += [entry for entry in continuations[: config.beam] if entry[1][-1] == END]
        live = [entry for entry in continuations if entry[1][-1] != END][: config.beam]
    best = sorted(
        ((total / len(tokens) ** config.length_penalty, tokens[:-1]) for total, tokens in finished), reverse=True
    )
    return [tokens for _, tokens in best[: config.n_best]]


def _may_begin(tokens, outline) -> bool:
    if not outline.aligned:
        return len(tokens) <= outline.limits[0]
    sentences = [[]]
    for token in tokens:
        if token == SEPARATOR:
            sentences.append([])
        else:
            sentences[-1].append(token)
    complete = all(len(sentence) > 0 for sentence in sentences[:-1])
    return (
        complete
        and len(sentences) <= len(outline.limits)
        and all(len(s) <= limit for s, limit in zip(sentences, outline.limits, strict=False))
    )


@pytest.mark.parametrize("rule", ["relu", "softmax"])
@pytest.mark.parametrize("beam", [1, 3])
def test_the_batch_with_cache_equals_a_naive_search_of_each_source(make_model, rule, beam):
    model = make_model(seed=1, decoder_attention=rule, cross_attention=rule)
    config = _config(beam=beam, n_best=beam, length_penalty=0.8)
    found = beam_search(model, SOURCE, MASK, config=config)
    for row, mask, hypotheses in zip(SOURCE, MASK, found, strict=True):
        source = row[mask].tolist()
        with torch.inference_mode():
            expected = _naive_beam_search(model, source, Outline.of(source, config), config)
        assert [hypothesis.tokens for hypothesis in hypotheses] == expected


def test_batch_composition_and_padding_change_nothing(make_model):
    model = make_model(vocab_size=30, seed=2)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 12, (20, 1), generator=generator)
    source = torch.randint(5, 30, (20, 14), generator=generator)
    mask = torch.arange(14) < lengths
    source = source.masked_fill(~mask, PAD)
    config = _config(beam=3, n_best=2, length_offset=6)
    together = beam_search(model, source, mask, config=config)
    for number in range(20):
        alone = beam_search(model, source[number : number + 1, : lengths[number, 0]], config=config)[0]
        assert [h.tokens for h in alone] == [h.tokens for h in together[number]]
        assert [h.score for h in alone] == pytest.approx([h.score for h in together[number]])


def test_prefixes_of_different_lengths_share_a_batch(make_model):
    model = make_model(vocab_size=20, seed=4)
    config = _config(beam=3)
    outlines = [
        Outline((2, 5), True, (7, 3)),
        Outline((6,), True),
        Outline((4, 4, 3), True, (6, 6, 3, 9, 8, 3)),
    ]
    together = beam_search(model, SOURCE, MASK, config=config, outlines=outlines)
    for row, mask, outline, hypotheses in zip(SOURCE, MASK, outlines, together, strict=True):
        alone = beam_search(model, row[mask][None], config=config, outlines=[outline])[0]
        assert hypotheses[0].tokens == alone[0].tokens
        assert hypotheses[0].tokens[: len(outline.prefix)] == outline.prefix
        assert hypotheses[0].score == pytest.approx(alone[0].score)


def test_the_score_is_that_of_forced_decoding(make_model):
    model = make_model(vocab_size=20, seed=5)
    for row, mask, found in zip(SOURCE, MASK, beam_search(model, SOURCE, MASK, config=_config(n_best=2)), strict=True):
        for hypothesis in found:
            assert score_targets(model, [row[mask].tolist()], [[*hypothesis.tokens, END]])[0].total == pytest.approx(
                hypothesis.score
            )


@pytest.mark.parametrize("seed", range(4))
def test_outlines_hold_whatever_the_model_prefers(make_model, seed):
    model = make_model(vocab_size=12, seed=seed)
    with torch.no_grad():  # the model would love to produce what it must not
        model.output_embedding.weight[: SEPARATOR + 1] *= 8
    config = _config(beam=4, n_best=4)
    for row, found in zip(SOURCE, beam_search(model, SOURCE, MASK, config=config), strict=True):
        outline = Outline.of([token for token in row.tolist() if token != PAD], config)
        for hypothesis in found:
            assert _fits(hypothesis.tokens, outline)
            assert not {PAD, BEGIN, END} & set(hypothesis.tokens)


def test_min_length_and_limit_together_force_a_length(make_model):
    outlines = [Outline((7,))] * 3
    found = beam_search(make_model(), SOURCE, MASK, config=_config(min_length=7), outlines=outlines)
    assert [len(hypotheses[0].tokens) for hypotheses in found] == [7, 7, 7]


def test_stopping_at_the_beam_takes_no_more_steps_than_the_exact_stop(make_model):
    steps = {}
    for stop in ("exact", "beam"):
        search = start_search(decoder_of(make_model(seed=7)), _config(beam=2, stop=stop))
        search.add(SOURCE[0].tolist(), Outline((60,)))
        steps[stop] = 0
        while not search.done:
            search.advance()
            steps[stop] += 1
    assert steps["beam"] < steps["exact"] <= 61


def test_what_is_settled_stays(make_model):
    outline = Outline((4, 4, 4), aligned=True)
    search = start_search(decoder_of(make_model(seed=8)), _config(beam=3))
    number = search.add(SOURCE[0].tolist(), outline)
    settled = [search.settled(number).tokens]
    while not search.done:
        search.advance()
        settled.append(search.settled(number).tokens)
        assert settled[-1][: len(settled[-2])] == settled[-2]
    assert settled[0] == () and settled[-1] == search.hypotheses(number)[0].tokens
    assert any(settled[:-1]), "nothing was settled before the end"


def test_a_stepper_gives_the_same_as_its_model_and_training_mode_is_kept(make_model):
    model = make_model().train()
    first = beam_search(model, SOURCE, MASK)
    assert model.training
    assert beam_search(decoder_of(model.eval()), SOURCE, MASK) == first


def test_empty_batches_and_wrong_outlines():
    with pytest.raises(ArgumentError, match="one positive limit"):
        Outline(())
    with pytest.raises(ArgumentError, match="one positive limit"):
        Outline((2, 3), aligned=False)
    with pytest.raises(ArgumentError, match="holds 1 separators, but the outline has only 1"):
        Outline((2,), aligned=True, prefix=(5, 3))
    with pytest.raises(ConfigError, match="set beam=5"):
        DecodingConfig(beam=2, n_best=5)


def test_no_sources_give_no_translations_and_outlines_must_match(make_model):
    model = make_model()
    assert beam_search(model, SOURCE[:0], MASK[:0]) == []
    with pytest.raises(ArgumentError, match="3 sources but the outlines of 1"):
        beam_search(model, SOURCE, MASK, outlines=[Outline((3,))])


def test_weights_that_are_not_numbers_are_reported(make_model):
    model = make_model()
    with torch.no_grad():
        model.output_embedding.weight.fill_(float("nan"))
    with pytest.raises(ArgumentError, match="finite probability"):
        beam_search(model, SOURCE, MASK)
