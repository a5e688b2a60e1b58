from __future__ import annotations

import json

import pytest
import torch

from reluformer.errors import ArgumentError
from reluformer.translation.inspection import read_map, tokenize_words
from reluformer.translation.recipe import DecodingConfig
from reluformer.translation.tokenizer import END, SEPARATOR
from reluformer.translation.translator import Translator

SOURCE, TARGET = [5, 6, 7, 8, 2], [6, 3, 7, 2]


def test_relu_reads_are_sparse_and_softmax_reads_are_not(make_model):
    relu = read_map(make_model(cross_attention="relu"), SOURCE, TARGET)
    softmax = read_map(make_model(cross_attention="softmax"), SOURCE, TARGET)
    assert 0.1 < relu.zero_fraction < 0.9
    assert softmax.zero_fraction == 0
    assert all(sum(w for _, w in row) == pytest.approx(1) for head in softmax.heads for row in head.rows)
    assert len(relu.heads) == 4 and all(len(head.rows) == len(TARGET) for head in relu.heads)


@pytest.mark.parametrize("learn_offset", [False, True], ids=["plain", "offset"])
@pytest.mark.parametrize("rule", ["relu", "sparsemax", "softmax"])
def test_the_listed_weights_give_the_read_of_the_model(make_model, rule, learn_offset):
    model = make_model(cross_attention=rule, learn_offset=learn_offset)
    seen = {}

    def keep(module, given, output):
        seen["values"], seen["read"] = given[1].values, output[0]

    hook = model.decoder[1].cross.layer.read.register_forward_hook(keep)
    (head,) = read_map(model, SOURCE, TARGET, layer=1, head=0).heads
    hook.remove()
    dense = torch.zeros(len(TARGET), len(SOURCE), dtype=torch.float64)
    for row, reads in enumerate(head.rows):
        for place, weight in reads:
            assert weight != 0
            dense[row, place] = weight
    torch.testing.assert_close(dense @ seen["values"][0, 0], seen["read"][0, 0])
    assert (head.layer, head.head) == (1, 0)


def test_reads_are_plain_data_and_the_model_is_left_as_it_was(make_model):
    model = make_model().train()
    found = read_map(model, SOURCE, TARGET, layer=0)
    plain = json.loads(json.dumps(found.to_json()))
    assert plain["source"] == SOURCE and plain["target"] == TARGET
    assert [head["layer"] for head in plain["heads"]] == [0, 0]
    assert model.training
    assert not model.decoder[0].cross.layer.read._forward_hooks


@pytest.mark.parametrize("rule", ["relu_plain", "softmax"])
def test_the_slots_that_fired_give_the_read_of_the_memory(make_model, rule):
    model = make_model(ffn=rule)
    seen = []
    hook = model.decoder[1].ffn.layer.register_forward_hook(lambda module, given, output: seen.append(output[0][0]))
    _, memory = read_map(model, SOURCE, TARGET, slots=24).slots
    hook.remove()
    assert (memory.layer, memory.slots, len(memory.rows)) == (1, 24, len(TARGET))
    dense = torch.zeros(len(TARGET), 24, dtype=torch.float64)
    for row, reads in enumerate(memory.rows):
        assert len(reads) == memory.fired[row] and (rule == "softmax") is (memory.fired[row] == 24)
        for slot, weight in reads:
            dense[row, slot] = weight
    torch.testing.assert_close(model.decoder[1].ffn.layer.values(dense), seen[0])


def test_only_the_strongest_slots_are_listed_and_none_unless_asked(make_model):
    model = make_model()
    every, some = (read_map(model, SOURCE, TARGET, slots=most).slots for most in (24, 3))
    for whole, part in zip(every, some, strict=True):
        assert [row[:3] for row in whole.rows] == list(part.rows) and whole.fired == part.fired
    assert read_map(model, SOURCE, TARGET).slots == ()
    assert [memory.layer for memory in read_map(model, SOURCE, TARGET, layer=1, slots=2).slots] == [1]


def test_layers_and_heads_that_do_not_exist(make_model):
    with pytest.raises(ArgumentError, match="layer 2 does not exist; the model has layers 0 to 1"):
        read_map(make_model(), SOURCE, TARGET, layer=2)
    with pytest.raises(ArgumentError, match="head 5 does not exist"):
        read_map(make_model(), SOURCE, TARGET, head=5)
    with pytest.raises(ArgumentError, match="at least their end"):
        read_map(make_model(), SOURCE, [])


