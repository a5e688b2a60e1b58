from __future__ import annotations

import json

import pytest
import torch

from reluformer.errors import ArgumentError
from reluformer.translation.inspection import read_map, tokenize_words
from reluformer.translation.tokenizer import END, SEPARATOR

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
