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

from mstar.errors import suggest_name
from mstar.media.audio import FORMATS
from mstar.requests import (
    ActionRequest,
    ChatRequest,
    EmbeddingRequest,
    ImageRequest,
    RolloutRequest,
    SpeechRequest,
    TranscriptionRequest,
    VideoRequest,
)
from mstar.server import openapi
from mstar.server.access.browser_auth import authorization_from, is_cross_origin
from mstar.server.admin import events, graphs, health, model_loading, traces
from mstar.server.errors import ApiError
from mstar.server.generic import generate
from mstar.server.http_exchange import INTERNAL_ERROR, HttpHandler, RequestContext, json_response, request_id_from
from mstar.server.openai import chat, embeddings, images, models, speech, speech_stream, transcriptions, videos, voices
from mstar.server.openai.schema import ChatBody, EmbeddingBody, GenerateBody
from mstar.server.realtime import session
from mstar.server.robotics import actions, worlds
from mstar.server.state import Endpoint, EndpointSchema, ServerState
from mstar.server.telemetry.logs import ByteCounter
from mstar.server.websocket_session import WEBSOCKET_METHOD, WebSocketHandler, websocket_endpoint

log = logging.getLogger("mstar.server")

_JSON, _EVENT_STREAM, _TEXT = "application/json", "text/event-stream", "text/plain"
_AUDIO_MEDIA_TYPES = (*sorted({form.media_type for form in FORMATS.values()}), _EVENT_STREAM)
_TRANSCRIPTION_SCHEMA = EndpointSchema(
    transcriptions.TranscriptionForm, {"file": True}, response_media_types=(_JSON, _TEXT, _EVENT_STREAM)
)
_IMAGE_SCHEMA = EndpointSchema(images.ImageBody, response_media_types=(_JSON, _EVENT_STREAM))
_IMAGE_EDIT_SCHEMA = EndpointSchema(
    images.ImageEditForm, {"image": True, "mask": False}, response_media_types=(_JSON, _EVENT_STREAM)
)
_VIDEO_SCHEMA = EndpointSchema(videos.VideoForm, {"input_reference": False})
_VIDEO_CONTENT_SCHEMA = EndpointSchema(query_params=("variant",), response_media_types=("video/mp4",))
_GENERATE_SCHEMA = EndpointSchema(GenerateBody, response_media_types=(_EVENT_STREAM, generate.MSGPACK))
_MODEL_QUERY_SCHEMA, _PLAIN_TEXT_SCHEMA = (
    EndpointSchema(query_params=("model",)),
    EndpointSchema(response_media_types=(_TEXT,)),
)
ENDPOINTS: Sequence[Endpoint] = (
    Endpoint(
        "POST",
        "/v1/chat/completions",
        chat.create_completion,
        ChatRequest,
        schema=EndpointSchema(ChatBody, response_media_types=(_JSON, _EVENT_STREAM)),
        best_effort_marker=b'"flex"',
    ),
    Endpoint(
        "POST", "/v1/embeddings", embeddings.create_embeddings, EmbeddingRequest, schema=EndpointSchema(EmbeddingBody)
    ),
    Endpoint(
        "POST",
        "/v1/audio/speech",
        speech.create_speech,
        SpeechRequest,
        schema=EndpointSchema(speech.SpeechBody, response_media_types=_AUDIO_MEDIA_TYPES),
    ),
    websocket_endpoint("/v1/audio/speech/stream", speech_stream.stream_speech, SpeechRequest),
    Endpoint("GET", "/v1/audio/voices", voices.list_voices, SpeechRequest, schema=_MODEL_QUERY_SCHEMA),
    Endpoint(
        "POST",
        "/v1/audio/transcriptions",
        transcriptions.transcribe,
        TranscriptionRequest,
        64 << 20,
        _TRANSCRIPTION_SCHEMA,
    ),
    Endpoint(
        "POST",
        "/v1/audio/translations",
        transcriptions.translate,
        TranscriptionRequest,
        64 << 20,
        _TRANSCRIPTION_SCHEMA,
    ),
    Endpoint("POST", "/v1/images/generations", images.generate, ImageRequest, schema=_IMAGE_SCHEMA),
    Endpoint("POST", "/v1/images/edits", images.edit, ImageRequest, 256 << 20, _IMAGE_EDIT_SCHEMA),
    Endpoint("POST", "/v1/videos", videos.create, VideoRequest, 64 << 20, _VIDEO_SCHEMA, best_effort=True),
    Endpoint("GET", "/v1/videos", videos.list_videos),
    Endpoint("GET", "/v1/videos/{video}", videos.retrieve),
    Endpoint("DELETE", "/v1/videos/{video}", videos.delete),
    Endpoint("GET", "/v1/videos/{video}/content", videos.content, schema=_VIDEO_CONTENT_SCHEMA),
    Endpoint("POST", "/v1/actions", actions.predict_actions, ActionRequest),
    Endpoint("GET", "/v1/actions/metadata", actions.show_robot_spec, ActionRequest, schema=_MODEL_QUERY_SCHEMA),
    websocket_endpoint("/", actions.serve_openpi, ActionRequest),
    Endpoint("GET", "/healthz", actions.healthz, schema=_PLAIN_TEXT_SCHEMA, is_public=True),
    Endpoint("POST", "/v1/worlds", worlds.create, RolloutRequest),
    Endpoint("GET", "/v1/worlds/{world}", worlds.retrieve),
    Endpoint("DELETE", "/v1/worlds/{world}", worlds.close),
    Endpoint("POST", "/v1/worlds/{world}/step", worlds.step),
    Endpoint("POST", "/v1/worlds/{world}/fork", worlds.fork),
    Endpoint("POST", "/v1/worlds/{world}/reset", worlds.reset),
    websocket_endpoint("/v1/realtime", session.serve_realtime, ChatRequest),
    Endpoint("POST", "/v1/generate", generate.generate, None, 256 << 20, _GENERATE_SCHEMA),
    Endpoint("GET", "/v1/models", models.list_models),
    Endpoint("GET", "/v1/models/{model:path}/graph", graphs.graph),
    Endpoint("POST", "/v1/models/{model:path}/load", model_loading.load),
    Endpoint("POST", "/v1/models/{model:path}/unload", model_loading.unload),
    Endpoint("GET", "/v1/models/{model:path}", models.retrieve_model),
    Endpoint("GET", "/v1/events", events.stream_events, schema=EndpointSchema(response_media_types=(_EVENT_STREAM,))),
    Endpoint("GET", "/v1/requests", traces.list_requests),
    Endpoint(
        "GET", "/v1/requests/{id:path}/trace", traces.retrieve_trace, schema=EndpointSchema(query_params=("format",))
    ),
    Endpoint("POST", "/v1/requests/{id:path}/cancel", traces.cancel_request),
    Endpoint("GET", "/health", health.health, is_public=True),
    Endpoint("GET", "/ready", health.ready),
    Endpoint("GET", "/metrics", health.metrics, schema=_PLAIN_TEXT_SCHEMA),
    Endpoint("GET", "/openapi.json", openapi.openapi_document),
)
_READ_METHODS = ("GET", "HEAD")
_CROSS_ORIGIN_ERROR = ApiError(
    403, "cross_origin", "a page of another origin may not use a server without keys; give it some, or use its own page"
)
PUBLIC_PATHS = frozenset(one.path for one in ENDPOINTS if one.is_public)
WEBSOCKET_PATHS = frozenset(one.path for one in ENDPOINTS if one.method == WEBSOCKET_METHOD)


