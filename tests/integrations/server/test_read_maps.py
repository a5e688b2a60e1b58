from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reluformer.integrations.server.model_registry import ModelRegistry
from reluformer.translation.inspection import read_map
from reluformer.translation.tokenizer import END

if TYPE_CHECKING:
    from starlette.testclient import TestClient

TEXT = "The cat saw a dog. It ran home because night was near. A dog ran. It was the cat."


@pytest.mark.parametrize("place", [0, 1], ids=["relu", "softmax"])
def test_what_was_read_in_every_part(client: TestClient, models: ModelRegistry, place: int) -> None:
    model = models[place]
    found = client.post("/inspect", json={"q": TEXT, "model": model.name}).json()
    source, target = found["source_tokens"], found["target_tokens"]
    ends = [number for number, token in enumerate(source) if token["text"] == "<end>"]
    assert len(ends) > 1, "the document is longer than a window"
    assert [token["sentence"] for token in source] == sorted(token["sentence"] for token in source)
    assert {token["sentence"] for token in source} == {token["sentence"] for token in target} == {0, 1, 2, 3}
    words = [token["word"] for token in source]
    assert words == sorted(words) and words[-1] == max(words)
    assert (found["layers"], found["heads"]) == (2, 2) == (len(found["reads"]), len(found["reads"][0]))
    listed = 0
    for layer in found["reads"]:
        for head in layer:
            assert len(head) == len(target)
            for token, row in zip(target, head, strict=True):
                listed += len(row)
                assert all(weight != 0 for _, weight in row)
                assert {place for place, _ in row} <= own_part(source, ends, token["sentence"])
    assert (found["zero_fraction"] > 0.1) is (model.name == "sparse")
    if model.name == "dense":
        assert found["zero_fraction"] == 0 and listed > 0


def own_part(source: list[dict[str, int]], ends: list[int], sentence: int) -> set[int]:
    """The places of the part that holds a sentence."""
    first = 0
    for end in ends:
        if any(token["sentence"] == sentence for token in source[first : end + 1]):
            return set(range(first, end + 1))
        first = end + 1
    raise AssertionError("no such sentence")


def test_slots_that_fired(client: TestClient, models: ModelRegistry) -> None:
    found = client.post("/inspect", json={"q": "A dog.", "text": "The cat ran."}).json()
    assert found["text"] == "The cat ran."
    for layer in found["slots"]:
        assert len(layer) == len(found["target_tokens"])
        for row in layer:
            weights = [weight for _, weight in row["top"]]
            assert row["of"] == 24 and row["fired"] == len(row["top"]) and 0 < row["fired"] < 24
            assert weights == sorted(weights, reverse=True) and min(weights) > 0


def test_reads_of_a_given_translation_are_those_of_the_model(client: TestClient, models: ModelRegistry) -> None:
    tokenizer = models[0].translator.tokenizer
    found = client.post("/inspect", data={"q": "A dog.", "text": "The cat."}).json()
    source, target = ([*tokenizer.encode(text), END] for text in ("A dog.", "The cat."))
    expected = read_map(models[0].translator.model, source, target)
    for head in expected.heads:
        rows = found["reads"][head.layer][head.head]
        assert [[place for place, _ in row] for row in rows] == [[place for place, _ in row] for row in head.rows]
        flat = [weight for row in rows for _, weight in row]
        assert flat == pytest.approx([weight for row in head.rows for _, weight in row], rel=1e-3)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_self_attention_of_every_part(client: TestClient, models: ModelRegistry, kind: Any) -> None:
    found = client.post("/inspect", json={"q": TEXT, "attention": kind}).json()
    source, target, readable = found["source_tokens"], found["target_tokens"], found["read_tokens"]
    rows = source if kind == "encoder" else target
    assert found["attention"] == kind and len(found["reads"]) == found["layers"] == (1 if kind == "encoder" else 2)
    ends = [place for place, token in enumerate(source) if token["text"] == "<end>"]
    assert len(ends) > 1, "the document is longer than a window"
    if kind == "encoder":
        assert readable == source
    else:
        begins = [place for place, token in enumerate(readable) if token["text"] == "<begin>" and token["mark"]]
        assert len(begins) == len(ends) and len(readable) == len(target)
        texts = [token["text"] for token in readable if token["text"] != "<begin>"]
        assert texts == [token["text"] for token in target if token["text"] != "<end>"]
    for layer in found["reads"]:
        for head in layer:
            assert len(head) == len(rows)
            for number, row in enumerate(head):
                assert all(weight != 0 for _, weight in row)
                if kind == "decoder":
                    assert all(place <= number for place, _ in row), "only what was written before"
                else:
                    assert {place for place, _ in row} <= own_part(source, ends, rows[number]["sentence"])
    assert all(len(layer) == len(rows) for layer in found["slots"])
    assert 0.1 < found["zero_fraction"] < 0.9


def test_an_attention_that_does_not_exist(client: TestClient) -> None:
    answer = client.post("/inspect", json={"q": "A dog.", "attention": "self"})
    assert answer.status_code == 422 and "attention" in answer.json()["error"]


def test_a_translation_that_cannot_be_dealt_out(client: TestClient) -> None:
    answer = client.post("/inspect", json={"q": TEXT, "text": "The cat."})
    assert (answer.status_code, answer.json()["code"]) == (422, "not_aligned")
    aligned = client.post("/inspect", json={"q": TEXT, "text": "A dog. A cat. A dog. It ran."})
    assert aligned.status_code == 200


def test_translated_sentences_may_hold_full_stops(client: TestClient) -> None:
    body = {"q": "A dog. The cat.", "text": ["The dog. It ran.", "A cat."]}
    found = client.post("/inspect", json=body).json()
    words = {token["word"]: token["sentence"] for token in found["target_tokens"]}
    assert list(words.values()) == [0] * 5 + [1] * 3, "each with its end"
    answer = client.post("/inspect", json={**body, "text": ["The dog."]})
    assert (answer.status_code, answer.json()["code"]) == (422, "not_aligned")


def test_a_list_of_sentences_may_come_as_a_form(client: TestClient) -> None:
    body = {"q": "A dog. The cat.", "text": ["The dog. It ran.", "A cat."]}
    form, plain = client.post("/inspect", data=body).json(), client.post("/inspect", json=body).json()
    assert form == plain and form["text"] == "The dog. It ran. A cat."


def test_what_looks_like_a_mark_is_text(client: TestClient) -> None:
    found = client.post("/inspect", json={"q": "A dog.", "text": "The <sep> cat."}).json()
    words = ["".join(token["text"] for token in found["target_tokens"] if token["word"] == place) for place in range(4)]
    assert words == ["The", "<sep>", "cat.", "<end>"]
    assert len(found["target_tokens"]) > len(words), "of several tokens, not of as many marks"


def test_more_weights_than_can_be_shown(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from reluformer.integrations.server import read_maps

    monkeypatch.setattr(read_maps, "MAX_WEIGHTS", 10)
    for kind in ("cross", "encoder", "decoder"):
        answer = client.post("/inspect", json={"q": "A dog.", "attention": kind})
        assert (answer.status_code, answer.json()["error"]) == (413, "the table of reads is longer than 10 weights")
