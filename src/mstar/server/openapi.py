"""GET /openapi.json: the OpenAPI 3.1 document, built from the endpoint table.

OpenAPI has no WebSockets: they are listed under `x-websockets`. The request type of a model at /v1/generate is not
described.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from mstar.server.access.slo import SLO_HEADER, SLO_SYNTAX
from mstar.server.endpoint import WEBSOCKET_METHOD, Endpoint
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.state import ServerState

_REF_PREFIX = "#/components/schemas/"
_PATH_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
_STRING = {"type": "string"}
_SLO_PARAMETER = {
    "name": SLO_HEADER,
    "in": "header",
    "description": f"service level objective: {SLO_SYNTAX}",
    "schema": _STRING,
}
_ERROR_FIELDS = {"type": _STRING, "code": _STRING, "message": _STRING, "param": {"type": ["string", "null"]}}
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "object", "required": [*_ERROR_FIELDS], "properties": _ERROR_FIELDS}},
}
_MESSAGES_ERROR_SCHEMA = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": _STRING, "message": _STRING},
        },
    },
}
"""Errors of endpoints in the format of the Anthropic API."""


async def openapi_document(exchange: HttpExchange) -> Response:
    """GET /openapi.json: this document."""
    return json_response(_cached_document(exchange.state))


@functools.lru_cache(maxsize=1)  # building it blocks the event loop noticeably
def _cached_document(state: ServerState) -> dict[str, Any]:
    return build_document(state.endpoints)


def build_document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Build the OpenAPI document of some endpoints."""
    bodies = {endpoint.schema.body for endpoint in endpoints if endpoint.schema.body is not None}
    named, definitions = models_json_schema(
        [(body, "validation") for body in sorted(bodies, key=lambda body: body.__name__)],
        ref_template=f"{_REF_PREFIX}{{model}}",
    )
    refs = {body: schema for (body, _), schema in named.items()}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        if endpoint.method != WEBSOCKET_METHOD:
            operations = paths.setdefault(_PATH_PARAMETER.sub(r"{\1}", endpoint.path), {})
            operations[endpoint.method.lower()] = _operation(endpoint, refs)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mstar", "version": version("mstar-serve")},
        "security": [{"key": []}],
        "paths": paths,
        "x-websockets": {
            endpoint.path: _description(endpoint) for endpoint in endpoints if endpoint.method == WEBSOCKET_METHOD
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": definitions["$defs"] | {"Error": _ERROR_SCHEMA, "MessagesError": _MESSAGES_ERROR_SCHEMA},
        },
    }


def _operation(endpoint: Endpoint, refs: dict[Any, Any]) -> dict[str, Any]:
    path_params = [
        {"name": name, "in": "path", "required": True, "schema": _STRING}
        for name in _PATH_PARAMETER.findall(endpoint.path)
    ]
    query_params = [{"name": name, "in": "query", "schema": _STRING} for name in endpoint.schema.query_params]
    response = {
        "description": "success",
        "content": {kind: dict[str, Any]() for kind in endpoint.schema.response_media_types},
    }
    error_schema = "Error" if endpoint.to_error_content is None else "MessagesError"
    error = {
        "description": "error, with its message",
        "content": {"application/json": {"schema": {"$ref": f"{_REF_PREFIX}{error_schema}"}}},
    }
    operation: dict[str, Any] = {
        "operationId": f"{endpoint.handler.__module__.rpartition('.')[2]}.{endpoint.handler.__name__}",
        "description": _description(endpoint),
        "parameters": path_params
        + query_params
        + ([_SLO_PARAMETER] if endpoint.method == "POST" and endpoint.request_type is not None else []),
        "responses": {"2XX": response, "4XX": error, "5XX": error},
    }
    if endpoint.is_public:
        operation["security"] = []
    if endpoint.method == "POST" and (endpoint.schema.body is not None or endpoint.request_type is not None):
        operation["requestBody"] = {"required": True, "content": _body_content(endpoint, refs)}
    return operation


def _body_content(endpoint: Endpoint, refs: dict[Any, Any]) -> dict[str, Any]:
    """Content of the request body: JSON, or a multipart form if it has files."""
    model = {"type": "object", "required": ["model"], "properties": {"model": _STRING}}
    schema = refs[endpoint.schema.body] if endpoint.schema.body is not None else model
    if not endpoint.schema.files:
        return {"application/json": {"schema": schema}}
    files = {name: {"type": "string", "format": "binary"} for name in endpoint.schema.files}
    required = [name for name, is_required in endpoint.schema.files.items() if is_required]
    return {"multipart/form-data": {"schema": {"allOf": [schema, {"properties": files, "required": required}]}}}


def _description(endpoint: Endpoint) -> str:
    """The docstring of the handler."""
    return " ".join((endpoint.handler.__doc__ or "").split())
