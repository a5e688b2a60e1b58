"""Whatever the OpenAPI document allows, and much that it does not, is answered without a failure of ours."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from starlette.testclient import TestClient

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "6"))


@pytest.fixture(scope="module")
def api(client: TestClient) -> object:
    return schemathesis.openapi.from_asgi("/openapi.json", client.app)


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_request_makes_it_fail(case: object) -> None:
    from schemathesis.checks import not_a_server_error

    response = case.call()
    case.validate_response(response, checks=[not_a_server_error])
    assert response.status_code < 500
    if response.status_code >= 400:
        assert set(response.json()) == {"error", "code", "hint"}
