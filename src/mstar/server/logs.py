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

from mstar.errors import shown

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Send

    from mstar.server.timeline import Entry

log = logging.getLogger("mstar.requests")

QUIET = frozenset({"/health", "/healthz", "/ready", "/metrics", "/studio"})
"""What is asked for all the time, and so is told only to who wants to know everything."""


class Traffic:
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


def request_ended(entry: Entry, bytes_in: int, bytes_out: int) -> None:
    """Write the line of a client's request."""
    passage = entry.passage
    told: dict[str, Any] = {
        "id": passage.id,
        "surface": passage.surface,
        "model": entry.model,
        "holder": passage.holder.name if passage.holder else "",
        "status": passage.status,
        "code": passage.code,
        "seconds": round(entry.seconds, 6),
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
    }
    if entry.rids:
        told["rids"] = list(entry.rids)
    if (trace := trace_of(entry.traceparent)) is not None:
        told["trace"] = trace
    if entry.delivered:
        told["first_s"] = round(min(one.first[0] for one in entry.delivered.values()) - entry.begun, 6)
        told["emissions"] = {kind: one.count for kind, one in entry.delivered.items()}
    level = logging.DEBUG if passage.surface in QUIET else logging.INFO
    log.log(level, "request", extra={"told": told})


def trace_of(traceparent: str) -> str | None:
    """The id of the trace that a client says its request is part of, if it says it as W3C has it."""
    parts = traceparent.split("-")
    is_one = len(parts) >= 4 and len(parts[1]) == 32 and all(letter in "0123456789abcdef" for letter in parts[1])
    return parts[1] if is_one else None


@contextmanager
def writing(form: str) -> Generator[None]:
    """Write log lines to stderr in this form, for as long as it is held."""
    handler = logging.StreamHandler()
    handler.setFormatter(Json() if form == "json" else Text())
    handler.addFilter(_is_ours)
    root, own = logging.getLogger(), logging.getLogger("mstar")
    before = own.level
    root.addHandler(handler)
    own.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        own.setLevel(before)


def _is_ours(record: logging.LogRecord) -> bool:
    """Libraries write down what clients send, if they are let; they are heard when something is wrong."""
    return record.name.startswith("mstar") or record.levelno >= logging.WARNING


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    told: dict[str, Any] = dict(getattr(record, "told", {}))
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        frames = traceback.extract_tb(error.__traceback__)
        told["error"] = type(error).__name__  # what it says may be the client's
        told["places"] = [f"{shown(f'{frame.filename}:{frame.lineno}')} {frame.name}" for frame in frames]
    return told


class Json(logging.Formatter):
    """A line is an object in JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """A line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = {"time": when, "level": record.levelname.lower(), "logger": record.name, "event": record.getMessage()}
        return msgspec.json.encode(head | _fields(record)).decode()


class Text(logging.Formatter):
    """A line for people: when, how grave, what, and then name=value."""

    def format(self, record: logging.LogRecord) -> str:
        """A line."""
        when = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        told = " ".join(f"{name}={_plain(value)}" for name, value in _fields(record).items() if value != "")
        return f"{when} {record.levelname.lower()} {record.name}: {record.getMessage()} {told}".rstrip()


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
