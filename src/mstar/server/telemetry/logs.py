"""Structured logs: JSON and text formatters, and the access log line of each request.

A line holds names, numbers and codes, never client data: no key, header, prompt or file. An exception is logged by its
type and stack, without its message, which can contain client data.
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
"""Paths that are polled all the time: logged at DEBUG level."""


class ByteCounter:
    """Counts body and message bytes in both directions of an ASGI connection."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.bytes_in = self.bytes_out = 0
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        """Receive and count a message."""
        message = await self._receive()
        self.bytes_in += _size(message)
        return message

    async def send(self, message: Message) -> None:
        """Send and count a message."""
        self.bytes_out += _size(message)
        await self._send(message)


def _size(message: Message) -> int:
    return sum(len(message.get(part) or "") for part in ("body", "bytes", "text"))


def log_request(record: RequestRecord, bytes_in: int, bytes_out: int) -> None:
    """Write the access log line of a request."""
    context = record.context
    fields: dict[str, Any] = {
        "id": context.id,
        "endpoint": context.endpoint,
        "model": record.model,
        "tenant": context.tenant.name if context.tenant else "",
        "status": context.status,
        "code": context.code,
        "seconds": round(record.seconds, 6),
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
    }
    if record.rids:
        fields["rids"] = list(record.rids)
    if (trace := trace_id_from(record.traceparent)) is not None:
        fields["trace"] = trace
    if record.deliveries:
        fields["time_to_first_output_s"] = round(
            min(times.first[0] for times in record.deliveries.values()) - record.started_at, 6
        )
        fields["emissions"] = {kind: times.count for kind, times in record.deliveries.items()}
    level = logging.DEBUG if context.endpoint in QUIET_PATHS else logging.INFO
    log.log(level, "request", extra={"fields": fields})


def trace_id_from(traceparent: str) -> str | None:
    """The trace id of a W3C traceparent header, or None if the header is malformed."""
    parts = traceparent.split("-")
    is_valid = len(parts) >= 4 and len(parts[1]) == 32 and all(digit in "0123456789abcdef" for digit in parts[1])
    return parts[1] if is_valid else None


@contextmanager
def logging_to_stderr(log_format: str) -> Generator[None]:
    """Log to stderr in this format (json or text) until the block ends."""
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
    """Libraries log client data at INFO level, so only their warnings pass."""
    return record.name.startswith("mstar") or record.levelno >= logging.WARNING


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = dict(getattr(record, "fields", {}))
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        frames = traceback.extract_tb(error.__traceback__)
        fields["error"] = type(error).__name__  # its message can contain client data
        fields["stack"] = [f"{format(f'{frame.filename}:{frame.lineno}')} {frame.name}" for frame in frames]
    return fields


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one line."""
        timestamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = {
            "time": timestamp,
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        return msgspec.json.encode(head | _fields(record)).decode()


class TextFormatter(logging.Formatter):
    """Readable lines: time, level, logger, message, then name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one line."""
        timestamp = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        fields = " ".join(f"{name}={_format_value(value)}" for name, value in _fields(record).items() if value != "")
        return f"{timestamp} {record.levelname.lower()} {record.name}: {record.getMessage()} {fields}".rstrip()


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
