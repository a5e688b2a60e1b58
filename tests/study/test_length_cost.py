"""The cost of length: BLEU by caption, its bootstrap, and slips to neighbours."""

from __future__ import annotations

import pytest
from sacrebleu.metrics.bleu import BLEU

from reluformer.errors import ArgumentError
from reluformer.study.length_cost import bleu_counts, bleu_of, cost_of_length, neighbour_slips

REFERENCES = [
    "ein Mann fährt mit einem roten Fahrrad",
    "zwei Hunde laufen über das nasse Gras",
    "eine Frau liest ein Buch im Park",
    "drei Kinder spielen am Strand mit einem Ball",
    "ein Koch schneidet Gemüse in der Küche",
    "der alte Zug fährt langsam über die Brücke",
]
WORSE = [text.rsplit(" ", 1)[0] + " Haus" for text in REFERENCES]


def test_counts_give_the_bleu_of_sacrebleu() -> None:
    expected = BLEU(tokenize="13a").corpus_score(WORSE, [REFERENCES]).score
    assert bleu_of(bleu_counts(WORSE, REFERENCES).sum(0)) == pytest.approx(expected)
    assert 0 < expected < 100


def test_the_cost_is_the_bleu_that_joining_loses() -> None:
    found = cost_of_length(REFERENCES, [REFERENCES, WORSE], REFERENCES)
    worse = bleu_of(bleu_counts(WORSE, REFERENCES).sum(0))
    assert found["bleu_alone"] == 100.0
    assert found["bleu_by_join"] == [100.0, round(worse, 2)]
    assert found["cost"] == pytest.approx((100 - worse) / 2, abs=0.01)
    low, high = found["cost_interval"]
    assert low <= found["cost"] <= high


def test_a_resample_takes_the_same_captions_from_both_sides() -> None:
    found = cost_of_length(WORSE, [WORSE, WORSE], REFERENCES)
    assert found["cost"] == 0.0
    assert found["cost_interval"] == [0.0, 0.0]


@pytest.mark.parametrize(("alone", "joined"), [([], []), (REFERENCES, []), (REFERENCES, [REFERENCES[:2]])])
def test_what_cannot_be_compared_is_refused(alone: list[str], joined: list[list[str]]) -> None:
    with pytest.raises(ArgumentError, match="one translation of every caption"):
        cost_of_length(alone, joined, REFERENCES[: len(alone)])


def test_a_translation_of_the_neighbour_is_a_slip() -> None:
    references = ["aaaa aaa", "bbbb bbb", "cccc ccc"]
    assert neighbour_slips(references, references, [[0, 1, 2]]) == 0
    slipped = [references[0], references[2], references[2]]
    assert neighbour_slips(slipped, references, [[0, 1, 2]]) == pytest.approx(1 / 3)
    assert neighbour_slips(slipped, references, [[1, 0, 2]]) == 0  # it is two captions away
    assert neighbour_slips(slipped, references, [[1, 0, 2]], reach=2) == pytest.approx(1 / 3)


def test_a_caption_without_neighbours_cannot_slip() -> None:
    assert neighbour_slips(WORSE, REFERENCES, [[0], [1]]) == 0
