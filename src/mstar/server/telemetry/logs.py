"""Log lines: how they are written, and the one that each request ends with.

A line holds names, figures and codes; never a key, a header, a prompt or a file, nor what an error says of them. An
exception is told by its type and by the places it went through.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Send

    from mstar.server.admin.recent_requests import RequestRecord

log = logging.getLogger("mstar.requests")

QUIET_PATHS = frozenset({"/health", "/healthz", "/ready", "/metrics", "/studio"})
"""What is asked for all the time, and so is told only to who wants to know everything."""


class ByteCounter:
    """How many bytes of bodies and messages came from a client, and went to it."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.bytes_in = self.bytes_out = 0
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        """What the client says next."""
        message = await self._receive()
        self.bytes_in += _size(message)
        return message

    async def send(self, message: Message) -> None:
        """Say something to the client."""
        self.bytes_out += _size(message)
        await self._send(message)


def _size(message: Message) -> int:
    return sum(len(message.get(part) or "") for part in ("body", "bytes", "text"))


def log_request(record: RequestRecord, bytes_in: int, bytes_out: int) -> None:
    """Write the line of a client's request."""
    passage = record.context
    told: dict[str, Any] = {
        "id": passage.id,
        "endpoint": passage.endpoint,
        "model": record.model,
        "tenant": passage.tenant.name if passage.tenant else "",
        "status": passage.status,
        "code": passage.code,
        "seconds": round(record.seconds, 6),
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
    }
    if record.rids:
        told["rids"] = list(record.rids)
    if (trace := trace_id_from(record.traceparent)) is not None:
        told["trace"] = trace
    if record.deliveries:
        told["time_to_first_output_s"] = round(
            min(one.first[0] for one in record.deliveries.values()) - record.started_at, 6
        )
        told["emissions"] = {kind: one.count for kind, one in record.deliveries.items()}
    level = logging.DEBUG if passage.endpoint in QUIET_PATHS else logging.INFO
    log.log(level, "request", extra={"fields": told})


def trace_id_from(traceparent: str) -> str | None:
    """The id of the trace that a client says its request is part of, if it says it as W3C has it."""
    parts = traceparent.split("-")
    is_one = len(parts) >= 4 and len(parts[1]) == 32 and all(letter in "0123456789abcdef" for letter in parts[1])
    return parts[1] if is_one else None


@contextmanager
def logging_to_stderr(log_format: str) -> Generator[None]:
    """Write log lines to stderr in this form, for as long as it is held."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(_is_own_or_warning)
    root, own = logging.getLogger(), logging.getLogger("mstar")
    before = own.level
    root.addHandler(handler)
    own.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        own.setLevel(before)


def _is_own_or_warning(record: logging.LogRecord) -> bool:
    """Libraries write down what clients send, if they are let; they are heard when something is wrong."""
    return record.name.startswith("mstar") or record.levelno >= logging.WARNING


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    told: dict[str, Any] = dict(getattr(record, "fields", {}))
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        frames = traceback.extract_tb(error.__traceback__)
        told["error"] = type(error).__name__  # what it says may be the client's
        told["stack"] = [f"{format(f'{frame.filename}:{frame.lineno}')} {frame.name}" for frame in frames]
    return told


class JsonFormatter(logging.Formatter):
    """A line is an object in JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """A line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = {"time": when, "level": record.levelname.lower(), "logger": record.name, "event": record.getMessage()}
        return msgspec.json.encode(head | _fields(record)).decode()


class TextFormatter(logging.Formatter):
    """A line for people: when, how grave, what, and then name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """A line."""
        when = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        told = " ".join(f"{name}={_format_value(value)}" for name, value in _fields(record).items() if value != "")
        return f"{when} {record.levelname.lower()} {record.name}: {record.getMessage()} {told}".rstrip()


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
