"""The formats of a publisher's log: text for people, or one JSON object per line.

Lines that are written while a request is handled have its request id, and the ids of its trace if
it has one (W3C Trace Context). Runs in the publisher's process.

Rule for editors: nothing that a client sends ends a line. JSON escapes it; the other format writes
it as JSON strings. Rejected: structlog, because the standard library's loggers and one formatter
are enough.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from zeh_spark.service.telemetry.exchange import current

FORMATS = ("console", "json")
LEVELS = ("debug", "info", "warning", "error")

ACCESS = "zeh_spark.publisher.access"
"""The logger of the lines about requests."""

FIELDS = "fields"
"""The attribute of a record that has values by name."""


def configure(form: str, level: str) -> None:
    """Write the log of this process to its standard error.

    The level is that of our own lines. Other libraries log warnings.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else ConsoleFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    use_level(level)
    logging.getLogger(ACCESS).setLevel(logging.INFO)  # asked for by an option of its own


def use_level(level: str) -> None:
    """Log our own lines from a level on, one of LEVELS."""
    logging.getLogger("zeh_spark").setLevel(level.upper())


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_context(record),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


class ConsoleFormatter(logging.Formatter):
    """Writes a record as a line for people: time, level, message, and fields as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_shown(each)}" for name, each in _context(record).items())
        line = f"{_time(record)} {record.levelname} {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _context(record: logging.LogRecord) -> Mapping[str, object]:
    """Return the fields of a record, and the ids of the request during which it was written."""
    fields: Mapping[str, object] = getattr(record, FIELDS, {})
    exchange = current.get()
    if exchange is None or "request_id" in fields:
        return fields
    return {**fields, **exchange.ids}


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if text.isascii() and text.isprintable() and " " not in text else json.dumps(text)
