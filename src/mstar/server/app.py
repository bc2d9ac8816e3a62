"""The ASGI application: the table of all endpoints, and the middleware that every request passes.

The middleware assigns the request id, authenticates, applies the rate limit before the body is read, and turns
unexpected exceptions into a plain 500. It also runs for paths that do not exist.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
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
from mstar.server.access.api_keys import Tenant
from mstar.server.access.browser_auth import authorization_from, is_cross_origin
from mstar.server.access.lingering_close import lingering_send
from mstar.server.access.load_shedding import is_limited, overloaded_error
from mstar.server.adapters import adapters
from mstar.server.admin import capture, events, graphs, health, model_loading, overview, traces
from mstar.server.anthropic import messages
from mstar.server.anthropic.errors import to_error_content
from mstar.server.anthropic.schema import MessagesBody
from mstar.server.endpoint import WEBSOCKET_METHOD, Endpoint, EndpointSchema
from mstar.server.errors import ApiError
from mstar.server.generic import generate
from mstar.server.http_exchange import HttpHandler, json_response
from mstar.server.openai import (
    chat,
    embeddings,
    images,
    models,
    rerank,
    speech,
    speech_stream,
    text_completions,
    transcriptions,
    videos,
    voices,
)
from mstar.server.openai.schema import ChatBody, CompletionBody, EmbeddingBody, GenerateBody, RerankBody
from mstar.server.realtime import serving
from mstar.server.realtime.backup.session_backups import SessionBackupMiddleware
from mstar.server.request_context import RequestContext, read_headers, request_id_from
from mstar.server.responses import responses
from mstar.server.responses.schema import ResponsesBody
from mstar.server.robotics import actions, worlds
from mstar.server.sessions import sessions
from mstar.server.sessions.session_file import MAX_SESSION_BYTES
from mstar.server.state import ServerState
from mstar.server.telemetry.logs import ByteCounter
from mstar.server.unexpected_errors import INTERNAL_ERROR, report_exception
from mstar.server.websocket_session import WebSocketHandler, websocket_endpoint
from mstar.tenant_share import has_share_left

_JSON = "application/json"
_EVENT_STREAM = "text/event-stream"
_TEXT = "text/plain"
_AUDIO_MEDIA_TYPES = (*sorted({audio_format.media_type for audio_format in FORMATS.values()}), _EVENT_STREAM)
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
_MODEL_QUERY_SCHEMA = EndpointSchema(query_params=("model",))
_PLAIN_TEXT_SCHEMA = EndpointSchema(response_media_types=(_TEXT,))
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
        "POST",
        "/v1/completions",
        text_completions.create_completion,
        ChatRequest,
        schema=EndpointSchema(CompletionBody, response_media_types=(_JSON, _EVENT_STREAM)),
        best_effort_marker=b'"flex"',
        required_hook="tokenize_prompt",
    ),
    Endpoint(
        "POST",
        "/v1/responses",
        responses.create_response,
        ChatRequest,
        schema=EndpointSchema(ResponsesBody, response_media_types=(_JSON, _EVENT_STREAM)),
        best_effort_marker=b'"flex"',
    ),
    Endpoint(
        "POST",
        "/v1/messages",
        messages.create_message,
        ChatRequest,
        schema=EndpointSchema(MessagesBody, response_media_types=(_JSON, _EVENT_STREAM)),
        to_error_content=to_error_content,
    ),
    Endpoint("GET", "/v1/responses/{response}", responses.retrieve, schema=EndpointSchema(query_params=("stream",))),
    Endpoint("DELETE", "/v1/responses/{response}", responses.delete),
    Endpoint("POST", "/v1/responses/{response}/cancel", responses.cancel),
    Endpoint(
        "GET",
        "/v1/responses/{response}/input_items",
        responses.list_input_items,
        schema=EndpointSchema(query_params=("after", "limit", "order")),
    ),
    Endpoint(
        "POST", "/v1/embeddings", embeddings.create_embeddings, EmbeddingRequest, schema=EndpointSchema(EmbeddingBody)
    ),
    Endpoint("POST", "/v1/rerank", rerank.rerank, EmbeddingRequest, schema=EndpointSchema(RerankBody)),
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
    websocket_endpoint("/v1/realtime", serving.serve_realtime, ChatRequest),
    Endpoint("POST", "/v1/sessions", sessions.import_session, max_body_bytes=MAX_SESSION_BYTES),
    Endpoint("GET", "/v1/sessions/{session}", sessions.export_session),
    Endpoint("POST", "/v1/generate", generate.generate, None, 256 << 20, _GENERATE_SCHEMA),
    Endpoint("GET", "/v1/models", models.list_models),
    Endpoint("GET", "/v1/models/{model:path}/graph", graphs.graph),
    Endpoint("POST", "/v1/models/{model:path}/load", model_loading.load, needs_operator=True),
    Endpoint("POST", "/v1/models/{model:path}/unload", model_loading.unload, needs_operator=True),
    Endpoint("GET", "/v1/models/{model:path}", models.retrieve_model),
    Endpoint("GET", "/v1/adapters", adapters.list_adapters),
    Endpoint(
        "POST",
        "/v1/adapters",
        adapters.load_adapter,
        max_body_bytes=adapters.MAX_BODY_BYTES,
        schema=EndpointSchema(adapters.AdapterBody),
        needs_operator=True,
    ),
    Endpoint("DELETE", "/v1/adapters/{adapter:path}", adapters.unload_adapter, needs_operator=True),
    Endpoint("GET", "/v1/events", events.stream_events, schema=EndpointSchema(response_media_types=(_EVENT_STREAM,))),
    Endpoint("GET", "/v1/overview", overview.overview),
    Endpoint(
        "GET",
        "/v1/traffic",
        capture.stream_traffic,
        schema=EndpointSchema(query_params=("contents",), response_media_types=(_EVENT_STREAM,)),
        needs_operator=True,
    ),
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
_INVALID_API_KEY = ApiError(
    401,
    "invalid_api_key",
    "missing or invalid API key; fix: send a valid key as `Authorization: Bearer KEY` or `x-api-key: KEY`",
)
_CROSS_ORIGIN_ERROR = ApiError(
    403,
    "cross_origin",
    "cross-origin requests need an API key; fix: configure API keys, or use the server's own page",
)
_CONNECTION_SHARE_ERROR = ApiError(
    429,
    "rate_limited",
    "this API key uses its share of the server's connections; fix: retry after 1 s, or open fewer at a time",
    retry_after=1.0,
)
PUBLIC_PATHS = frozenset(endpoint.path for endpoint in ENDPOINTS if endpoint.is_public)
WEBSOCKET_PATHS = frozenset(endpoint.path for endpoint in ENDPOINTS if endpoint.method == WEBSOCKET_METHOD)
_ERROR_FORMATS = {endpoint.path: endpoint.to_error_content for endpoint in ENDPOINTS if endpoint.to_error_content}
"""How errors are written, by path; in the format of the OpenAI API at other paths."""
WORK_PATHS = frozenset(endpoint.path for endpoint in ENDPOINTS if is_limited(endpoint))

_TWIN_HEADER = ((b"mstar-twin", b"true"),)
"""Header of every response of a server without weights."""
PAGES_LABEL = "/studio"
"""Endpoint label of all static pages."""


def build_app(state: ServerState, pages: Sequence[Route] = ()) -> Starlette:
    """Build the application. `pages` are static pages that need no API key."""
    state.endpoints = ENDPOINTS
    middleware = [Middleware(RequestMiddleware, state=state, pages=frozenset(page.path for page in pages))]
    if state.session_backups is not None:
        middleware.insert(0, Middleware(SessionBackupMiddleware, backups=state.session_backups))
    return Starlette(
        routes=[*(_build_route(state, endpoint) for endpoint in ENDPOINTS), *pages],
        middleware=middleware,
        exception_handlers={ApiError: _on_api_error, HTTPException: _on_http_exception},
    )


def _build_route(state: ServerState, endpoint: Endpoint) -> Route | WebSocketRoute:
    if endpoint.method == WEBSOCKET_METHOD:
        return WebSocketRoute(endpoint.path, WebSocketHandler(state, endpoint))
    return Route(endpoint.path, HttpHandler(state, endpoint), methods=[endpoint.method])


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError), "registered for ApiError only"
    return _error_response(error, request.scope)


def _error_response(error: ApiError, scope: Scope) -> Response:
    context: RequestContext = scope["request_context"]
    error = error.without_retry() if context.has_effects else error
    context.record_error(error)
    to_content = _ERROR_FORMATS.get(scope["path"])
    content = error.content if to_content is None else to_content(error)
    return json_response(content, error.status, error.headers)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for HTTPException only"
    if error.status_code == 404:
        suggestion = suggest_name(request.url.path, [endpoint.path for endpoint in ENDPOINTS])
        message = f"there is no {request.url.path}{suggestion}"
        return await _on_api_error(request, ApiError(404, "no_such_path", message))
    response = await _on_api_error(request, ApiError(error.status_code, "bad_request", error.detail))
    response.headers.update(error.headers or {})  # a 405 lists the allowed methods
    return response


class RequestMiddleware:
    """ASGI middleware: request id, host check, authentication, origin check, rate limit, access log, error barrier."""

    def __init__(self, app: ASGIApp, state: ServerState, pages: frozenset[str] = frozenset()) -> None:
        self._app = app
        self._state = state
        self._pages = pages
        self._handlers = {
            (endpoint.method, endpoint.path): HttpHandler(state, endpoint)
            for endpoint in state.endpoints
            if endpoint.method != WEBSOCKET_METHOD and "{" not in endpoint.path
        }
        """Handlers of the endpoints with a fixed path. They are called without Starlette's router and its layers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or send an error."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = scope["request_headers"] = read_headers(scope)
        context = scope["request_context"] = RequestContext(request_id_from(headers.get("x-request-id", "")))
        connection_state: dict[str, Any] = scope.get("state") or {}
        context.slot = connection_state.pop("slot", None)
        traffic = ByteCounter(context, receive, send)
        record = self._state.recent_requests.begin(context, headers.get("traceparent", ""))

        twin_header = _TWIN_HEADER if self._state.is_twin else ()

        async def send_with_request_id(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
                context.is_started = True
                context.status = message.get("status", 101)
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", context.id.encode()), *twin_header]
            await traffic.send(message)

        task = self._state.shutdown.track()
        try:
            await self._authorize_and_forward(scope, headers, traffic.receive, send_with_request_id)
        except asyncio.CancelledError:
            error = self._state.shutdown.take_cancellation()
            if error is None:
                raise
            context.record_error(error)
            if not context.is_started:
                await _send_error(error, scope, receive, send_with_request_id)
        except Exception as error:  # noqa: BLE001 - any other exception is reported
            api_error = INTERNAL_ERROR
            if not context.code:  # else it is known: a stream without error events failed
                api_error = report_exception(error, self._state, context)
                context.record_error(api_error)
            if context.is_started:
                return  # closing the connection before the body is complete tells the client
            await _send_error(api_error, scope, receive, send_with_request_id)
        finally:
            self._state.shutdown.untrack(task)
            context.release_memory()
            context.release_slot()
            self._state.record_request_end(record)

    async def _authorize_and_forward(
        self, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> None:
        context: RequestContext = scope["request_context"]
        if (error := self._host_rejection(headers)) is not None:
            await _send_error(error, scope, receive, send)
            return
        is_page = scope["path"] in self._pages and scope["type"] == "http" and scope["method"] in _READ_METHODS
        if is_page or scope["path"] in PUBLIC_PATHS:
            context.endpoint = PAGES_LABEL if is_page else context.endpoint
            await self._handle(scope, receive, send)
            return
        authorization = authorization_from(headers, scope.get("subprotocols", ()))
        context.tenant = tenant = self._state.keys.authenticate(authorization)
        if tenant is None:
            await _send_error(_INVALID_API_KEY, scope, receive, send)
            return
        if not self._state.keys.is_required and scope.get("method") not in _READ_METHODS and is_cross_origin(headers):
            await _send_error(_CROSS_ORIGIN_ERROR, scope, receive, send)
            return
        is_read = scope["type"] != "websocket" and scope["method"] != "POST"
        bucket = tenant.reads if is_read else tenant.work
        if wait_s := bucket.acquire(time.monotonic()):
            await _send_error(_rate_limited(tenant, wait_s), scope, receive, lingering_send(scope, receive, send))
            return
        bucket.active_requests += 1
        try:
            if is_read:
                await self._handle(scope, receive, send)
            else:
                await self._forward_counted(tenant, scope, receive, send)
        finally:
            bucket.active_requests -= 1

    def _host_rejection(self, headers: Mapping[str, str]) -> ApiError | None:
        """The error for a request with a Host header that is not allowed; with API keys every value is."""
        check = self._state.host_check
        return None if check is None or self._state.keys.is_required else check.rejection(headers.get("host", ""))

    async def _forward_counted(self, tenant: Tenant, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a POST request or WebSocket, unless its tenant already has its share of the connections."""
        free_connections = self._state.max_connections - self._state.active_requests
        if not has_share_left(tenant.name, tenant.work.active_requests - 1, free_connections):
            await _send_error(_CONNECTION_SHARE_ERROR, scope, receive, lingering_send(scope, receive, send))
            return
        is_websocket = scope["type"] == "websocket" and scope["path"] in WEBSOCKET_PATHS
        is_work = scope["type"] == "http" and scope["path"] in WORK_PATHS
        if is_work and not self._take_slot(scope["request_context"], tenant):
            await _send_error(overloaded_error(), scope, receive, lingering_send(scope, receive, send))
            return
        self._state.active_requests += 1
        try:
            if is_websocket:
                with self._state.metrics.websockets_open.labels(scope["path"]).track_inprogress():
                    await self._app(scope, _until_withdrawn(tenant, receive), send)
            else:
                await self._handle(scope, receive, send)
        finally:
            self._state.active_requests -= 1

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the handler of the endpoint, or the router if the path is not fixed."""
        handler = self._handlers.get((scope.get("method", ""), scope["path"]))
        if handler is None:
            await self._app(scope, receive, send)
            return
        try:
            await handler(scope, receive, send)
        except (ApiError, HTTPException) as error:
            if scope["request_context"].is_started:
                raise
            to_response = _on_api_error if isinstance(error, ApiError) else _on_http_exception
            response = await to_response(Request(scope), error)
            await response(scope, receive, send)

    def _take_slot(self, context: RequestContext, tenant: Tenant) -> bool:
        """Whether a request has a place in the limit of requests: that of the acceptor, or a new one."""
        if context.slot is None and self._state.load_shedder.has_slot(tenant.name):
            context.slot = self._state.load_shedder.take(tenant.name)
        return context.slot is not None


def _until_withdrawn(tenant: Tenant, receive: Receive) -> Receive:
    """Messages of a WebSocket while its key is valid; a WebSocket would otherwise outlive the withdrawal."""

    async def receive_if_valid() -> Message:
        message = await receive()
        return {"type": "websocket.disconnect", "code": 1008} if tenant.is_withdrawn else message

    return receive_if_valid


def _rate_limited(tenant: Tenant, wait_s: float) -> ApiError:
    limit = tenant.rate_limit
    message = (
        f"rate limit exceeded for this API key ({limit.requests_per_second:g} requests/s, "
        f"{limit.max_concurrent} concurrent); fix: retry after {wait_s:.3g} s"
    )
    return ApiError(429, "rate_limited", message, retry_after=wait_s)


async def _send_error(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        scope["request_context"].record_error(error)
        await send({"type": "websocket.close", "code": 1008, "reason": error.message})
        return
    await _error_response(error, scope)(scope, receive, send)
