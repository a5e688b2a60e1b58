"""The middleware around every request: request id, body limits, log, metrics, headers, errors.

The log has one JSON object a line, on standard error; its paths are those of the routes. The
metrics have the format of Prometheus and a registry of their own. Neither holds any text of users.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reluformer.errors import ReluformerError
from reluformer.integrations.server.limits import RequestError, ServerLimits, failed, shutting_down, too_large
from reluformer.translation.formats import FillReport

LOGGER = "reluformer.integrations.server"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)

log = logging.getLogger(LOGGER)

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
DISCARDED = 4
"""Of a body that is too long, this many times the limit is read and discarded, so that the client sees the error."""
CLIENT_CLOSED_REQUEST = 499
"""The status in the log if the client closed the connection before the response."""


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON: time, level, and either its `fields` or its message."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", None) or {"event": "message", "message": record.getMessage()}
        if record.exc_info and record.exc_info[0]:
            fields = {**fields, "error": record.exc_info[0].__name__}
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": moment, "level": record.levelname.lower(), **fields})


def configure_logging(level: str = "info") -> None:
    """Sends the records of this package and of uvicorn to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in (LOGGER, "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())


class Metrics:
    """The counters, histograms and gauges of one server."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry(auto_describe=True)
        self.requests = Counter("reluformer_requests", "Requests answered.", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "reluformer_request_seconds", "Seconds from request to answer.", ["path"], buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip
        self.refused = Counter("reluformer_refused", "Requests refused because the queue was full.", registry=registry)
        self.batch = Histogram(
            "reluformer_batch_texts", "Windows of texts decoded together.", buckets=_TEXTS, registry=registry
        )
        self.source_tokens = Counter("reluformer_source_tokens", "Source tokens read.", registry=registry)
        self.target_tokens = Counter("reluformer_target_tokens", "Tokens of translations.", registry=registry)
        self.characters = Counter("reluformer_characters", "Characters of texts to translate.", registry=registry)
        self.retranslated = Counter(
            "reluformer_retranslated_sentences", "Sentences translated anew by themselves.", registry=registry
        )
        self.marks_by_position = Counter(
            "reluformer_marks_by_position", "Marks that no word had read, placed by position.", registry=registry
        )
        self._queue = Gauge("reluformer_queue", "Requests that wait or are translated.", registry=registry)

    def count_filling(self, report: FillReport) -> None:
        """Counts what happened to the sentences and marks of a translation."""
        self.retranslated.inc(report.retranslated)
        self.marks_by_position.inc(report.marks_by_position)

    def watch_queue(self, length: Callable[[], int]) -> None:
        """Sets the function that returns the length of the queue."""
        self._queue.set_function(length)

    def page(self) -> bytes:
        """Returns all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


@dataclass
class RequestRecord:
    """What the log says about a request."""

    request_id: str = field(default_factory=lambda: secrets.token_hex(8))
    started: float = field(default_factory=time.monotonic)
    status: int = 0
    characters: int = 0
    batch: int = 0
    deadline: float = 0.0
    """The time, by `time.monotonic`, at which the request fails."""


class ShutdownFlag:
    """True in `requested` means that the server finishes its requests and accepts no new ones."""

    def __init__(self) -> None:
        self.requested = False


class RequestMiddleware:
    """The outermost layer of the application, which all requests pass."""

    def __init__(self, app: ASGIApp, limits: ServerLimits, metrics: Metrics, shutdown: ShutdownFlag) -> None:
        self._app = app
        self._limits = limits
        self._metrics = metrics
        self._shutdown = shutdown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord()
        record.deadline = record.started + self._limits.request_seconds
        scope.setdefault("state", {})["record"] = record
        body = IncomingBody(receive, self._limits)

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = record.request_id
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        try:
            if self._shutdown.requested:
                raise shutting_down()
            body.check_content_length(Headers(scope=scope))
            await self._app(scope, body.receive, send_on)
        except ClientDisconnect:
            record.status = CLIENT_CLOSED_REQUEST
        except Exception as error:
            await self._send_error(error, record, body, send_on)
        finally:
            self._log_request(scope, record)

    async def _send_error(self, error: Exception, record: RequestRecord, body: IncomingBody, send: Send) -> None:
        """Sends the error to the client, unless a response has begun."""
        response = _request_error(error)
        if response.status >= 500 and not isinstance(error, RequestError):
            log.error("failed", extra={"fields": {"event": "failure", **_error_fields(error)}})
        if record.status:
            return
        if response.status == 413:
            await body.discard()
        content = json.dumps(response.body()).encode()
        headers = {"content-type": "application/json", "content-length": str(len(content)), **response.headers}
        if not body.complete:
            headers["connection"] = "close"
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": response.status, "headers": raw})
        await send({"type": "http.response.body", "body": content})

    def _log_request(self, scope: Scope, record: RequestRecord) -> None:
        path = getattr(scope.get("route"), "path", "other")
        took = time.monotonic() - record.started
        self._metrics.requests.labels(path, str(record.status)).inc()
        self._metrics.seconds.labels(path).observe(took)
        fields = {
            "event": "request",
            "request": record.request_id,
            "method": scope["method"] if scope["method"] in _METHODS else "other",
            "path": path,
            "status": record.status,
            "characters": record.characters,
            "batch": record.batch,
            "milliseconds": round(1000 * took, 1),
        }
        log.info("request", extra={"fields": fields})


_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"))


class IncomingBody:
    """The body of a request while it arrives; its size and its time are limited."""

    def __init__(self, receive: Receive, limits: ServerLimits) -> None:
        self.complete = False
        self._receive = receive
        self._limits = limits
        self._bytes = 0
        self._until = time.monotonic() + limits.receive_seconds

    def check_content_length(self, headers: Headers) -> None:
        """Raises an error if the header `Content-Length` exceeds the limit."""
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._limits.body_bytes:
            raise self._too_large()

    async def receive(self) -> Message:
        """Returns the next message; after the end of the body this is the disconnection of the client."""
        if self.complete:
            return await self._receive()
        message = await self._next()
        if self._bytes > self._limits.body_bytes:
            raise self._too_large()
        return message

    async def _next(self) -> Message:
        try:
            async with asyncio.timeout(self._until - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            sentence = f"the body had not arrived after {self._limits.receive_seconds:g} seconds"
            raise RequestError(408, "body_timeout", sentence, "send it faster, or less of it") from None
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)
        else:
            self.complete = True
        return message

    async def discard(self) -> None:
        """Reads the rest of the body, up to a multiple of the limit."""
        most = self._limits.body_bytes * DISCARDED
        try:
            while not self.complete and self._bytes <= most:
                await self._next()
        except RequestError:
            return

    def _too_large(self) -> RequestError:
        return too_large("the body", self._limits.body_bytes, "bytes")


def _request_error(error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    if isinstance(error, ReluformerError):
        return RequestError(400, "not_translatable", str(error), "fix the text, or send another format")
    return failed()


def _error_fields(error: BaseException) -> dict[str, Any]:
    """Returns the type and the place of an error without its message, which may hold a user's text."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f"{trace.tb_frame.f_globals.get('__name__', '?')}:{trace.tb_lineno}"
    return {"error": type(error).__name__, "where": where}
