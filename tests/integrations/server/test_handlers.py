"""The API as clients see it, in this process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reluformer.integrations.server.model_registry import ModelRegistry, unique_names

if TYPE_CHECKING:
    from starlette.testclient import TestClient

TEXT = "The cat saw a dog. It ran home.\n\n  A dog ran.\n"
ASK = {"q": "A dog ran home.", "source": "en", "target": "de"}


@pytest.mark.parametrize("sent", ["json", "data"])
def test_translate(client: TestClient, models: ModelRegistry, sent: str) -> None:
    answer = client.post("/translate", **{sent: {**ASK, "q": TEXT}})
    assert answer.status_code == 200
    assert answer.json() == {"translatedText": models[0].translator.translate([TEXT])[0]}


def test_several_texts_and_another_model(client: TestClient, models: ModelRegistry) -> None:
    texts = ["A dog.", "", TEXT, "  \n"]
    answer = client.post("/translate", json={**ASK, "q": texts, "model": "dense"}).json()
    assert answer["translatedText"] == models[1].translator.translate(texts)
    form = client.post("/translate", data={**ASK, "q": texts}).json()
    assert form["translatedText"] == models[0].translator.translate(texts)


def test_alternatives_and_a_language_that_was_not_named(client: TestClient, models: ModelRegistry) -> None:
    ranked = models[0].translator.translate([ASK["q"]], n_best=4)[0]
    answer = client.post("/translate", json={**ASK, "alternatives": 3, "source": "auto"}).json()
    assert answer["translatedText"] == ranked[0]
    assert answer["alternatives"] == list(dict.fromkeys(text for text in ranked[1:] if text != ranked[0]))
    assert answer["detectedLanguage"] == {"confidence": 100.0, "language": "en"}
    several = client.post("/translate", json={**ASK, "q": [ASK["q"]], "alternatives": 3, "source": "auto"}).json()
    assert several["alternatives"] == [answer["alternatives"]]
    assert several["detectedLanguage"] == [answer["detectedLanguage"]]


def test_tags_stay(client: TestClient) -> None:
    page = '<p class="a">The cat saw.</p>\n<!-- note --><script>if (a < b) {}</script><td>A dog &amp; it.</td>'
    answer = client.post("/translate", json={**ASK, "q": page, "format": "html"}).json()["translatedText"]
    assert re.sub(r">[^<>]*<", "><", answer.replace("a < b", "")) == re.sub(
        r">[^<>]*<", "><", page.replace("a < b", "")
    )
    assert "<script>if (a < b) {}</script>" in answer and "The cat saw." not in answer


def test_what_front_ends_ask_for(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    languages = client.get("/languages").json()
    assert languages == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    assert client.post("/detect", data={"q": "Hello"}).json() == [{"confidence": 100.0, "language": "en"}]
    settings = client.get("/frontend/settings").json()
    assert settings["charLimit"] == 50_000 and not settings["keyRequired"]
    assert {".txt", ".md", ".html", ".po"} <= set(settings["supportedFilesFormat"])


def test_models_say_what_they_are(client: TestClient) -> None:
    sparse, dense = client.get("/models").json()
    assert (sparse["name"], sparse["default"], sparse["zero-weights"]) == ("sparse", True, True)
    assert (dense["name"], dense["default"], dense["zero-weights"]) == ("dense", False, False)
    assert sparse["rule"]["cross_attention"] == {"name": "relu"} and (sparse["layers"], sparse["heads"]) == (2, 2)


def events(answer: Any) -> list[tuple[str, dict[str, Any]]]:
    found = re.findall(r"event: (\w+)\ndata: (.*)\n\n", answer.text)
    assert "".join(f"event: {name}\ndata: {data}\n\n" for name, data in found) == answer.text
    return [(name, json.loads(data)) for name, data in found]


@pytest.mark.parametrize(("format", "text"), [("text", TEXT), ("html", "<p>The cat.</p> <p>A dog &lt; it ran.</p>")])
def test_a_stream_holds_the_whole_translation(client: TestClient, format: str, text: str) -> None:
    answer = client.post("/translate/stream", json={"q": text, "format": format})
    assert answer.headers["content-type"].startswith("text/event-stream")
    (first, start), *sentences, (last, done) = events(answer)
    assert (first, last, start["model"]) == ("start", "done", "sparse")
    whole = client.post("/translate", json={**ASK, "q": text, "format": format}).json()["translatedText"]
    assert done["text"] == whole and done["seconds"] >= 0
    assert [data["index"] for _, data in sentences] == list(range(len(start["sentences"])))
    laid_out = "".join(
        place["before"] + data["text"] for place, (_, data) in zip(start["sentences"], sentences, strict=True)
    )
    assert laid_out + start["after"] == whole
    assert [data["source"] for _, data in sentences] == [place["source"] for place in start["sentences"]]


def test_a_stream_of_nothing(client: TestClient) -> None:
    assert [name for name, _ in events(client.post("/translate/stream", data={"q": " \n"}))] == ["start", "done"]


def test_a_stream_that_takes_too_long_says_so(serve: Callable[..., TestClient], idle: None) -> None:
    answer = serve(request_seconds=0.05).post("/translate/stream", data={"q": "A dog."})
    assert [name for name, _ in events(answer)] == ["start", "error"]
    assert events(answer)[1][1]["code"] == "timeout"


def test_files(client: TestClient, models: ModelRegistry) -> None:
    name, content = "lettre d'été.md", "# The cat\n\nA dog ran `home`.\n"
    sent = client.post("/translate_file", files={"file": (name, content)}, data={"source": "en", "target": "de"})
    address = sent.json()["translatedFileUrl"]
    assert address.startswith("http://testserver/download_file/")
    fetched = client.get(address)
    assert fetched.text == models[0].translator.translate([content], format="markdown")[0]
    assert "lettre%20d%27%C3%A9t%C3%A9_de.md" in fetched.headers["content-disposition"]
    assert fetched.headers["content-type"].startswith("text/plain")
    secret = address.split("/")[4]
    assert client.get(address.replace(secret, secret[::-1])).status_code == 404


def test_metrics_count(serve: Callable[..., TestClient]) -> None:
    client = serve()
    client.post("/translate", json=ASK)
    client.get("/nowhere/private")
    lines = client.get("/metrics").text.splitlines()
    assert 'reluformer_requests_total{path="/translate",status="200"} 1.0' in lines
    assert 'reluformer_requests_total{path="other",status="404"} 1.0' in lines
    assert 'reluformer_batch_texts_bucket{le="1.0"} 1.0' in lines
    assert "reluformer_queue 0.0" in lines
    assert f"reluformer_characters_total {len(ASK['q'])}.0" in lines
    assert any(line.startswith("reluformer_target_tokens_total") for line in lines)


def test_the_document_of_the_api(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/translate", "/translate/stream", "/translate_file", "/inspect", "/models", "/detect"} <= set(paths)
    body = paths["/translate"]["post"]["requestBody"]["content"]
    assert set(body) == {"application/json", "application/x-www-form-urlencoded"}
    assert client.get("/docs").status_code == 404


BAD: list[tuple[str, dict[str, Any], int, str]] = [
    ("/translate", {"content": b"{"}, 415, "unsupported_media_type"),
    ("/translate", {"content": b"{", "headers": {"content-type": "application/json"}}, 400, "malformed_json"),
    ("/translate", {"content": b"[" * 100_000, "headers": {"content-type": "application/json"}}, 400, "malformed_json"),
    ("/translate", {"content": b"\xff\xfe{", "headers": {"content-type": "application/json"}}, 400, "malformed_json"),
    ("/translate", {"json": [1]}, 400, "malformed_json"),
    ("/translate", {"json": {"q": "x"}}, 400, "missing_field"),
    ("/translate", {"json": {**ASK, "q": 7}}, 422, "invalid_field"),
    ("/translate", {"json": {**ASK, "format": "pdf"}}, 422, "invalid_field"),
    ("/translate", {"json": {**ASK, "alternatives": -1}}, 422, "invalid_field"),
    ("/translate", {"json": {**ASK, "alternatives": 99}}, 422, "invalid_field"),
    ("/translate", {"content": b'{"q": "\\ud800", "target": "de"}', "headers": {"content-type": "application/json"}},
     422, "invalid_field"),
    ("/detect", {"content": b'{"q": "\xed\xa0\x80"}', "headers": {"content-type": "application/json"}},
     422, "invalid_field"),
    ("/inspect", {"content": '{"q": "\\ud800"}'.encode("utf-16"), "headers": {"content-type": "application/json"}},
     422, "invalid_field"),
    ("/translate", {"content": b"q=x&target=de&target=fr", "headers": {"content-type":
     "application/x-www-form-urlencoded"}}, 422, "invalid_field"),
    ("/translate", {"json": {**ASK, "target": "xx"}}, 400, "unsupported_languages"),
    ("/translate", {"json": {**ASK, "model": "spars"}}, 404, "unknown_model"),
    ("/translate", {"content": b"x", "headers": {"content-type": "multipart/form-data; boundary=a"}}, 400, "malformed"),
    ("/translate_file", {"data": {"target": "de"}}, 415, "unsupported_media_type"),
    ("/translate_file", {"files": {"other": ("a.txt", "x")}, "data": {"target": "de"}}, 400, "missing_field"),
    ("/translate_file", {"files": {"file": ("a.pdf", "x")}, "data": {"target": "de"}}, 415, "unsupported_file"),
    ("/translate_file", {"files": {"file": ("a.txt", b"\xff\xfe")}, "data": {"target": "de"}}, 400, "not_translatable"),
    ("/inspect", {"json": {"q": "..."}}, 400, "nothing_to_read"),
    ("/inspect", {"json": {"q": "A dog.", "text": ""}}, 400, "nothing_to_read"),
    ("/health", {"json": {}}, 405, "method_not_allowed"),
    ("/nowhere", {"json": {}}, 404, "not_found"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "sent", "status", "code"), BAD)
def test_errors_say_what_to_do(client: TestClient, path: str, sent: dict[str, Any], status: int, code: str) -> None:
    answer = client.post(path, **sent)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert set(answer.json()) == {"error", "code", "hint"} and all(answer.json().values())


def test_limits(serve: Callable[..., TestClient]) -> None:
    client = serve(characters=20, texts=2, inspected_tokens=8)
    for sent in ({**ASK, "q": "a" * 21}, {**ASK, "q": ["a"] * 3}, {**ASK, "q": ["a" * 11] * 2}):
        answer = client.post("/translate", json=sent)
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    answer = client.post("/translate_file", files={"file": ("a.txt", "a" * 21)}, data={"target": "de"})
    assert answer.status_code == 413
    answer = client.post("/inspect", json={"q": "a a a a a a a a a"})
    assert (answer.status_code, answer.json()["error"]) == (413, "'q' is longer than 8 tokens")


def test_a_key(serve: Callable[..., TestClient]) -> None:
    client = serve(key="geheim ä")
    assert client.post("/translate", json=ASK).status_code == 401
    wrong = client.post("/translate", data={**ASK, "api_key": "geheim"})
    assert (wrong.status_code, wrong.json()["code"]) == (403, "key_wrong")
    assert "geheim" not in wrong.text
    assert client.post("/translate", data={**ASK, "api_key": "geheim ä"}).status_code == 200
    assert client.get("/metrics").status_code == 401
    for path, body in (("/detect", {"q": "x"}), ("/inspect", {"q": "x"}), ("/translate/stream", {"q": "x"})):
        assert client.post(path, json=body).status_code == 401
    assert client.get("/languages").status_code == client.get("/health").status_code == 200


def test_a_key_in_a_header(serve: Callable[..., TestClient]) -> None:
    client = serve(key="secret")
    assert client.get("/metrics", headers={"Authorization": "Bearer secret"}).status_code == 200
    assert client.get("/metrics", headers={"Authorization": "Basic secret"}).status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer other"}).status_code == 403


def test_a_full_queue(serve: Callable[..., TestClient], idle: None) -> None:
    client = serve(waiting=1, request_seconds=0.05)
    late = client.post("/translate", json=ASK)
    assert (late.status_code, late.json()["code"]) == (504, "timeout")
    full = client.post("/translate", json=ASK)
    assert (full.status_code, full.json()["code"]) == (429, "busy")
    assert int(full.headers["retry-after"]) >= 1


def test_two_runs_of_one_name_are_told_apart() -> None:
    assert unique_names([Path("runs/a"), Path("runs/b")]) == ["a", "b"]
    assert unique_names([Path("/x/a/best"), Path("/x/b/best")]) == ["a-best", "b-best"]
    assert unique_names([Path("/x/a/runs/demo"), Path("/x/b/runs/demo")]) == ["a-runs-demo", "b-runs-demo"]
    assert unique_names([Path("/demo"), Path("/x/demo")]) == ["demo", "x-demo"]
    hidden = [Path("/a-b/c"), Path("/a/b-c"), Path("/d/c")]
    assert unique_names(hidden) == ["/a-b/c", "/a/b-c", "/d/c"]
