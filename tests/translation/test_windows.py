from __future__ import annotations

import pytest
import torch

from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.search import Hypothesis
from reluformer.translation.stepper import padded
from reluformer.translation.tokenizer import END, SEPARATOR
from reluformer.translation.torch_stepper import TorchStepper
from reluformer.translation.windows import WindowedDocument, stream_document, translate_documents

DOCUMENT = ["the cat saw a dog", "", "it ran home", "because night was near", "  ", "a dog ran", "the night"] * 2


@pytest.fixture
def stepper(make_model, tokenizer) -> TorchStepper:
    return TorchStepper(make_model(vocab_size=tokenizer.vocab_size, seed=1))


def _config(**changes) -> DecodingConfig:
    return DecodingConfig(**{"beam": 2, "length_offset": 2, "length_ratio": 0.5, "context_sentences": 2, **changes})


@pytest.mark.parametrize("window", [8, 12, 30, 500, "sentence", None])
def test_one_sentence_out_for_each_one_in(stepper, tokenizer, window):
    documents = [DOCUMENT, [], [""], ["it ran home"], DOCUMENT[3:8]]
    found = translate_documents(stepper, tokenizer, documents, _config(window_tokens=window))
    for document, (best,) in zip(documents, found, strict=True):
        assert len(best.sentences) == len(document)
        for source, target in zip(document, best.sentences, strict=True):
            assert bool(source.strip()) or target == source


def test_documents_in_a_batch_do_not_influence_each_other(stepper, tokenizer):
    documents = [DOCUMENT, DOCUMENT[5:], ["a cat"], DOCUMENT[2:9]]
    config = _config(window_tokens=12, batch_tokens=40)
    together = translate_documents(stepper, tokenizer, documents, config)
    alone = [translate_documents(stepper, tokenizer, [document], config)[0] for document in documents]
    assert [[t.sentences for t in best] for best in together] == [[t.sentences for t in best] for best in alone]


@pytest.mark.parametrize("window", [10, 500])
def test_a_stream_gives_the_same_sentences(stepper, tokenizer, window):
    config = _config(window_tokens=window)
    expected = translate_documents(stepper, tokenizer, [DOCUMENT], config)[0][0].sentences
    assert tuple(one.text for one in stream_document(stepper, tokenizer, DOCUMENT, config)) == expected


def test_a_stream_speaks_before_the_document_is_finished(stepper, tokenizer, monkeypatch):
    steps = 0
    step = TorchStepper.step

    def counted(*arguments):
        nonlocal steps
        steps += 1
        return step(*arguments)

    monkeypatch.setattr(TorchStepper, "step", counted)
    config = _config(beam=1, window_tokens=500, check_alignment=False)  # a random model reads any sentence
    stream = stream_document(stepper, tokenizer, DOCUMENT, config)
    next(stream)
    at_first = steps
    list(stream)
    assert 0 < at_first < steps / 2


def test_windows_carry_over_sentences_with_their_translations(tokenizer):
    sentences = ["the cat", "a dog", "it ran", "night was"]
    ids = tokenizer.encode_batch(sentences)
    config = _config(window_tokens=sum(len(row) + 1 for row in ids[:3]), context_sentences=1)
    document = WindowedDocument(sentences, tokenizer, config)
    window = document.window()
    assert window.source == (*ids[0], SEPARATOR, *ids[1], SEPARATOR, *ids[2], END)
    assert window.outline.prefix == () and len(window.outline.limits) == 3
    document.accept([Hypothesis((50, SEPARATOR, 51, SEPARATOR, 52, 53), -1.0, -1.0)])
    window = document.window()
    assert window.source == (*ids[2], SEPARATOR, *ids[3], END)
    assert window.outline.prefix == (52, 53, SEPARATOR) and len(window.outline.limits) == 2
    document.accept([Hypothesis((52, 53, SEPARATOR, 54), -2.0, -1.0)])
    assert document.done
    (translation,) = document.translations()
    assert translation.sentences == tuple(map(tokenizer.decode, [[50], [51], [52, 53], [54]]))
    assert translation.score == -3.0


@pytest.mark.parametrize("window", [8, 13, 29, 64])
def test_no_window_is_longer_than_asked_for(tokenizer, window):
    document = WindowedDocument([*DOCUMENT, "x" * 100, " ".join(DOCUMENT)], tokenizer, _config(window_tokens=window))
    read = []
    while not document.done:
        next_window = document.window()
        assert len(next_window.source) <= window
        new = next_window.stop - next_window.first
        read += [token for token in _last_sentences(next_window.source, new) if token not in (SEPARATOR, END)]
        tokens = [*next_window.outline.prefix, *([60, SEPARATOR] * new)[:-1]]
        document.accept([Hypothesis(tuple(tokens), -1.0, -1.0)])
    assert "".join(tokenizer.decode(read).split()) == "".join("".join([*DOCUMENT, "x" * 100, *DOCUMENT]).split())
    assert len(document.translations()[0].sentences) == len(DOCUMENT) + 2


def _last_sentences(source, count):
    breaks = [i for i, token in enumerate(source) if token == SEPARATOR]
    return source if count > len(breaks) else source[breaks[-count] :]


def test_n_best_documents_of_many_windows(stepper, tokenizer):
    found = translate_documents(stepper, tokenizer, [DOCUMENT], _config(window_tokens=12, n_best=2))[0]
    assert len(found) == 2
    assert found[0].sentences != found[1].sentences
    assert all(len(translation.sentences) == len(DOCUMENT) for translation in found)


def test_progress_reaches_the_number_of_sentences(stepper, tokenizer):
    reports = []
    documents = [DOCUMENT, ["a dog"]]
    translate_documents(
        stepper, tokenizer, documents, _config(window_tokens=12), lambda *counts: reports.append(counts)
    )
    assert reports[-1] == (len(DOCUMENT) + 1, len(DOCUMENT) + 1)
    assert reports == sorted(reports) and len(reports) > 3


def test_padding():
    tokens, mask = padded([[5, 6, 2], [7, 2]])
    assert tokens.tolist() == [[5, 6, 2], [7, 2, 0]]
    assert mask is not None and mask.tolist() == [[True, True, True], [True, True, False]]
    assert padded([[5, 2]])[1] is None
    assert padded([])[0].shape == torch.Size([0, 0])


COPIED = ["1,234", "x = y²", "B", "🎉🎉", "3 + 4 = 7", "...", " 12 %", "²", "–"]


def test_what_has_no_letters_is_copied(stepper, tokenizer):
    document = ["the cat", *COPIED, "a dog"]
    ((found,),) = translate_documents(stepper, tokenizer, [document], _config())
    assert list(found.sentences[1:-1]) == COPIED
    ((without,),) = translate_documents(stepper, tokenizer, [["the cat", "a dog"]], _config())
    assert (found.sentences[0], found.sentences[-1], found.score) == (*without.sentences, without.score)
    assert list(stream_document(stepper, tokenizer, document, _config())) == list(found.translated)
