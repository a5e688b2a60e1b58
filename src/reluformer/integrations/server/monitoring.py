"""Log and metrics for operators; neither of them holds any text of users.

The log has one JSON object a line, on standard error. The metrics have the format of
Prometheus and a registry of their own.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LOGGER = "reluformer.integrations.server"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)


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
        self._queue = Gauge("reluformer_queue", "Requests that wait or are translated.", registry=registry)

    def watch_queue(self, length: Callable[[], int]) -> None:
        """Sets the function that returns the length of the queue."""
        self._queue.set_function(length)

    def page(self) -> bytes:
        """Returns all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
