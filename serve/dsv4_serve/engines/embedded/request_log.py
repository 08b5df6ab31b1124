"""One line for each request to the API, and the id that ties it to the client's own logs."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .usage import Usage

logger = logging.getLogger("dsv4.embedded.requests")

CLIENT_GONE_STATUS = 499
RECORD_KEY = "dsv4.request_record"
ACCEPTED_ID = re.compile(r"[\w.:-]{1,128}")


@dataclass
class RequestRecord:
    """What the log says about a request; the handlers fill it in. Times in seconds since it arrived."""

    id: str
    route: str
    usage: Usage = field(default_factory=Usage)
    status: int = 0
    error: str | None = None
    finish: list[str] = field(default_factory=list)
    time_to_first_token: float | None = None
    _arrived: float = field(default_factory=time.monotonic)

    def first_token(self) -> None:
        if self.time_to_first_token is None:
            self.time_to_first_token = self.elapsed()

    def elapsed(self) -> float:
        return time.monotonic() - self._arrived

    def fields(self) -> dict[str, object]:
        """Name to value; names that mean nothing for this request are absent."""
        fields: dict[str, object] = {"id": self.id, "route": self.route, "status": self.status}
        if self.usage.prompt_tokens:
            fields |= {
                "prompt": self.usage.prompt_tokens,
                "cached": self.usage.cached_tokens,
                "out": self.usage.completion_tokens,
            }
        if self.time_to_first_token is not None:
            fields["ttft"] = round(self.time_to_first_token, 6)
        fields["total"] = round(self.elapsed(), 6)
        if self.finish:
            fields["finish"] = ",".join(dict.fromkeys(self.finish))
        if self.error is not None:
            fields["error"] = self.error
        return fields

    def line(self) -> str:
        shown = {name: f"{value:.3f}s" if isinstance(value, float) else value for name, value in self.fields().items()}
        return "request " + " ".join(f"{name}={value}" for name, value in shown.items())


class RequestLog:
    """ASGI middleware: gives a request its record, answers with its `x-request-id`, logs it when it is over.

    An id of the client is kept when it cannot break a log line; else a new one is made.
    """

    def __init__(self, app: ASGIApp, logged_prefix: str = "/v1/") -> None:
        self._app = app
        self._logged_prefix = logged_prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        wanted = Headers(scope=scope).get("x-request-id", "")
        request_id = wanted if ACCEPTED_ID.fullmatch(wanted) else uuid.uuid4().hex
        record = RequestRecord(request_id, scope["path"])
        scope[RECORD_KEY] = record

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = record.id
                record.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            record.error = type(error).__name__
            raise
        finally:
            if record.route.startswith(self._logged_prefix):
                record.status = record.status or 500
                logger.info(record.line(), extra={"fields": {"event": "request"} | record.fields()})


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message or the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = getattr(record, "fields", None)
        entry |= fields if fields is not None else {"message": record.getMessage()}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


LEVELS = {"dsv4": logging.INFO, "dsv4_serve": logging.INFO, "dsv4_kernels": logging.INFO, "uvicorn": logging.WARNING}


def configure_logging(*, as_json: bool) -> None:
    """Send the process's logs to standard error: for people, or as JSON for machines."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
    handler.setFormatter(JsonFormatter() if as_json else text)
    for name, level in LEVELS.items():
        target = logging.getLogger(name)
        target.handlers, target.propagate = [handler], False
        target.setLevel(level)
