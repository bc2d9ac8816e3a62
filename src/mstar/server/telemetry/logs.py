"""Structured logs: JSON and text formatters, and the access log line of each request.

A line holds names, numbers and codes, never client data: no key, header, prompt or file. An exception of the server is
logged by its type and stack, without its message, which can contain client data. An exception that a model raises is
logged with its message: only its author knows what went wrong, and only the author decides what the message contains.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import select
import sys
import threading
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from mstar.server.errors import is_client_error
from mstar.server.telemetry.log_writer import LogWriter
from mstar.wire.failure import error_text

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Send

    from mstar.server.admin.recent_requests import RequestRecord
    from mstar.server.request_context import RequestContext
    from mstar.wire.failure import Failure
    from mstar.wire.messages import RequestFinished

log = logging.getLogger("mstar.requests")
failure_log = logging.getLogger("mstar.failures")

MAX_MESSAGE_CHARS = 2000
"""Maximum length of an exception message in the log."""
_UNLOGGED_STATUSES = ("ok", "cancelled")
_INFRASTRUCTURE_STATUSES = ("deadline", "unavailable")
"""Final statuses that are no fault of a model: logged as warnings."""

QUIET_PATHS = frozenset({"/health", "/healthz", "/ready", "/metrics", "/studio"})
"""Paths that are polled all the time: logged at DEBUG level."""


class ByteCounter:
    """Counts body and message bytes in both directions of an ASGI connection, in the context of its request."""

    def __init__(self, context: RequestContext, receive: Receive, send: Send) -> None:
        self._context = context
        self._receive = receive
        self._send = send

    async def receive(self) -> Message:
        """Receive and count a message."""
        message = await self._receive()
        self._context.bytes_in += _size(message)
        return message

    async def send(self, message: Message) -> None:
        """Send and count a message."""
        self._context.bytes_out += _size(message)
        await self._send(message)


def _size(message: Message) -> int:
    return len(message.get("body") or message.get("bytes") or message.get("text") or "")


def log_request(record: RequestRecord) -> None:
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
        "bytes_in": context.bytes_in,
        "bytes_out": context.bytes_out,
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
    if log.isEnabledFor(level):
        # Not `log.log`: it walks the stack to find its caller, which no line of ours shows.
        log.handle(log.makeRecord(log.name, level, __file__, 0, "request", (), None, extra={"fields": fields}))


def log_failure(end: RequestFinished, model: str, request_id: str = "") -> None:
    """Write why a request failed in the runtime: the exception and where a model raised it."""
    if end.status in _UNLOGGED_STATUSES or is_client_error(end):
        return
    fields = {"id": request_id, "model": model, "rid": end.rid, "outcome": end.status}
    level = logging.WARNING if end.status in _INFRASTRUCTURE_STATUSES else logging.ERROR
    _log_reason(level, fields, end.failure, end.error_type, end.error_message)


def log_exception(error: Exception, failure: Failure, model: str, request_id: str) -> None:
    """Write why the code of a model failed in the front end, such as its `detokenize`."""
    fields = {"id": request_id, "model": model}
    _log_reason(logging.ERROR, fields, failure, type(error).__name__, error_text(error))


def _log_reason(level: int, fields: dict[str, str], failure: Failure, error_type: str, message: str) -> None:
    fields |= {
        "worker": failure.process,
        "walk": failure.walk,
        "op": failure.op,
        "error": error_type,
        "message": message[:MAX_MESSAGE_CHARS],
        "location": failure.location,
        "traceback": failure.traceback,
    }
    failure_log.log(level, "request failed", extra={"fields": {name: value for name, value in fields.items() if value}})


def trace_id_from(traceparent: str) -> str | None:
    """The trace id of a W3C traceparent header, or None if the header is malformed."""
    parts = traceparent.split("-")
    is_valid = len(parts) >= 4 and len(parts[1]) == 32 and all(digit in "0123456789abcdef" for digit in parts[1])
    return parts[1] if is_valid else None


class StderrHandler(logging.Handler):
    """Writes log lines of this process, and the output of its children, to stderr. It does not block."""

    def __init__(self, log_format: str) -> None:
        super().__init__()
        self.is_json = log_format == "json"
        self.writer = LogWriter(sys.stderr, self._describe_drops)
        self.setFormatter(_formatter(log_format, ""))

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line. One that cannot be formatted is replaced: a log call must not fail the request around it."""
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001 - a wrong argument or text that is not Unicode, for example
            fields = {"source": f"{record.name} {record.filename}:{record.lineno}", "error": type(error).__name__}
            self._write_own(logging.ERROR, "a log line cannot be formatted", fields)
            return
        self.writer.write(line)

    def write_output(self, process: str, pid: int, lines: Sequence[str]) -> None:
        """Write output of a child process. In JSON logs, lines that are not JSON objects are put into one."""
        if not self.is_json:
            for line in lines:
                self.writer.write(line)
            return
        for is_object, group in itertools.groupby(lines, _is_json_object):
            if is_object:
                for line in group:
                    self.writer.write(line)
            else:
                fields = {"process": process, "pid": pid, "output": "\n".join(group)}
                self._write_own(logging.WARNING, "output of a process", fields)

    def _describe_drops(self, count: int) -> str:
        return self.format(_record(logging.WARNING, "log lines were dropped: stderr was blocked", {"lines": count}))

    def _write_own(self, level: int, event: str, fields: dict[str, Any]) -> None:
        self.writer.write(self.format(_record(level, event, fields)))


