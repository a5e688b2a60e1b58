"""Hostile requests: they are refused before they cost anything, and never in the event loop."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import pytest
from pydantic import ValidationError

from reluformer.integrations.server import schemas
from reluformer.integrations.server.engine import Job
from reluformer.integrations.server.schemas import Payload, TextLayout, TranslateRequest
from reluformer.translation import formats

if TYPE_CHECKING:
    from starlette.testclient import TestClient

LONG = "A dog ran home. " * 200
ASK = {"source": "en", "target": "de"}
PO = 'msgid ""\nmsgstr ""\n"Plural-Forms: nplurals={}; plural=0;\\n"\n\nmsgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n'


def refuse(*_: Any) -> None:
    raise AssertionError("the text was parsed")


def test_a_file_is_measured_before_it_is_parsed(
    serve: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(characters=20)
    monkeypatch.setattr(Payload, "from_file", refuse)
    answer = client.post("/translate_file", files={"file": ("a.md", "<b>" * 7)}, data=ASK)
    assert (answer.status_code, answer.json()["error"]) == (413, "the text is longer than 20 characters")


@pytest.mark.parametrize("nplurals", ["999999999999", "²"])
def test_a_file_with_impossible_plural_forms_is_refused(client: TestClient, nplurals: str) -> None:
    pytest.importorskip("translate", reason="translate-toolkit is not installed")
    answer = client.post("/translate_file", files={"file": ("a.po", PO.format(nplurals))}, data=ASK)
    assert (answer.status_code, answer.json()["code"]) == (400, "not_translatable")
    assert f"nplurals={nplurals}" in answer.json()["error"]


@pytest.mark.parametrize("record", ['"id": ' + "[" * 5000 + "]" * 5000, '"id": ' + "9" * 5000, '"id": "\\ud800"'])
def test_a_file_with_hostile_json_is_refused(client: TestClient, record: str) -> None:
    content = '{"src": ["A dog."]}\n{"src": ["A dog."], "hyp": [], ' + record + "}"
    answer = client.post("/translate_file", files={"file": ("a.jsonl", content)}, data=ASK)
    assert (answer.status_code, answer.json()["code"]) == (400, "not_translatable")
    assert answer.json()["error"].startswith("line 2: ")


def test_long_texts_and_all_files_stay_out_of_the_event_loop(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def watch(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            threads.append(threading.current_thread().name)
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, watched)

    for name in ("from_texts", "from_file", "fill"):
        watch(Payload, name)
    watch(Job, "__init__")
    watch(TextLayout, "to_json")
    assert client.post("/translate", json={**ASK, "q": LONG}).status_code == 200
    assert client.post("/translate/stream", json={**ASK, "q": LONG}).status_code == 200
    assert client.post("/translate_file", files={"file": ("a.txt", "A dog.")}, data=ASK).status_code == 200
    assert len(threads) == 10
    assert all(name.startswith("reluformer-worker") for name in threads)


def test_a_text_that_is_parsed_for_too_long_gets_an_answer(
    serve: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    client = serve(request_seconds=0.1)
    monkeypatch.setattr(Payload, "from_texts", lambda *_: released.wait())
    answer = client.post("/translate", json={**ASK, "q": LONG})
    released.set()
    assert (answer.status_code, answer.json()["code"]) == (504, "timeout")


def test_a_list_of_other_things_than_texts_is_refused_at_its_first_entry(client: TestClient) -> None:
    with pytest.raises(ValidationError) as refused:
        TranslateRequest.model_validate({"q": [1] * 1000, "target": "de"})
    assert refused.value.error_count() == 2  # it is no text, and no list of texts
    answer = client.post("/translate", json={**ASK, "q": [1] * 1000})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_field")


def test_an_upload_is_never_written_to_disk(serve: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("a temporary file was opened")

    client = serve(key="secret")
    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    for route in ("/translate_file", "/translate"):
        answer = client.post(route, files={"file": ("a.txt", b"x" * (3 << 20))}, data={**ASK, "q": "A dog."})
        assert (answer.status_code, answer.json()["code"]) == (401, "key_missing")


def test_fields_of_a_form_stay_out_of_the_event_loop(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def parse(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return parse_qsl(*arguments, **options)

    monkeypatch.setattr(schemas, "parse_qsl", parse)
    headers = {"content-type": "application/x-www-form-urlencoded"}
    content = f"target=de&q={LONG}".encode()
    assert client.post("/translate", content=content, headers=headers).status_code == 200
    assert threads and threads[0].startswith("reluformer-worker")
    answer = client.post("/translate", content=b"&a=b" * 2000, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed")


def test_bytes_of_a_form_that_no_client_escaped_are_utf_8(client: TestClient) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answers = [
        client.post("/translate", content=b"target=de&q=" + text, headers=headers)
        for text in ("Gr\u00f6\u00dfe 12".encode(), b"Gr%C3%B6%C3%9Fe+12")
    ]
    assert answers[0].json() == answers[1].json() and answers[0].status_code == 200


def test_an_error_quotes_little_of_a_long_field(client: TestClient) -> None:
    for field in ("source", "model"):
        answer = client.post("/translate", json={**ASK, "q": "A dog.", field: "x" * 100_000})
        assert answer.status_code in (400, 404) and len(answer.content) < 1000


def test_a_form_without_an_end(client: TestClient) -> None:
    headers = {"content-type": "multipart/form-data"}
    answer = client.post("/translate_file", content=b"x", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed")


def test_the_layout_of_a_text_without_sentences() -> None:
    layout = TextLayout(formats.get("plain").skeleton("\n \n" * 1000))
    assert layout.to_json() == {"sentences": [], "after": "\n \n" * 1000}
