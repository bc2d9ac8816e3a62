"""A visit: one HTTP request of one client, from the reading of its body to the end of its answer.

When the client leaves, the surface that serves it is cancelled where it waits, and all that was opened for it is
closed. Who may come in was decided before; what is asked for is read by the surfaces.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mstar.server.door import Door, Served, Surface
from mstar.server.keys import Holder
from mstar.server.live import Live
from mstar.server.pacing import HEADER, as_batch, paced
from mstar.server.refusals import Refusal
from mstar.wire.pace import Pace

log = logging.getLogger("mstar.server")

Body = TypeVar("Body", bound=BaseModel)

VALUES = 250_000
"""So many values a body may hold: while more of them were read, all other clients would wait."""
GONE = 499
"""The status of a visit whose client has left."""
_ID = re.compile(r"[\x21-\x7e]{1,128}")
BROKEN = Refusal(500, "internal_error", "something went wrong in the server")


class Passage:
    """What is known of a client's request before it is read, and how it ended."""

    __slots__ = ("code", "holder", "id", "pace", "status", "surface")

    def __init__(self, request_id: str) -> None:
        self.id = request_id
        self.holder: Holder | None = None
        self.pace = Pace()
        """What its client is promised."""
        self.surface = "none"
        self.status = GONE
        self.code = ""
        """Of a refusal."""

    @property
    def tenant(self) -> str:
        """Whose request it is."""
        return self.holder.name if self.holder else ""

    def arrive(self, surface: Surface, wish: str) -> None:
        """It has come to a surface, with a wish for its pace. Raises Refusal if that cannot be read."""
        self.surface = surface.path
        pace = self.holder.pace if self.holder else Pace()
        self.pace = paced(as_batch(pace) if surface.is_batch else pace, wish)

    def refused(self, refusal: Refusal) -> None:
        """It ends with a refusal, whatever was said before."""
        self.status, self.code = refusal.status, refusal.code


def named(given: str) -> str:
    """What a request is called: as its client says, if that is a name."""
    return given if _ID.fullmatch(given) else uuid.uuid4().hex


class Visit:
    """One request of one client, for a surface to serve."""

    def __init__(self, door: Door, surface: Surface, passage: Passage, request: Request) -> None:
        self.door = door
        self.surface = surface
        self.passage = passage
        self.request = request
        self._lives: list[Live] = []

    # ---------------------------------------------------------------- what the client brings
    @property
    def media_type(self) -> str:
        """The type of the body."""
        return self.request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()

    async def body(self) -> bytes:
        """The body, which is not larger than it may be."""
        return await self.request.body()  # it was read by `receive_body`

    async def receive_body(self) -> None:
        """Read the body, unless it is too large or comes too slowly."""
        limit = self.surface.body_bytes
        told = self.request.headers.get("content-length", "0")
        if not told.isdigit() or int(told) > limit:
            raise _too_large(limit)
        read = bytearray()
        try:
            async with asyncio.timeout(self.door.limits.body_s):
                async for piece in self.request.stream():
                    read += piece
                    if len(read) > limit:
                        raise _too_large(limit)
        except TimeoutError:
            raise Refusal(408, "body_too_slow", "the body did not come in time") from None
        self.request._body = bytes(read)  # pyright: ignore[reportPrivateUsage]  # where forms are read from

    async def read(self, schema: type[Body]) -> Body:
        """The JSON body, as a schema says."""
        if self.media_type != "application/json":
            what = f"the content type is {self.media_type!r}, and application/json is needed"
            raise Refusal(415, "unsupported_media_type", what)
        return validated(schema, await self.body())

    def find(self, name: str) -> Served:
        """The model that the client named, if it is served here."""
        return self.door.find(name, self.surface)

    # ---------------------------------------------------------------- what the client gets
    def open(self, served: Served, *asks: Any) -> Live:
        """Have requests served; they end with the visit at the latest."""
        live = self.door.open(served, *asks, by=self.passage)
        self._lives.append(live)
        return live

    def events(self, chunks: AsyncGenerator[bytes]) -> Response:
        """A stream of events. What goes wrong in it is its last event."""
        return Poured(self._explicit(chunks), "text/event-stream", {"Cache-Control": "no-store"})

    async def _explicit(self, chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        except Refusal as refusal:
            self.passage.refused(refusal)
            yield event(refusal.content, "error")
        except Exception:
            log.exception("request %s", self.passage.id)
            self.passage.refused(BROKEN)
            yield event(BROKEN.content, "error")

    def close(self) -> None:
        """Want no more of what was opened."""
        for live in self._lives:
            live.close()


class Poured(StreamingResponse):
    """A body that is sent as it is made."""

    def __init__(self, chunks: AsyncGenerator[bytes], media_type: str, headers: Mapping[str, str]) -> None:
        super().__init__(chunks, media_type=media_type, headers=headers)
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as every response
        """Send it. Whether the client is still there, a visit watches."""
        async with aclosing(self._chunks):
            await self.stream_response(send)


class Endpoint:
    """A surface as an application of its own: reads, serves, and stops when the client leaves."""

    def __init__(self, door: Door, surface: Surface) -> None:
        self._door = door
        self._surface = surface

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        passage: Passage = scope["passage"]
        visit = Visit(self._door, self._surface, passage, Request(scope, receive))
        passage.arrive(self._surface, visit.request.headers.get(HEADER, ""))
        try:
            await self._receive(visit)
            await _while_there(receive, self._serve(visit, scope, receive, send))
        except ClientDisconnect:
            passage.status = GONE
        finally:
            visit.close()

    async def _receive(self, visit: Visit) -> None:
        """Read the body, unless it would be refused. One that may say that it can wait is read before that is known."""
        patient = self._surface.patient
        if patient:
            await visit.receive_body()
        is_patient = bool(patient) and patient in await visit.body()
        if not is_patient and (refusal := self._door.early_refusal(self._surface, visit.passage)) is not None:
            raise refusal
        if not patient:
            await visit.receive_body()

    async def _serve(self, visit: Visit, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._surface.handle(visit)
        await response(scope, receive, send)


async def _while_there(receive: Receive, work: Awaitable[None]) -> None:
    """Work as long as the client is there."""
    task = asyncio.current_task()
    assert task is not None, "a server runs in tasks"

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        await work
    except asyncio.CancelledError:
        if not watcher.done():  # somebody else wants the end
            raise
        task.uncancel()
        raise ClientDisconnect from None
    finally:
        watcher.cancel()


def answered(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(msgspec.json.encode(content), status, headers, "application/json")


def event(content: Any, name: str = "") -> bytes:
    """One event of a stream."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + msgspec.json.encode(content) + b"\n\n"


def validated(schema: type[Body], content: bytes) -> Body:
    """JSON as a schema says. Raises Refusal, which names what is wrong."""
    refuse_crowded(content)
    try:
        return schema.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise Refusal(400, "invalid_json", f"the body is not JSON: {first['msg']}") from None
        where = ".".join(map(str, first["loc"]))
        raise Refusal(422, "invalid_value", f"{where or 'the body'}: {first['msg']}", param=where or None) from None


def refuse_crowded(content: bytes) -> None:
    """Refuse JSON that may hold more values than can be read while others wait. A file in base64 has no commas."""
    if content.count(b",") >= VALUES:
        raise too_many_values()


def too_many_values() -> Refusal:
    """A refusal of what holds too many values."""
    return Refusal(
        413, "too_many_values", f"a body may hold {VALUES} values, and this holds more; send arrays as bytes"
    )


def _too_large(limit: int) -> Refusal:
    return Refusal(413, "too_large", f"the body may have {limit} bytes, and has more")
