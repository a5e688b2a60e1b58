"""What every request passes: a number of its own, limits on its body, log, metrics, headers, errors.

Nothing of what users write gets into the log: paths are those of our routes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reluformer.errors import ReluformerError
from reluformer.integrations.server.limits import Limits
from reluformer.integrations.server.metrics import Metrics
from reluformer.integrations.server.refusals import Refusal, failed, shutting_down, too_large

log = logging.getLogger("reluformer.integrations.server")

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
"""Of a body that is too long, so many times the limit is read away, so that the client gets to read the answer."""
GONE = 499
"""In the log: the client left before the answer."""


@dataclass
class Account:
    """What the log says about a request."""

    request: str = field(default_factory=lambda: secrets.token_hex(8))
    started: float = field(default_factory=time.monotonic)
    status: int = 0
    characters: int = 0
    batch: int = 0
    deadline: float = 0.0
    """On the clock of `time.monotonic`."""


class Draining:
    """Whether the server takes nothing new any more."""

    def __init__(self) -> None:
        self.now = False


class Gate:
    """The outermost part of the application."""

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics, draining: Draining) -> None:
        self._app = app
        self._limits = limits
        self._metrics = metrics
        self._draining = draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        account = Account()
        account.deadline = account.started + self._limits.request_seconds
        scope.setdefault("state", {})["account"] = account
        body = IncomingBody(receive, self._limits)

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                account.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = account.request
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        try:
            if self._draining.now:
                raise shutting_down()
            body.check_announced(Headers(scope=scope))
            await self._app(scope, body.receive, send_on)
        except ClientDisconnect:
            account.status = GONE
        except Exception as error:
            await self._refuse(error, account, body, send_on)
        finally:
            self._note(scope, account)

    async def _refuse(self, error: Exception, account: Account, body: IncomingBody, send: Send) -> None:
        """Answer with what went wrong, unless an answer has begun."""
        refusal = _refusal_of(error)
        if refusal.status >= 500 and not isinstance(error, Refusal):
            log.error("failed", extra={"fields": {"event": "failure", **_place_of(error)}})
        if account.status:
            return
        if refusal.status == 413:
            await body.discard()
        content = json.dumps(refusal.body()).encode()
        headers = {"content-type": "application/json", "content-length": str(len(content)), **refusal.headers}
        if not body.complete:
            headers["connection"] = "close"
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
        await send({"type": "http.response.body", "body": content})

    def _note(self, scope: Scope, account: Account) -> None:
        path = getattr(scope.get("route"), "path", "other")
        took = time.monotonic() - account.started
        self._metrics.requests.labels(path, str(account.status)).inc()
        self._metrics.seconds.labels(path).observe(took)
        fields = {
            "event": "request",
            "request": account.request,
            "method": scope["method"] if scope["method"] in _METHODS else "other",
            "path": path,
            "status": account.status,
            "characters": account.characters,
            "batch": account.batch,
            "milliseconds": round(1000 * took, 1),
        }
        log.info("request", extra={"fields": fields})


_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"))


class IncomingBody:
    """A request's body on its way in: no longer than the limit, and not for ever."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self.complete = False
        self._receive = receive
        self._limits = limits
        self._bytes = 0
        self._until = time.monotonic() + limits.receive_seconds

    def check_announced(self, headers: Headers) -> None:
        """Refuse a body that says itself that it is too long; one that says nothing is counted as it comes."""
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._limits.body_bytes:
            raise self._too_large()

    async def receive(self) -> Message:
        """The next piece of it; behind the last one, that the client left."""
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
            raise Refusal(408, "body_timeout", sentence, "send it faster, or less of it") from None
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)
        else:
            self.complete = True
        return message

    async def discard(self) -> None:
        """Read on to the end of it, within reason."""
        most = self._limits.body_bytes * DISCARDED
        try:
            while not self.complete and self._bytes <= most:
                await self._next()
        except Refusal:
            return

    def _too_large(self) -> Refusal:
        return too_large("the body", self._limits.body_bytes, "bytes")


def _refusal_of(error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ReluformerError):
        return Refusal(400, "not_translatable", str(error), "mend the text, or send another format")
    return failed()


def _place_of(error: BaseException) -> dict[str, Any]:
    """What failed and where, without any message: that might hold a user's text."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f"{trace.tb_frame.f_globals.get('__name__', '?')}:{trace.tb_lineno}"
    return {"error": type(error).__name__, "where": where}
