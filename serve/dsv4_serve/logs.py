"""Logs: one readable line an event on stderr, or one JSON object a line for machines."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

log = logging.getLogger("dsv4")


class ReadableFormatter(logging.Formatter):
    """`17:20:01 info     message key=value`; the fields are what a call gave as `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        if _verbatim(record):
            return f"engine | {record.getMessage()}"
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        return f"{clock} {record.levelname.lower():<8} {record.getMessage()}{fields}"


class JsonFormatter(logging.Formatter):
    """One object a line. A line of the engine that is an object already passes as it is."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if _verbatim(record) and _is_object(message):
            return message
        entry: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "source": "engine" if _verbatim(record) else "launcher",
            "message": message,
        }
        return json.dumps(entry | _fields(record))


def configure_logs(json_logs: bool, level: int = logging.INFO) -> None:
    """Send the launcher's log to stderr. Called once, by the command that serves."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if json_logs else ReadableFormatter())
    log.handlers[:] = [handler]
    log.setLevel(level)
    log.propagate = False


def log_engine_line(line: str) -> None:
    log.info("%s", line, extra={"engine_line": True})


def _verbatim(record: logging.LogRecord) -> bool:
    return getattr(record, "engine_line", False)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
