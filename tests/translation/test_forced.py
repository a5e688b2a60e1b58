from __future__ import annotations

import pytest
import torch

from reluformer.errors import ArgumentError
from reluformer.translation.forced import score
from reluformer.translation.tokenizer import BEGIN, END

SOURCES = [[5, 6, 3, 7, 2], [8, 2]]
TARGETS = [[7, 3, 8, 6, 2], [6, 6, 6, 2]]


def test_scores_are_the_models_log_probabilities(make_model):
    model = make_model()
    for source, target, scored in zip(SOURCES, TARGETS, score(model, SOURCES, TARGETS), strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([source]), torch.tensor([[BEGIN, *target[:-1]]])).logits[0]
        expected = [row[token].item() for row, token in zip(torch.log_softmax(logits, -1), target, strict=True)]
        assert scored.tokens == pytest.approx(expected)
        assert scored.total == pytest.approx(sum(expected))
    assert score(model, SOURCES, TARGETS)[0].sentences == pytest.approx(
        (sum(score(model, SOURCES, TARGETS)[0].tokens[:2]), sum(score(model, SOURCES, TARGETS)[0].tokens[2:]))
    )


def test_batches_change_nothing_and_order_is_kept(make_model):
    model = make_model()
    together = score(model, SOURCES * 3, TARGETS * 3)
    apart = score(model, SOURCES * 3, TARGETS * 3, batch_tokens=1)
    for one, other in zip(together, apart, strict=True):
        assert one.tokens == pytest.approx(other.tokens)
    assert together[0].tokens == pytest.approx(together[2].tokens) != pytest.approx(together[1].tokens)


def test_what_does_not_fit_is_refused(make_model):
    assert score(make_model(), [], []) == []
    with pytest.raises(ArgumentError, match="2 sources but 1 targets"):
        score(make_model(), SOURCES, TARGETS[:1])
    with pytest.raises(ArgumentError, match=f"end token {END}"):
        score(make_model(), SOURCES, [[5], [6, 2]])
