"""Annotations survive JSON; what is not one is refused with a reason."""

import json

import pytest

from reluformer.errors import DataError
from reluformer.translation.embedded import Annotation, EmbeddedDocument, generate

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
