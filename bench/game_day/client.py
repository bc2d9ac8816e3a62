"""HTTP client of the game day: one request on a connection of its own, with the times of what arrives.

It knows enough HTTP/1.1 for our own server, and can do what other clients avoid: leave early, read slowly, send large
bodies. A connection that ends in the middle of a response is an end of its own (`CUT`), not an exception.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from bench.game_day.observations import CUT, DECLARED, LEFT, UNANSWERED, WHOLE, WRONG

MAX_LINE_BYTES = 1 << 20


@dataclass
class Answer:
    """A response so far."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    arrivals: list[float] = field(default_factory=list)
    """When data of the body arrived."""
    is_complete: bool = False
    """Whether the body ended as HTTP says."""

    @property
    def retry_after_s(self) -> float:
        """Seconds until a retry, or 0."""
        if "retry-after-ms" in self.headers:
            return float(self.headers["retry-after-ms"]) / 1000
        return float(self.headers.get("retry-after", 0))


@dataclass(frozen=True)
class Request:
    """A request to send. `leave_after` is the number of chunks after which the client leaves; `pause_s` is the time
    that it waits before it reads each chunk."""

    method: str
    path: str
    key: str = ""
    body: bytes = b""
    content_type: str = "application/json"
    leave_after: int = 0
    pause_s: float = 0.0

    def encode(self) -> bytes:
        """The bytes of the request."""
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
        lines += [f"Authorization: Bearer {self.key}"] if self.key else []
        lines += [f"Content-Type: {self.content_type}", f"Content-Length: {len(self.body)}"] if self.body else []
        return "\r\n".join([*lines, "", ""]).encode() + self.body


async def send(port: int, request: Request, clock: Callable[[], float] = time.monotonic) -> Answer:
    """Send a request and read its response. Raises OSError if nothing listens."""
    answer = Answer()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MAX_LINE_BYTES)
    try:
        writer.write(request.encode())
        await writer.drain()
        await _read_head(reader, answer)
        async for data in _read_body(reader, answer.headers):
            answer.body += data
            answer.arrivals.append(clock())
            if request.leave_after and len(answer.arrivals) >= request.leave_after:
                return answer
            await asyncio.sleep(request.pause_s)
        answer.is_complete = True
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        pass  # cut: `is_complete` stays False
    finally:
        writer.close()
    return answer


async def _read_head(reader: asyncio.StreamReader, answer: Answer) -> None:
    first = await reader.readuntil(b"\r\n")
    status = int(first.split()[1])
    while line := (await reader.readuntil(b"\r\n")).strip().decode("latin-1"):
        name, _, value = line.partition(":")
        answer.headers[name.lower()] = value.strip()
    answer.status = status


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            yield (await reader.readexactly(size + 2))[:-2]
        return
    length = int(headers.get("content-length", 0))
    if length:
        yield await reader.readexactly(length)


# ---------------------------------------------------------------- content of responses
@dataclass(frozen=True)
class Content:
    """What a response says."""

    text: str
    code: str = ""
    """Error code, or nothing."""
    is_finished: bool = False
    """Whether the response says that it is complete."""


def parse_json(answer: Answer) -> Content:
    """A JSON body with a text, or an error."""
    try:
        parsed: Any = json.loads(bytes(answer.body))
    except ValueError:
        return Content("")
    if answer.status >= 400:
        return Content("", parsed.get("error", {}).get("code", "") if isinstance(parsed, dict) else "")
    return Content(parsed.get("text", "") if isinstance(parsed, dict) else "", "", is_finished=True)


def parse_events(answer: Answer) -> Content:
    """Server-sent events of chat or of any model: the concatenated outputs, and how they end."""
    if answer.status != 200:
        return parse_json(answer)
    texts: list[str] = []
    code, is_finished = "", False
    for block in bytes(answer.body).decode("utf-8", "replace").split("\n\n"):
        lines = [line.partition(": ") for line in block.splitlines()]
        fields = {name: value for name, _, value in lines}
        data, event = fields.get("data", ""), fields.get("event", "")
        if data == "[DONE]" or event == "result":
            is_finished = True
            continue
        try:
            parsed: Any = json.loads(data) if data else {}
        except ValueError:
            continue  # the last event of a connection that was cut
        if "error" in parsed:
            code = str(parsed["error"].get("code", "unknown"))
        elif event == "emission":
            texts.append(f"{parsed['value']} ")
        else:
            texts += [one.get("delta", {}).get("content") or "" for one in parsed.get("choices", [])]
    return Content("".join(texts), code, is_finished)


def classify(answer: Answer | None, content: Content, expected: str | None, *, has_left: bool) -> str:
    """The end of a request. `expected` is the reference text, or None if there is none."""
    is_prefix = expected is None or expected.startswith(content.text)
    if not is_prefix or (content.is_finished and expected is not None and content.text != expected):
        return WRONG
    if has_left:
        return LEFT
    if answer is None:
        return UNANSWERED
    if content.code:
        return DECLARED
    return WHOLE if content.is_finished and answer.is_complete else CUT