PAGES_LABEL = "/studio"
"""What all files of pages are counted under."""


def build_app(state: ServerState, pages: Sequence[Route] = ()) -> Starlette:
    """The application that speaks to clients. `extra` are pages, which anybody may read."""
    state.endpoints = ENDPOINTS
    return Starlette(
        routes=[*(_build_route(state, one) for one in ENDPOINTS), *pages],
        middleware=[Middleware(RequestMiddleware, state=state, pages=frozenset(one.path for one in pages))],
        exception_handlers={ApiError: _on_api_error, HTTPException: _on_http_exception},
    )


def _build_route(state: ServerState, endpoint: Endpoint) -> Route | WebSocketRoute:
    if endpoint.method == WEBSOCKET_METHOD:
        return WebSocketRoute(endpoint.path, WebSocketHandler(state, endpoint))
    return Route(endpoint.path, HttpHandler(state, endpoint), methods=[endpoint.method])


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError), "it was asked for these only"
    request.scope["request_context"].record_error(error)
    return json_response(error.content, error.status, error.headers)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it was asked for these only"
    if error.status_code == 404:
        near = suggest_name(request.url.path, [one.path for one in ENDPOINTS])
        return await _on_api_error(request, ApiError(404, "no_such_path", f"there is no {request.url.path}{near}"))
    refused = await _on_api_error(request, ApiError(error.status_code, "bad_request", error.detail))
    refused.headers.update(error.headers or {})  # which methods there are
    return refused


