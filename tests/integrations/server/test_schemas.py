"""Whatever the OpenAPI document allows is answered without a failure of ours.

SCHEMA_EXAMPLES asks for more examples of each route than the few of a quick run.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from reluformer.integrations.server.limits import ServerLimits
from reluformer.integrations.server.model_registry import ModelRegistry

EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "8"))
ROUTES = [
    ("POST", "/translate"), ("POST", "/translate/stream"), ("POST", "/translate_file"), ("POST", "/detect"),
    ("POST", "/inspect"), ("GET", "/languages"), ("GET", "/models"), ("GET", "/health"), ("GET", "/metrics"),
    ("GET", "/frontend/settings"), ("GET", "/download_file/{secret}/{name}"),
]  # fmt: skip


@pytest.fixture(scope="module")
def api(models: ModelRegistry) -> Any:
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from reluformer.integrations.server.application import create_app

    return schemathesis.openapi.from_asgi("/openapi.json", create_app(models, ServerLimits(characters=300)))


def test_every_route_is_tested(api: Any) -> None:
    operations = [found.ok() for found in api.get_all_operations()]
    assert {(operation.method.upper(), operation.path) for operation in operations} == set(ROUTES)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_request_makes_it_fail(api: Any, method: str, path: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=api[path][method].as_strategy())
    def ask(case: Any) -> None:
        response = case.call()
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            assert set(response.json()) == {"error", "code", "hint"}

    ask()
