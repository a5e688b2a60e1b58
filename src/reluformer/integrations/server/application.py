"""The application with its routes and the page at `/`, and the process that serves it."""

from __future__ import annotations

import hashlib
import mimetypes
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import reluformer
from reluformer.errors import ArgumentError
from reluformer.integrations.server import schemas
from reluformer.integrations.server.engine import Engine
from reluformer.integrations.server.handlers import Handlers
from reluformer.integrations.server.limits import ApiKey, RequestError, ServerLimits, Workers
from reluformer.integrations.server.middleware import Metrics, RequestMiddleware, ShutdownFlag, configure_logging
from reluformer.integrations.server.model_registry import ModelRegistry
from reluformer.integrations.server.schemas import FORM, JSON, MULTIPART

if TYPE_CHECKING:
    from fastapi import FastAPI

INDEX = "index.html"
ABSENT = "This is a reluformer server. It has no page in this installation; /openapi.json describes its API.\n"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
_ERRORS = {400: "malformed", 401: "no key", 403: "wrong key", 404: "unknown", 408: "too slow", 413: "too long",
           415: "unknown type", 422: "invalid value", 429: "too many requests wait", 500: "failed",
           503: "shutting down", 504: "not finished in time"}  # fmt: skip


def create_app(
    models: ModelRegistry,
    limits: ServerLimits | None = None,
    key: str | None = None,
    shutdown: ShutdownFlag | None = None,
) -> FastAPI:
    """Creates the application.

    Args:
        models: The models to serve.
        limits: The limits of requests; default: those of `ServerLimits`.
        key: The key that clients must send; default: none.
        shutdown: A flag that stops the server from accepting new requests.
    """
    from fastapi import FastAPI

    limits = limits or ServerLimits()
    metrics = Metrics()
    engine = Engine(limits, metrics)
    workers = Workers()
    handlers = Handlers(models, limits, ApiKey(key), engine, workers, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield
        engine.close()
        workers.close()

    app = FastAPI(
        title="reluformer",
        version=reluformer.__version__,
        summary="Translation with the API of LibreTranslate, streams, and what a translation read.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses={code: {"model": schemas.ErrorResponse, "description": text} for code, text in _ERRORS.items()},
        exception_handlers={HTTPException: _translate_error},
    )
    app.add_middleware(RequestMiddleware, limits=limits, metrics=metrics, shutdown=shutdown or ShutdownFlag())
    app.state.engine = engine
    _add_routes(app, handlers)
    for page in page_files():
        _add_page(app, page)
    return app


def _add_routes(app: FastAPI, handlers: Handlers) -> None:
    def post(path: str, handler: Any, body: type[BaseModel], kinds: tuple[str, ...], response: Any) -> None:
        described = {"requestBody": {"required": True, "content": {kind: _content(body, kind) for kind in kinds}}}
        app.add_api_route(path, handler, methods=["POST"], openapi_extra=described, **_response(response, handler))

    def get(path: str, handler: Any, response: Any, **more: Any) -> None:
        app.add_api_route(path, handler, methods=["GET"], **_response(response, handler), **more)

    both = (JSON, FORM)
    post("/translate", handlers.translate, schemas.TranslateRequest, both, schemas.TranslateResponse)
    post("/translate/stream", handlers.stream, schemas.StreamRequest, both, "text/event-stream")
    post("/translate_file", handlers.translate_file, schemas.FileRequest, (MULTIPART,), schemas.FileResponse)
    post("/detect", handlers.detect, schemas.DetectRequest, both, list[schemas.DetectedLanguage])
    post("/inspect", handlers.inspect, schemas.InspectRequest, both, schemas.InspectResponse)
    get("/languages", handlers.list_languages, list[schemas.LanguageDescription])
    get("/models", handlers.list_models, list[schemas.ModelDescription])
    get("/health", handlers.health, schemas.HealthResponse)
    get("/frontend/settings", handlers.settings, dict[str, Any])
    get("/metrics", handlers.show_metrics, "text/plain")
    get("/download_file/{secret}/{name}", handlers.download_file, "text/plain", openapi_extra=_DOWNLOAD)


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


def _response(response: Any, handler: Any) -> dict[str, Any]:
    """Returns the arguments of FastAPI that describe a response."""
    described: dict[str, Any] = {"response_model": None, "summary": (handler.__doc__ or "").partition("\n")[0]}
    if isinstance(response, str):
        described["responses"] = {200: {"content": {response: {"schema": {"type": "string"}}}}}
        described["response_class"] = Response
    else:
        described["responses"] = {200: {"model": response}}
    return described


def _add_page(app: FastAPI, page: PageFile) -> None:
    async def send(request: Request) -> Response:
        headers = {"ETag": page.etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == page.etag:
            return Response(status_code=304, headers=headers)
        return Response(page.content, headers={**headers, "Content-Type": page.media_type})

    app.add_api_route(page.path, send, methods=["GET", "HEAD"], include_in_schema=False)


async def _translate_error(request: Request, error: Exception) -> Response:
    """Turns an error of the framework into a `RequestError`."""
    assert isinstance(error, HTTPException)
    known = {
        404: ("not_found", "there is nothing under this path", "see /openapi.json"),
        405: ("method_not_allowed", "this path takes other methods", "see /openapi.json"),
    }
    malformed = ("malformed", "the body cannot be read", "check the form's encoding")
    raise RequestError(error.status_code, *known.get(error.status_code, malformed), error.headers)


@dataclass(frozen=True)
class PageFile:
    """A file of the page with its path on the server."""

    path: str
    content: bytes
    media_type: str

    @property
    def etag(self) -> str:
        """A hash of the content."""
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'


def page_files(root: Traversable | None = None) -> list[PageFile]:
    """Returns the files of the page.

    Args:
        root: The folder; default: `page` in this package.

    Returns:
        Every file of the folder, with index.html also as `/`. Without index.html, `/` is a sentence.
    """
    root = files("reluformer.integrations.server") / "page" if root is None else root
    found = dict(_walk(root)) if root.is_dir() else {}
    pages = [PageFile("/" + name, content, _media_type(name)) for name, content in found.items()]
    if INDEX in found:
        return [PageFile("/", found[INDEX], _media_type(INDEX)), *pages]
    return [PageFile("/", ABSENT.encode(), "text/plain; charset=utf-8"), *pages]


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.startswith((".", "__")):
            continue
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry.read_bytes()


def _media_type(name: str) -> str:
    suffix = "." + name.rpartition(".")[2]
    kind = _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind


class _Server(uvicorn.Server):
    """Sets the shutdown flag when a signal arrives; a second Ctrl-C ends the process at once.

    uvicorn itself raises the signal again at the end, so that a good end would look like a failure.
    """

    def __init__(self, config: uvicorn.Config, shutdown: ShutdownFlag) -> None:
        super().__init__(config)
        self._shutdown = shutdown

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = self._shutdown.requested = True


def serve(
    models: ModelRegistry,
    *,
    host: str,
    port: int,
    limits: ServerLimits,
    key: str | None = None,
    log_level: str = "info",
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serves until SIGTERM or SIGINT, then finishes the requests that were accepted.

    Args:
        models: The models to serve.
        host: The address to listen on.
        port: The port to listen on; 0 selects a free one.
        limits: The limits of requests.
        key: The key that clients must send; default: none.
        log_level: The level of the log, `info` or `warning`.
        ready: A function that receives the URL once the server accepts connections.

    Raises:
        ArgumentError: The server cannot listen on this host and port.
    """
    configure_logging(log_level)
    shutdown = ShutdownFlag()
    app = create_app(models, limits, key, shutdown)
    bound = listen(host, port)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(limits.request_seconds) + 1,
        lifespan="on",
    )
    shown = f"[{host}]" if ":" in host else host
    ready(f"http://{shown}:{bound.getsockname()[1]}/")
    server = _Server(config, shutdown)
    try:
        server.run(sockets=[bound])
    finally:
        bound.close()


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket; clients that connect are answered as soon as the server runs.

    Its connections send at once. Otherwise the second part of an answer waits for the client's word that the first one
    came, 40 milliseconds.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.create_server(address[:2], family=family, backlog=1024)
    except UnicodeError:  # an empty label, or one of more than 63 letters
        raise ArgumentError(f"--host {host}: is not the name of a host; choose another one, e.g. 127.0.0.1") from None
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise ArgumentError(f"--host {host} --port {port}: {reason}; choose another one, 0 takes a free port") from None
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # which its connections inherit
    return bound