def test_a_mark_is_told_from_text_of_the_same_letters(tokenizer):
    tokens, words = tokenize_words(tokenizer, ["a <sep> dog", "it <end>"], first=0)
    assert [word.text for word in words] == ["a", "<sep>", "dog", "<sep>", "it", "<end>", "<end>"]
    assert [word.is_mark for word in words] == [False, False, False, True, False, False, True]
    assert [token for token, place in tokens if words[place].is_mark] == [SEPARATOR, END]


@pytest.mark.parametrize("kind", ["cross", "encoder", "decoder"])
def test_each_kind_of_attention_gives_the_read_of_the_model(make_model, kind):
    rules = dict.fromkeys(("encoder_attention", "decoder_attention", "cross_attention"), "relu")
    model = make_model(**rules, encoder_layers=2)
    block = (model.encoder if kind == "encoder" else model.decoder)[1]
    seen = {}

    def keep(module, given, output):
        seen["values"], seen["read"] = given[1].values, output[0]

    hook = (block.cross if kind == "cross" else block.attention).layer.read.register_forward_hook(keep)
    found = read_map(model, SOURCE, TARGET, layer=1, head=0, slots=3, attention=kind)
    hook.remove()
    (head,), (memory,) = found.heads, found.slots
    rows, columns = {"cross": (4, 5), "encoder": (5, 5), "decoder": (4, 4)}[kind]
    dense = torch.zeros(rows, columns, dtype=torch.float64)
    for row, reads in enumerate(head.rows):
        for place, weight in reads:
            dense[row, place] = weight
    torch.testing.assert_close(dense @ seen["values"][0, 0], seen["read"][0, 0])
    assert found.weights == {"cross": 20, "encoder": 25, "decoder": 10}[kind], "what is visible"
    assert found.zero_fraction == pytest.approx(1 - int((dense != 0).sum()) / found.weights)
    assert len(memory.rows) == rows and found.to_json()["attention"] == kind


def test_an_attention_that_does_not_exist(make_model):
    with pytest.raises(ArgumentError, match="unknown attention 'self'; valid: cross, encoder, decoder"):
        read_map(make_model(), SOURCE, TARGET, attention="self")


class TestTranslatorInspect:
    SENTENCES = ("the cat saw a dog", "it ran home")

    @pytest.fixture
    def translator(self, make_model, tokenizer):
        model = make_model(vocab_size=tokenizer.vocab_size, encoder_layers=3, decoder_layers=2).float()
        return Translator(model, tokenizer, DecodingConfig(beam=1, window_tokens=64))

    def test_the_maps_are_those_of_the_model(self, translator):
        (maps,) = translator.inspect(list(self.SENTENCES), ["a cat", "a dog ran"])
        source, target = len(maps.source), len(maps.target)
        assert "".join(maps.source).startswith("the") and maps.source[-1] == maps.target[-1] == "<end>"
        assert "<sep>" in maps.source and "<sep>" in maps.target
        assert maps.target_sentences == ("a cat", "a dog ran")
        assert maps.encoder.shape == (3, 2, source, source)
        assert maps.decoder.shape == (2, 2, target, target)
        assert maps.cross.shape == (2, 2, target, source)
        assert maps.cross.dtype == "float32"
        assert not maps.decoder[:, :, *torch.triu_indices(target, target, 1).tolist()].any()
        tokens = [
            [token for token, _ in tokenize_words(translator.tokenizer, sentences, 0)[0]]
            for sentences in (maps.source_sentences, maps.target_sentences)
        ]
        for kind in ("cross", "encoder", "decoder"):
            for head in read_map(translator.model, *tokens, attention=kind).heads:
                dense = torch.zeros(getattr(maps, kind).shape[2:])
                for row, reads in enumerate(head.rows):
                    for place, weight in reads:
                        dense[row, place] = weight
                torch.testing.assert_close(torch.from_numpy(getattr(maps, kind)[head.layer, head.head]), dense)

    def test_a_text_is_translated_and_read_window_by_window(self, translator):
        text = "The cat saw a dog. It ran home."
        (maps,) = translator.inspect(text)
        assert maps.source_sentences == ("The cat saw a dog.", "It ran home.")
        assert [list(maps.target_sentences)] == translator.translate_documents([maps.source_sentences])
        translator.config = translator.config.replace(window_tokens="sentence")
        windows = [part.source_sentences for part in translator.inspect(text)]
        assert windows == [
            ("The cat saw a dog.",),
            ("It ran home.",),
        ]

    def test_wrong_use(self, translator):
        with pytest.raises(ArgumentError, match="no sentence"):
            translator.inspect(" ")
        with pytest.raises(ArgumentError, match="2 sentences but 1 translations"):
            translator.inspect(list(self.SENTENCES), ["a cat"])
        with pytest.raises(ArgumentError, match="inspect takes a list"):
            translator.inspect(list(self.SENTENCES), "a cat")