_handlers: list[StderrHandler] = []
"""Handlers of `logging_to_stderr`; the last one is in use."""


@contextmanager
def logging_to_stderr(log_format: str, log_level: str = "info") -> Generator[LogWriter]:
    """Log to stderr in this format (json or text) until the block ends, without blocking."""
    handler = StderrHandler(log_format)
    _handlers.append(handler)
    hooks = threading.excepthook, sys.unraisablehook
    if handler.is_json:  # their default is to write plain text
        threading.excepthook = lambda args: _log_unhandled(args.exc_value, f"thread {args.thread and args.thread.name}")
        sys.unraisablehook = lambda args: _log_unhandled(args.exc_value, args.err_msg or "destructor")
    logging.captureWarnings(capture=True)
    try:
        with _handling(handler, log_level):
            yield handler.writer
    finally:
        logging.captureWarnings(capture=False)
        threading.excepthook, sys.unraisablehook = hooks
        _handlers.remove(handler)
        handler.writer.close()


@contextmanager
def logging_in_child(log_format: str, process: str, log_level: str = "info") -> Generator[None]:
    """Log to stderr in a child process. Its parent always reads, and a line must be out before a crash: no queue."""
    handler = logging.StreamHandler()
    handler.setFormatter(_formatter(log_format, process))
    with _handling(handler, log_level):
        yield


@contextmanager
def _handling(handler: logging.Handler, log_level: str) -> Generator[None]:
    handler.setLevel(log_level.upper())
    handler.addFilter(_is_own_or_warning)
    root, own = logging.getLogger(), logging.getLogger("mstar")
    before = own.level
    root.addHandler(handler)
    own.setLevel(log_level.upper())
    try:
        yield
    finally:
        root.removeHandler(handler)
        own.setLevel(before)


def write_output(process: str, pid: int, lines: Sequence[str]) -> None:
    """Write output of a child process to the log, or to stderr if this process has no log."""
    if _handlers:
        _handlers[-1].write_output(process, pid, lines)
        return
    data = "".join(f"{line}\n" for line in lines).encode(errors="replace")
    with suppress(OSError):  # it can be closed
        for start in range(0, len(data), select.PIPE_BUF):  # a pipe accepts this many bytes once it polls as writable
            if select.select([], [2], [], 0)[1]:  # a blocked terminal must not stall the caller
                os.write(2, data[start : start + select.PIPE_BUF])


def _log_unhandled(error: BaseException | None, where: str) -> None:
    logging.getLogger("mstar.server").error("unhandled exception in %s", where, exc_info=error)


def _record(level: int, event: str, fields: dict[str, Any]) -> logging.LogRecord:
    record = logging.LogRecord("mstar.log", level, "", 0, event, None, None)
    record.__dict__["fields"] = fields  # as `extra` does
    return record


def _is_json_object(line: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


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

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = {"process": process or "front", "pid": os.getpid()}

    def format(self, record: logging.LogRecord) -> str:
        """Format one line."""
        timestamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = {
            "time": timestamp,
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        return msgspec.json.encode(head | self._process | _fields(record)).decode()


class TextFormatter(logging.Formatter):
    """Readable lines: time, level, logger, message, then name=value. A traceback follows on indented lines."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = f"{process}[{os.getpid()}] " if process else ""

    def format(self, record: logging.LogRecord) -> str:
        """Format one line."""
        timestamp = _time_of_day(int(record.created))
        values = _fields(record)
        frames = "".join(f"\n    {line}" for line in values.pop("traceback", "").splitlines())
        fields = " ".join([f"{name}={_format_value(value)}" for name, value in values.items() if value != ""])
        head = f"{timestamp} {record.levelname.lower()} {self._process}{record.name}"
        return f"{head}: {record.getMessage()} {fields}".rstrip() + frames


@functools.lru_cache(4)
def _time_of_day(seconds: int) -> str:
    """The local time of a Unix time. Many lines of a busy server have the same."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%H:%M:%S")


def _formatter(log_format: str, process: str) -> logging.Formatter:
    return JsonFormatter(process) if log_format == "json" else TextFormatter(process)


def _format_value(value: Any) -> str:
    """A value as text; a string that could be mistaken for another line is quoted."""
    if type(value) is int:
        return str(value)
    return value if type(value) is str and value.isprintable() else msgspec.json.encode(value).decode()
