"""The application: the table of every route, and the gate through which each request comes.

The gate gives a request its id, lets in who may come in before anything of the body is read, and sees to it that
nothing from inside gets out. It is the same for routes that do not exist.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mstar.asks import Acting, Chat, Drawing, Embedding, Filming, Imagining, Speech, Transcription
from mstar.errors import nearest
from mstar.media.audio import FORMATS
from mstar.server import (
    actions,
    chat,
    embeddings,
    events,
    generate,
    graphs,
    hearing,
    images,
    models,
    openapi,
    operations,
    realtime,
    rest,
    speech,
    talk,
    traces,
    videos,
    voices,
    worlds,
)
from mstar.server.browsers import authorization, is_elsewhere
from mstar.server.calls import METHOD, Caller, line
from mstar.server.door import Door, Surface, Terms
from mstar.server.logs import Traffic
from mstar.server.refusals import Refusal
from mstar.server.schema import ChatBody, EmbeddingBody, GenerateBody
from mstar.server.visit import BROKEN, Endpoint, Passage, answered, named

log = logging.getLogger("mstar.server")

_JSON, _EVENTS, _TEXT = "application/json", "text/event-stream", "text/plain"
_SOUNDS = (*sorted({form.media_type for form in FORMATS.values()}), _EVENTS)
_HEARD = Terms(hearing.Form, {"file": True}, answers=(_JSON, _TEXT, _EVENTS))
_DRAWN = Terms(images.DrawingBody, answers=(_JSON, _EVENTS))
_EDITED = Terms(images.DrawingForm, {"image": True, "mask": False}, answers=(_JSON, _EVENTS))
_FILMED = Terms(videos.FilmingForm, {"input_reference": False})
_CONTENT = Terms(query=("variant",), answers=("video/mp4",))
_NATIVE = Terms(GenerateBody, answers=(_EVENTS, generate.MSGPACK))
_OF_MODEL, _PLAIN = Terms(query=("model",)), Terms(answers=(_TEXT,))
SURFACES: Sequence[Surface] = (
    Surface(
        "POST",
        "/v1/chat/completions",
        chat.complete,
        Chat,
        terms=Terms(ChatBody, answers=(_JSON, _EVENTS)),
        patient=b'"flex"',
    ),
    Surface("POST", "/v1/embeddings", embeddings.embed, Embedding, terms=Terms(EmbeddingBody)),
    Surface("POST", "/v1/audio/speech", speech.speak, Speech, terms=Terms(speech.SpeechBody, answers=_SOUNDS)),
    line("/v1/audio/speech/stream", talk.talk, Speech),
    Surface("GET", "/v1/audio/voices", voices.list_voices, Speech, terms=_OF_MODEL),
    Surface("POST", "/v1/audio/transcriptions", hearing.transcribe, Transcription, 64 << 20, _HEARD),
    Surface("POST", "/v1/audio/translations", hearing.translate, Transcription, 64 << 20, _HEARD),
    Surface("POST", "/v1/images/generations", images.generate, Drawing, terms=_DRAWN),
    Surface("POST", "/v1/images/edits", images.edit, Drawing, 256 << 20, _EDITED),
    Surface("POST", "/v1/videos", videos.create, Filming, 64 << 20, _FILMED, is_batch=True),
    Surface("GET", "/v1/videos", videos.catalogue),
    Surface("GET", "/v1/videos/{video}", videos.show),
    Surface("DELETE", "/v1/videos/{video}", videos.delete),
    Surface("GET", "/v1/videos/{video}/content", videos.content, terms=_CONTENT),
    Surface("POST", "/v1/actions", actions.act, Acting),
    Surface("GET", "/v1/actions/metadata", actions.robot, Acting, terms=_OF_MODEL),
    line("/", actions.speak_openpi, Acting),
    Surface("GET", "/healthz", actions.healthz, terms=_PLAIN, is_open=True),
    Surface("POST", "/v1/worlds", worlds.create, Imagining),
    Surface("GET", "/v1/worlds/{world}", worlds.show),
    Surface("DELETE", "/v1/worlds/{world}", worlds.close),
    Surface("POST", "/v1/worlds/{world}/step", worlds.step),
    Surface("POST", "/v1/worlds/{world}/fork", worlds.fork),
    Surface("POST", "/v1/worlds/{world}/reset", worlds.reset),
    line("/v1/realtime", realtime.converse, Chat),
    Surface("POST", "/v1/generate", generate.generate, None, 256 << 20, _NATIVE),
    Surface("GET", "/v1/models", models.catalogue),
    Surface("GET", "/v1/models/{model:path}/graph", graphs.graph),
    Surface("POST", "/v1/models/{model:path}/load", rest.load),
    Surface("POST", "/v1/models/{model:path}/unload", rest.unload),
    Surface("GET", "/v1/models/{model:path}", models.entry),
    Surface("GET", "/v1/events", events.events, terms=Terms(answers=(_EVENTS,))),
    Surface("GET", "/v1/requests", traces.recent),
    Surface("GET", "/v1/requests/{id:path}/trace", traces.trace, terms=Terms(query=("format",))),
    Surface("POST", "/v1/requests/{id:path}/cancel", traces.cancel),
    Surface("GET", "/health", operations.health, is_open=True),
    Surface("GET", "/ready", operations.ready),
    Surface("GET", "/metrics", operations.metrics, terms=_PLAIN),
    Surface("GET", "/openapi.json", openapi.describe),
)
_READS = ("GET", "HEAD")
_ELSEWHERE = Refusal(
    403, "cross_origin", "a page of another origin may not use a server without keys; give it some, or use its own page"
)
OPEN = frozenset(one.path for one in SURFACES if one.is_open)
LINES = frozenset(one.path for one in SURFACES if one.method == METHOD)


PAGES = "/studio"
"""What all files of pages are counted under."""


def application(door: Door, extra: Sequence[Route] = ()) -> Starlette:
    """The application that speaks to clients. `extra` are pages, which anybody may read."""
    door.surfaces = SURFACES
    return Starlette(
        routes=[*(_route(door, one) for one in SURFACES), *extra],
        middleware=[Middleware(Gate, door=door, pages=frozenset(one.path for one in extra))],
        exception_handlers={Refusal: _refused, HTTPException: _not_routed},
    )


def _route(door: Door, one: Surface) -> Route | WebSocketRoute:
    if one.method == METHOD:
        return WebSocketRoute(one.path, Caller(door, one))
    return Route(one.path, Endpoint(door, one), methods=[one.method])


async def _refused(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal), "it was asked for these only"
    request.scope["passage"].refused(refusal)
    return answered(refusal.content, refusal.status, refusal.headers)


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it was asked for these only"
    if error.status_code == 404:
        near = nearest(request.url.path, [one.path for one in SURFACES])
        return await _refused(request, Refusal(404, "no_such_path", f"there is no {request.url.path}{near}"))
    refused = await _refused(request, Refusal(error.status_code, "bad_request", error.detail))
    refused.headers.update(error.headers or {})  # which methods there are
    return refused


class Gate:
    """Middleware around everything."""

    def __init__(self, app: ASGIApp, door: Door, pages: frozenset[str] = frozenset()) -> None:
        self._app = app
        self._door = door
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        passage = scope["passage"] = Passage(named(headers.get("x-request-id", "")))
        is_started, traffic = False, Traffic(receive, send)
        entry = self._door.timelines.begin(passage, headers.get("traceparent", ""))

        async def sending(message: Message) -> None:
            nonlocal is_started
            if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
                is_started = True
                passage.status = message.get("status", 101)
                MutableHeaders(raw=message.setdefault("headers", []))["X-Request-Id"] = passage.id
            await traffic.send(message)

        try:
            await self._pass(scope, headers, traffic.receive, sending)
        except Exception:
            log.exception("request %s", passage.id)
            if is_started:
                return  # the connection is closed before its body is complete, and so the client knows
            await _answer(BROKEN, scope, receive, sending)
        finally:
            self._door.ended(entry, traffic.bytes_in, traffic.bytes_out)

    async def _pass(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        passage: Passage = scope["passage"]
        is_page = scope["path"] in self._pages and scope["type"] == "http" and scope["method"] in _READS
        if is_page or scope["path"] in OPEN:
            passage.surface = PAGES if is_page else passage.surface
            await self._app(scope, receive, send)
            return
        shown = authorization(headers, scope.get("subprotocols", ()))
        passage.holder = holder = self._door.keys.holder(shown)
        if holder is None:
            await _answer(Refusal(401, "invalid_api_key", "a valid API key is needed"), scope, receive, send)
            return
        if not self._door.keys.are_needed and scope.get("method") not in _READS and is_elsewhere(headers):
            await _answer(_ELSEWHERE, scope, receive, send)
            return
        costs = scope["type"] == "websocket" or scope["method"] == "POST"
        if costs and (wait := holder.wait(time.monotonic())):
            what = "this key has asked for more than it may"
            await _answer(Refusal(429, "rate_limited", what, retry_after=wait), scope, receive, send)
            return
        holder.live += costs
        self._door.visits += costs
        is_call = scope["type"] == "websocket" and scope["path"] in LINES
        try:
            with self._door.meters.calls.labels(scope["path"]).track_inprogress() if is_call else nullcontext():
                await self._app(scope, receive, send)
        finally:
            holder.live -= costs
            self._door.visits -= costs


async def _answer(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    scope["passage"].refused(refusal)
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": refusal.message})
        return
    await answered(refusal.content, refusal.status, refusal.headers)(scope, receive, send)
