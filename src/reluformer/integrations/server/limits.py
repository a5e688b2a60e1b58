"""The limits of a request, the API key, the errors that a client gets, and the worker threads.

Every error carries an HTTP status, a sentence for people, a code for programs, and a hint
that says what to do.

Worker threads do everything whose time grows with a text: parsing, splitting, tokenizing and filling.
The event loop answers all clients, so it only does work of bounded size. A thread cannot be
stopped from outside. These guarantees hold instead:

* A client gets its answer at the deadline of its request, whatever its text does to a parser.
* Work that has not started by then never starts; what has started ends on its own, and its result is discarded.
* The threads are daemons: neither a shutdown nor the end of the process waits for them.

What has started ends soon, because the length of a text is checked before it is parsed, and
every format needs time in proportion to that length.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from pydantic import Field

from reluformer.config import Config
from reluformer.errors import ReluformerError

if TYPE_CHECKING:
    from starlette.requests import Request

THREADS = 4
Result = TypeVar("Result")


class ServerLimits(Config):
    """Every number that protects the server, or the clients from each other.

    Example:
        >>> ServerLimits(characters=1000).characters
        1000
    """

    characters: int = Field(default=50_000, ge=1)
    """Characters of all texts of a request together."""
    texts: int = Field(default=256, ge=1)
    """Texts in the list of one request."""
    body_bytes: int = Field(default=4 << 20, ge=1024)
    """Bytes of a request's body, including a file."""
    alternatives: int = Field(default=8, ge=0)
    """Further translations that a request may ask for."""
    inspected_tokens: int = Field(default=1024, ge=8)
    """Tokens of a source, and of its translation, that `/inspect` accepts."""
    waiting: int = Field(default=256, ge=1)
    """Requests that wait or are being translated; the next one gets status 429."""
    request_seconds: float = Field(default=120.0, gt=0)
    """A request fails after this time."""
    receive_seconds: float = Field(default=30.0, gt=0)
    """The body of a request must arrive within this time."""
    batch_tokens: int = Field(default=4096, ge=1)
    """Source tokens, including padding, that are decoded together."""
    batch_texts: int = Field(default=64, ge=1)
    """Windows of texts that are decoded together; 1 decodes them one by one."""
    stored_files: int = Field(default=64, ge=1)
    """Translated files that wait for their download; the oldest one is deleted first."""
    stored_seconds: float = Field(default=1800.0, gt=0)
    """A translated file is deleted after this time."""


MOST_SHOWN = 500
"""The most characters of an error's sentence, which may quote the request."""


class RequestError(ReluformerError):
    """A request that the server refuses or fails to answer.

    Args:
        status: The HTTP status of the response.
        code: A short name of the error for programs.
        sentence: A sentence that says what is wrong.
        hint: A sentence that says what to do.
        headers: Additional headers of the response.

    Example:
        >>> too_large("the text", 10, "characters").body()["code"]
        'too_large'
    """

    def __init__(
        self, status: int, code: str, sentence: str, hint: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code
        self.sentence = sentence if len(sentence) <= MOST_SHOWN else f"{sentence[:MOST_SHOWN]}..."
        self.hint = hint
        self.headers = dict(headers or {})

    def body(self) -> dict[str, str]:
        """Returns the JSON object that the client receives."""
        return {"error": self.sentence, "code": self.code, "hint": self.hint}


def too_large(what: str, limit: int, unit: str) -> RequestError:
    """Returns the error for a request that exceeds a limit."""
    sentence = f"{what} is longer than {limit} {unit}"
    return RequestError(413, "too_large", sentence, "send less at once, in several requests")


def timed_out(seconds: float) -> RequestError:
    """Returns the error for a request that did not finish in time."""
    sentence = f"not finished within {seconds:g} seconds"
    return RequestError(504, "timeout", sentence, "send shorter texts, or try again later")


def shutting_down() -> RequestError:
    """Returns the error for a request that arrives during the shutdown."""
    sentence = "the server is shutting down"
    return RequestError(503, "shutting_down", sentence, "try again when it is up", {"Retry-After": "5"})


def busy(seconds: int) -> RequestError:
    """Returns the error for a request that arrives while the queue is full."""
    sentence = "too many requests are waiting"
    return RequestError(429, "busy", sentence, f"try again in {seconds} s", {"Retry-After": str(seconds)})


def failed() -> RequestError:
    """Returns the error for a fault of the server itself."""
    return RequestError(500, "internal", "the server failed at this request", "report the request id to its operator")


class ApiKey:
    """The key that clients must send; without one the server is open to everybody."""

    def __init__(self, secret: str | None) -> None:
        self._secret = None if secret is None else secret.encode()

    @property
    def required(self) -> bool:
        """True if clients must send a key."""
        return self._secret is not None

    def check(self, request: Request, given: str = "") -> None:
        """Checks the key of a request.

        Args:
            request: The request, whose header `Authorization: Bearer` may hold the key.
            given: The field `api_key` of its body, which takes precedence.

        Raises:
            RequestError: The key is missing (401) or wrong (403).
        """
        if self._secret is None:
            return
        sent = [given.encode()] if given else _bearer_token(request)
        if not sent:
            headers = {"WWW-Authenticate": "Bearer"}
            raise RequestError(401, "key_missing", "this server wants a key", "send it as api_key", headers)
        if not any(hmac.compare_digest(key, self._secret) for key in sent):
            raise RequestError(403, "key_wrong", "this is not the server's key", "ask its operator for one")


def _bearer_token(request: Request) -> list[bytes]:
    """Returns the key of the header in both encodings that clients use: UTF-8 and Latin-1."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip(" ")
    return [token.encode("latin-1"), token.encode()] if scheme.lower() == "bearer" and token else []


class Workers:
    """A few daemon threads that call functions in the order of their submission.

    `concurrent.futures.ThreadPoolExecutor` would not do: the end of the process waits for its threads.

    Example:
        >>> workers = Workers()
        >>> workers.submit(lambda: 6 * 7).result()
        42
        >>> workers.close()
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Submits a function.

        Args:
            call: The function.

        Returns:
            The future of its return value or exception; the function is not called if it is cancelled before.
        """
        future: Future[Result] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call())
            except BaseException as error:  # it belongs to whoever waits for the future
                future.set_exception(error)

        self._queue.put(work)
        if len(self._threads) < THREADS:
            thread = threading.Thread(target=self._run, name=f"reluformer-worker-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def close(self) -> None:
        """Ends the threads after what they were given, without waiting for them; `submit` starts new ones."""
        for _ in self._threads:
            self._queue.put(None)
        self._threads = []

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