class RequestMiddleware:
    """Middleware around everything."""

    def __init__(self, app: ASGIApp, state: ServerState, pages: frozenset[str] = frozenset()) -> None:
        self._app = app
        self._state = state
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        passage = scope["request_context"] = RequestContext(request_id_from(headers.get("x-request-id", "")))
        is_started, traffic = False, ByteCounter(receive, send)
        entry = self._state.recent_requests.begin(passage, headers.get("traceparent", ""))

        async def sending(message: Message) -> None:
            nonlocal is_started
            if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
                is_started = True
                passage.status = message.get("status", 101)
                MutableHeaders(raw=message.setdefault("headers", []))["X-Request-Id"] = passage.id
            await traffic.send(message)

        try:
            await self._authorize_and_forward(scope, headers, traffic.receive, sending)
        except Exception:
            log.exception("request %s", passage.id)
            if is_started:
                return  # the connection is closed before its body is complete, and so the client knows
            await _send_error(INTERNAL_ERROR, scope, receive, sending)
        finally:
            self._state.record_request_end(entry, traffic.bytes_in, traffic.bytes_out)

    async def _authorize_and_forward(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        passage: RequestContext = scope["request_context"]
        is_page = scope["path"] in self._pages and scope["type"] == "http" and scope["method"] in _READ_METHODS
        if is_page or scope["path"] in PUBLIC_PATHS:
            passage.endpoint = PAGES_LABEL if is_page else passage.endpoint
            await self._app(scope, receive, send)
            return
        shown = authorization_from(headers, scope.get("subprotocols", ()))
        passage.tenant = holder = self._state.keys.authenticate(shown)
        if holder is None:
            await _send_error(ApiError(401, "invalid_api_key", "a valid API key is needed"), scope, receive, send)
            return
        if not self._state.keys.is_required and scope.get("method") not in _READ_METHODS and is_cross_origin(headers):
            await _send_error(_CROSS_ORIGIN_ERROR, scope, receive, send)
            return
        costs = scope["type"] == "websocket" or scope["method"] == "POST"
        if costs and (wait := holder.acquire(time.monotonic())):
            what = "this key has asked for more than it may"
            await _send_error(ApiError(429, "rate_limited", what, retry_after=wait), scope, receive, send)
            return
        holder.active_requests += costs
        self._state.active_requests += costs
        is_call = scope["type"] == "websocket" and scope["path"] in WEBSOCKET_PATHS
        try:
            with (
                self._state.metrics.websockets_open.labels(scope["path"]).track_inprogress()
                if is_call
                else nullcontext()
            ):
                await self._app(scope, receive, send)
        finally:
            holder.active_requests -= costs
            self._state.active_requests -= costs


async def _send_error(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    scope["request_context"].record_error(error)
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": error.message})
        return
    await json_response(error.content, error.status, error.headers)(scope, receive, send)
