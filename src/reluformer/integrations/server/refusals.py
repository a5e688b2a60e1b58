"""Answers that say no: a status, a sentence, a code for programs, and what to do."""

from __future__ import annotations

from collections.abc import Mapping

from reluformer.errors import ReluformerError


class Refusal(ReluformerError):
    """A request that is not answered as it was asked."""

    def __init__(
        self, status: int, code: str, sentence: str, hint: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code
        self.sentence = sentence
        self.hint = hint
        self.headers = dict(headers or {})

    def body(self) -> dict[str, str]:
        """What the client reads."""
        return {"error": self.sentence, "code": self.code, "hint": self.hint}


def too_large(what: str, limit: int, unit: str) -> Refusal:
    """More than a limit allows."""
    return Refusal(413, "too_large", f"{what} is longer than {limit} {unit}", "send less at once, in several requests")


def timed_out(seconds: float) -> Refusal:
    """Not finished in time."""
    return Refusal(504, "timeout", f"not finished within {seconds:g} seconds", "send shorter texts, or try again later")


def shutting_down() -> Refusal:
    """No new work any more."""
    return Refusal(503, "shutting_down", "the server is shutting down", "try again when it is up", {"Retry-After": "5"})


def busy(seconds: int) -> Refusal:
    """The queue is full."""
    sentence = "too many requests are waiting"
    return Refusal(429, "busy", sentence, f"try again in {seconds} s", {"Retry-After": str(seconds)})


def failed() -> Refusal:
    """Our own fault."""
    return Refusal(500, "internal", "the server failed at this request", "report the request id to its operator")
