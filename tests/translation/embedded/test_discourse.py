"""Annotations survive JSON, and translations are scored by them."""

from __future__ import annotations

import json
import re

import pytest

from reluformer.errors import DataError
from reluformer.translation.document import Document
from reluformer.translation.embedded import Annotation, EmbeddedDocument, Tally, generate, score_discourse
from reluformer.translation.embedded.discourse import BUCKETS

NOTE = Annotation("term", 4, ("Sessel",), ("Stuhl",), 3, 2)


def test_documents_survive_json() -> None:
    documents = list(generate(20, split="test"))
    lines = [document.to_json() for document in documents]
    assert [EmbeddedDocument.from_json(line) for line in lines] == documents
    assert all("\n" not in line for line in lines)
    assert set(json.loads(lines[0])) == {"id", "src", "tgt", "annotations"}


def test_annotation_survives_json() -> None:
    assert Annotation.from_dict(json.loads(json.dumps(NOTE.to_dict()))) == NOTE


@pytest.mark.parametrize(
    "line", ["not json", "[]", '{"id": "x"}', '{"id": "x", "src": ["a"], "tgt": null, "annotations": []}']
)
def test_other_json_is_refused(line: str) -> None:
    with pytest.raises(DataError, match="not an embedded document"):
        EmbeddedDocument.from_json(line)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gap": None}, "gap"),
        ({"kind": "idiom"}, "kind"),
        ({"more": 1}, "exactly the keys"),
        ({"expected": "er"}, "expected"),
    ],
)
def test_other_annotations_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Annotation.from_dict(NOTE.to_dict() | change)


DOCUMENTS = list(generate(150, split="test", sentences=(2, 60)))
REFERENCES = [list(document.document.tgt or ()) for document in DOCUMENTS]
SWAPPED = {"er": "sie", "ihn": "es", "sie": "er", "es": "ihn"}


def replaced(document: EmbeddedDocument, kind: str) -> list[str]:
    """The reference with every expected form of `kind` exchanged for a wrong one."""
    sentences = list(document.document.tgt or ())
    for note in document.annotations:
        if note.kind == kind:
            wrong = SWAPPED[note.expected[0]] if kind == "pronoun" else note.wrong[0]
            pattern = re.compile(rf"\b{note.expected[0]}\b", re.IGNORECASE)
            sentences[note.sentence] = pattern.sub(wrong, sentences[note.sentence])
    return sentences


def one(kind: str, expected: str, wrong: tuple[str, ...], distance: int = 1) -> EmbeddedDocument:
    note = Annotation(kind, 0, (expected,), wrong, distance, distance)  # type: ignore[arg-type]
    return EmbeddedDocument(Document("x", ("A.",), ("B.",)), (note,))


def test_references_are_all_right() -> None:
    scores = score_discourse(DOCUMENTS, REFERENCES)
    assert scores.pronoun.accuracy == scores.pronoun_far.accuracy == scores.term.accuracy == 1.0
    assert scores.pronoun.count > 1000
    assert scores.term.count > 300
    assert all(tally.accuracy == 1.0 for tally in scores.term_by_distance.values() if tally.count)
    assert sum(tally.count for tally in scores.term_by_distance.values()) == scores.term.count
    assert all(tally.count and tally.accuracy == 1.0 for tally in scores.pronoun_by_distance.values())


def test_swapped_pronouns_are_all_wrong_and_terms_stay_right() -> None:
    scores = score_discourse(DOCUMENTS, [replaced(document, "pronoun") for document in DOCUMENTS])
    assert scores.pronoun.accuracy == scores.pronoun_far.accuracy == 0.0
    assert scores.term.accuracy == 1.0


def test_swapped_terms_are_all_wrong_and_pronouns_stay_right() -> None:
    scores = score_discourse(DOCUMENTS, [replaced(document, "term") for document in DOCUMENTS])
    assert scores.term.accuracy == 0.0
    assert scores.pronoun.accuracy == 1.0


def test_empty_sentences_are_wrong() -> None:
    scores = score_discourse(DOCUMENTS, [[""] * len(reference) for reference in REFERENCES])
    assert scores.pronoun.accuracy == scores.term.accuracy == 0.0


@pytest.mark.parametrize(
    ("hypothesis", "right"),
    [
        ("Anna hat ihn gefunden.", True),
        ("IHN hat Anna.", True),
        ("Anna hat sie gefunden.", False),
        ("Anna hat ihn, sie gefunden.", False),
        ("Anna hat ihnen geholfen.", False),
        ("Er hat ihn gefunden.", False),
        ("", False),
    ],
)
def test_judging_a_pronoun(hypothesis: str, right: bool) -> None:
    scores = score_discourse([one("pronoun", "ihn", ("er", "sie", "es"))], [[hypothesis]])
    assert scores.pronoun == Tally(int(right), 1)


@pytest.mark.parametrize(
    ("hypothesis", "right"),
    [("Der Sessel.", True), ("Der Stuhl.", False), ("Der Sessel, der Stuhl.", False), ("Der Sessellift.", False)],
)
def test_judging_a_term(hypothesis: str, right: bool) -> None:
    assert score_discourse([one("term", "Sessel", ("Stuhl",))], [[hypothesis]]).term == Tally(int(right), 1)


@pytest.mark.parametrize(
    ("distance", "bucket", "far"),
    [
        (1, "1", 0),
        (2, "2", 0),
        (3, "3-4", 0),
        (4, "3-4", 0),
        (5, "5-9", 1),
        (9, "5-9", 1),
        (10, "10-19", 1),
        (19, "10-19", 1),
        (20, "20+", 1),
        (150, "20+", 1),
    ],
)
def test_buckets(distance: int, bucket: str, far: int) -> None:
    scores = score_discourse([one("pronoun", "er", ("sie",), distance)], [["Er schläft."]])
    counts = {name: tally.count for name, tally in scores.pronoun_by_distance.items()}
    assert counts == {name: int(name == bucket) for name in BUCKETS}
    assert scores.pronoun_by_gap == scores.pronoun_by_distance
    assert scores.pronoun_far == Tally(far, far)


def test_nothing_to_judge_has_no_accuracy() -> None:
    scores = score_discourse([], [])
    assert scores.pronoun.accuracy is None
    assert json.loads(json.dumps(scores.to_dict()))["term"] == {"accuracy": None, "right": 0, "count": 0}


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(DataError, match="150 documents but 1 translations"):
        score_discourse(DOCUMENTS, REFERENCES[:1])
    with pytest.raises(DataError, match=r"has \d+ sentences, its translation is 1 sentences"):
        score_discourse([DOCUMENTS[1]], [["Nur einer."]])
    with pytest.raises(DataError, match="one string"):
        score_discourse([DOCUMENTS[1]], ["Nur ein Text."])
