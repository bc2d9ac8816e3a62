"""Endpoint: one HTTP or WebSocket route of the API, with its method, path, handler and OpenAPI schema.

The table of all endpoints is in `app`. This module imports no other part of the server, so that every part can use it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

WEBSOCKET_METHOD = "WS"
"""Method of endpoints that are served over a WebSocket."""


@dataclass(frozen=True, slots=True)
class EndpointSchema:
    """Request and response schema of an endpoint, for the OpenAPI document."""

    body: type[BaseModel] | None = None
    files: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """File fields by name, and whether each is required. With files, the body is a multipart form."""
    query_params: tuple[str, ...] = ()
    response_media_types: tuple[str, ...] = ("application/json",)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route: method, path, handler, and the request type that a model must accept to be served there."""

    method: str
    path: str
    handler: Callable[[Any], Awaitable[Any]]
    """Takes an `HttpExchange` and returns a response, or takes a `WebSocketSession` and returns nothing."""
    request_type: type | None = None
    max_body_bytes: int = 32 << 20
    """Maximum size of a request body."""
    schema: EndpointSchema = EndpointSchema()
    is_public: bool = False
    """Whether it needs no API key."""
    needs_operator: bool = False
    """Whether it needs an operator key."""
    best_effort: bool = False
    """Whether requests have no SLO unless the client sets one."""
    best_effort_marker: bytes = b""
    """Bytes that mark a best-effort body. Empty: a body cannot ask for best effort."""
    required_hook: str = ""
    """Optional method that a model must also define to be served there."""
    to_error_content: Callable[[Any], dict[str, Any]] | None = None
    """Makes the JSON body of an `ApiError`; None: in the format of the OpenAI API."""
