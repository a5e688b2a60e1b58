"""The middleware and the API key, called as a server calls them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from reluformer.integrations.server.limits import ApiKey, RequestError, ServerLimits
from reluformer.integrations.server.model_registry import ModelRegistry

if TYPE_CHECKING:
    from starlette.testclient import TestClient

BODY = json.dumps({"q": "A dog ran home privately.", "target": "de"}).encode()


@pytest.fixture
def call(models: ModelRegistry) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Status and JSON of a POST whose body comes in these messages, after which `last` comes or nothing ever."""
    from reluformer.integrations.server.application import create_app
    from reluformer.integrations.server.middleware import ShutdownFlag

    def post(
        messages: list[dict[str, Any]], headers: dict[str, str] | None = None, shutdown: bool = False, **limits: Any
    ) -> tuple[int, dict[str, Any]]:
        flag = ShutdownFlag()
        flag.requested = shutdown
        app = create_app(models, ServerLimits(**limits), shutdown=flag)
        sent: list[dict[str, Any]] = []
        remaining = iter(messages)

        async def receive() -> dict[str, Any]:
            for message in remaining:
                return message
            return await asyncio.Future()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        given = {"content-type": "application/json", **(headers or {})}
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1",
            "method": "POST", "scheme": "http", "path": "/translate", "raw_path": b"/translate", "query_string": b"",
            "root_path": "", "server": ("testserver", 80), "client": ("127.0.0.1", 1),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }  # fmt: skip
        asyncio.run(app(scope, receive, send))
        if not sent:
            return 0, {}
        content = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], json.loads(content)

    return post


def piece(content: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": content, "more_body": more}


def test_a_body_is_counted_while_it_comes(call: Callable[..., Any]) -> None:
    pieces = [piece(b"x" * 1000, True) for _ in range(3)]
    status, answer = call([*pieces, piece(b"", False)], body_bytes=2000)
    assert (status, answer["code"]) == (413, "too_large")


def test_a_body_that_says_that_it_is_too_long_is_refused_at_once(call: Callable[..., Any]) -> None:
    status, answer = call([piece(b"", False)], {"content-length": "3000"}, body_bytes=2000)
    assert (status, answer["code"]) == (413, "too_large")


def test_a_body_without_end_is_not_read_for_ever(call: Callable[..., Any]) -> None:
    endless = [piece(b"x" * 1000, True) for _ in range(100)]
    status, _ = call(endless, body_bytes=2000, receive_seconds=60)
    assert status == 413


def test_a_body_that_stops_coming(call: Callable[..., Any]) -> None:
    status, answer = call([piece(BODY[:10], True)], receive_seconds=0.02)
    assert (status, answer["code"]) == (408, "body_timeout")


def test_a_client_that_leaves_gets_no_answer_and_its_work_is_dropped(
    call: Callable[..., Any], idle: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "reluformer.integrations.server"):
        status, _ = call([piece(BODY, False), {"type": "http.disconnect"}])
        early, _ = call([piece(BODY[:10], True), {"type": "http.disconnect"}])
    assert status == early == 0
    assert [record.fields["status"] for record in caplog.records] == [499, 499]


def test_nothing_new_while_shutting_down(call: Callable[..., Any]) -> None:
    status, answer = call([piece(BODY, False)], shutdown=True)
    assert (status, answer["code"]) == (503, "shutting_down")


def test_our_own_faults_are_answered_and_logged_without_text(
    serve: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from reluformer.integrations.server.schemas import Payload

    def fail(*_: Any) -> None:
        raise KeyError("A dog ran home privately.")

    client = serve()
    monkeypatch.setattr(Payload, "from_texts", fail)
    with caplog.at_level(logging.INFO, "reluformer.integrations.server"):
        answer = client.post("/translate", content=BODY, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert [record.fields["event"] for record in caplog.records] == ["failure", "request"]
    assert caplog.records[0].fields["error"] == "KeyError"
    assert not any("privately" in str(record.__dict__) for record in caplog.records)


def test_the_log_is_json_without_text(serve: Callable[..., TestClient], caplog: pytest.LogCaptureFixture) -> None:
    from reluformer.integrations.server.middleware import JsonFormatter

    client = serve()
    with caplog.at_level(logging.INFO, "reluformer.integrations.server"):
        answer = client.post("/translate?private=1", content=BODY, headers={"content-type": "application/json"})
        client.get("/private")
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    first, second = lines
    assert (first["path"], first["status"], first["characters"], first["batch"]) == ("/translate", 200, 25, 1)
    assert first["request"] == answer.headers["x-request-id"] and first["milliseconds"] > 0
    assert (second["path"], second["status"]) == ("other", 404)
    assert "privat" not in json.dumps(lines)


def test_every_answer_forbids_foreign_content(client: TestClient) -> None:
    for path in ("/", "/health", "/nowhere"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and len(headers["x-request-id"]) == 16


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_key_with_accents_in_a_header(encoding: str) -> None:
    from starlette.requests import Request

    def check(given: str) -> None:
        header = (b"authorization", f"Bearer {given}".encode(encoding))
        key.check(Request({"type": "http", "headers": [header]}))

    key = ApiKey("voilà")  # in UTF-8 its last byte is a space of Latin-1
    check("voilà")
    with pytest.raises(RequestError, match="not the server's key"):
        check("voilá")
