from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reluformer.integrations.server.application import page_files
from reluformer.integrations.server.limits import RequestError, ServerLimits
from reluformer.integrations.server.schemas import FileStorage

if TYPE_CHECKING:
    from starlette.testclient import TestClient


def test_files_of_the_page_and_their_types(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>ä")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "app.js").write_text("1")
    (tmp_path / ".hidden").write_text("x")
    found = {page.path: page for page in page_files(tmp_path)}
    assert set(found) == {"/", "/index.html", "/parts/app.js"}
    assert found["/"].content == "<p>ä".encode() and found["/"].media_type == "text/html; charset=utf-8"
    assert found["/parts/app.js"].media_type == "text/javascript; charset=utf-8"


def test_a_sentence_where_there_is_no_page(tmp_path: Path) -> None:
    (page,) = page_files(tmp_path / "absent")
    assert page.path == "/" and b"/openapi.json" in page.content


def test_an_unchanged_page_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/")
    assert first.status_code == 200 and first.content
    again = client.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304 and not again.content


def test_files_are_kept_for_a_while_and_not_too_many() -> None:
    now = [0.0]
    files = FileStorage(ServerLimits(stored_files=2, stored_seconds=10), clock=lambda: now[0])

    secrets = [files.store("a.txt", b"x") for _ in range(3)]
    assert [files.fetch(secret).content for secret in secrets[1:]] == [b"x", b"x"]
    with pytest.raises(RequestError, match="no such file"):
        files.fetch(secrets[0])
    now[0] = 11
    with pytest.raises(RequestError, match="no such file"):
        files.fetch(secrets[2])
