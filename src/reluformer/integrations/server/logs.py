"""The log: one JSON object a line, on standard error."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """Time, level, and either the fields of a record or its message."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", None) or {"event": "message", "message": record.getMessage()}
        if record.exc_info and record.exc_info[0]:
            fields = {**fields, "error": record.exc_info[0].__name__}
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": moment, "level": record.levelname.lower(), **fields})


def write_log(level: str = "info") -> None:
    """Send our records and those of the HTTP server to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("reluformer.integrations.server", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
