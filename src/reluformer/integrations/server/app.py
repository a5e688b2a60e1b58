"""The application: routes, their descriptions, and the gate before them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import reluformer
from reluformer.integrations.server import shapes
from reluformer.integrations.server.api import Api
from reluformer.integrations.server.bodies import FORM, JSON, MULTIPART, Key
from reluformer.integrations.server.engine import Engine
from reluformer.integrations.server.gate import Draining, Gate
from reluformer.integrations.server.limits import Limits
from reluformer.integrations.server.metrics import Metrics
from reluformer.integrations.server.pages import PageFile, page_files
from reluformer.integrations.server.refusals import Refusal
from reluformer.integrations.server.served import ServedModels

if TYPE_CHECKING:
    from fastapi import FastAPI

_ERRORS = {400: "malformed", 401: "no key", 403: "wrong key", 404: "unknown", 408: "too slow", 413: "too long",
           415: "unknown type", 422: "invalid value", 429: "too many requests wait", 500: "failed",
           503: "shutting down", 504: "not finished in time"}  # fmt: skip


def create_app(
    models: ServedModels, limits: Limits | None = None, key: str | None = None, draining: Draining | None = None
) -> FastAPI:
    """A server of these models; `key` is what clients must know, `draining` says when to take nothing new."""
    from fastapi import FastAPI

    limits = limits or Limits()
    metrics = Metrics()
    engine = Engine(limits, metrics)
    api = Api(models, limits, Key(key), engine, metrics)

    @asynccontextmanager
    async def alive(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        engine.close()

    app = FastAPI(
        title="reluformer",
        version=reluformer.__version__,
        summary="Translation with the API of LibreTranslate, streams, and what a translation read.",
        docs_url=None,
        redoc_url=None,
        lifespan=alive,
        responses={code: {"model": shapes.Error, "description": text} for code, text in _ERRORS.items()},
        exception_handlers={HTTPException: _refuse},
    )
    app.add_middleware(Gate, limits=limits, metrics=metrics, draining=draining or Draining())
    app.state.engine = engine
    _add_routes(app, api)
    for page in page_files():
        _add_page(app, page)
    return app


def _add_routes(app: FastAPI, api: Api) -> None:
    def post(path: str, call: Any, body: type[BaseModel], kinds: tuple[str, ...], answer: Any, **more: Any) -> None:
        described = {"requestBody": {"required": True, "content": {kind: _content(body, kind) for kind in kinds}}}
        described["requestBody"].update(more)
        app.add_api_route(path, call, methods=["POST"], openapi_extra=described, **_answers(answer, call))

    def get(path: str, call: Any, answer: Any, **more: Any) -> None:
        app.add_api_route(path, call, methods=["GET"], **_answers(answer, call), **more)

    both = (JSON, FORM)
    post("/translate", api.translate, shapes.TranslateBody, both, shapes.Translated)
    post("/translate/stream", api.stream, shapes.StreamBody, both, "text/event-stream")
    post("/translate_file", api.translate_file, shapes.FileBody, (MULTIPART,), shapes.TranslatedFile)
    post("/detect", api.detect, shapes.DetectBody, both, list[shapes.DetectedLanguage])
    post("/inspect", api.inspect, shapes.InspectBody, both, shapes.Inspection)
    get("/languages", api.list_languages, list[shapes.Language])
    get("/models", api.list_models, list[shapes.ModelDescription])
    get("/health", api.health, shapes.Health)
    get("/frontend/settings", api.settings, dict[str, Any])
    get("/metrics", api.show_metrics, "text/plain")
    get("/download_file/{secret}/{name}", api.download_file, "text/plain", openapi_extra=_DOWNLOAD)


_DOWNLOAD = {
    "parameters": [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in ("secret", "name")
    ]
}


def _content(body: type[BaseModel], kind: str) -> dict[str, Any]:
    schema = body.model_json_schema()
    if kind == MULTIPART:
        schema["properties"]["file"] = {"type": "string", "format": "binary"}
        schema["required"] = [*schema.get("required", []), "file"]
    return {"schema": schema}


def _answers(answer: Any, call: Any) -> dict[str, Any]:
    """How FastAPI describes an answer that we write ourselves."""
    described: dict[str, Any] = {"response_model": None, "summary": (call.__doc__ or "").partition("\n")[0]}
    if isinstance(answer, str):
        described["responses"] = {200: {"content": {answer: {"schema": {"type": "string"}}}}}
        described["response_class"] = Response
    else:
        described["responses"] = {200: {"model": answer}}
    return described


def _add_page(app: FastAPI, page: PageFile) -> None:
    async def send(request: Request) -> Response:
        headers = {"ETag": page.etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == page.etag:
            return Response(status_code=304, headers=headers)
        return Response(page.content, headers={**headers, "Content-Type": page.media_type})

    app.add_api_route(page.path, send, methods=["GET", "HEAD"], include_in_schema=False)


async def _refuse(request: Request, error: Exception) -> Response:
    """What the framework refuses by itself, in our words."""
    assert isinstance(error, HTTPException)
    known = {
        404: ("not_found", "there is nothing under this path", "see /openapi.json"),
        405: ("method_not_allowed", "this path takes other methods", "see /openapi.json"),
    }
    malformed = ("malformed", "the body cannot be read", "check the form's encoding")
    raise Refusal(error.status_code, *known.get(error.status_code, malformed), error.headers)
