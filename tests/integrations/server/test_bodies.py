"""What clients send, where a client of tests would not send it so."""

from __future__ import annotations

import pytest

from reluformer.integrations.server.bodies import Key
from reluformer.integrations.server.refusals import Refusal


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_key_with_accents_in_a_header(encoding: str) -> None:
    from starlette.requests import Request

    def check(given: str) -> None:
        header = (b"authorization", f"Bearer {given}".encode(encoding))
        key.check(Request({"type": "http", "headers": [header]}))

    key = Key("voilà")  # in UTF-8 its last byte is a space of Latin-1
    check("voilà")
    with pytest.raises(Refusal, match="not the server's key"):
        check("voilá")
