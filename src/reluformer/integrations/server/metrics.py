"""Figures for Prometheus, in a registry of the server's own."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """What is counted; nothing of it holds text."""

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
        self._queue = Gauge("reluformer_queue", "Requests that wait or are translated.", registry=registry)

    def watch_queue(self, length: Callable[[], int]) -> None:
        """Where to look when the queue's length is asked for."""
        self._queue.set_function(length)

    def page(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self.registry)
