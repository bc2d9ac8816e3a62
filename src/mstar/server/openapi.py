"""The description of this server for programs, made of the table of surfaces: paths, bodies, answers and refusals.

What is not in that table is not described. WebSockets have no place in OpenAPI and are only named; how a model's own
request looks, at /v1/generate, is its model's business.
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
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.state import Endpoint, ServerState
from mstar.server.websocket_session import WEBSOCKET_METHOD

_REF_PREFIX = "#/components/schemas/"
_PATH_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
_STRING = {"type": "string"}
_SLO_PARAMETER = {
    "name": SLO_HEADER,
    "in": "header",
    "description": f"how soon it is wanted: {SLO_SYNTAX}",
    "schema": _STRING,
}
_ERROR_RESPONSE = {
    "description": "refused; the reason is told",
    "content": {"application/json": {"schema": {"$ref": f"{_REF_PREFIX}Error"}}},
}
_ERROR_FIELDS = {"type": _STRING, "code": _STRING, "message": _STRING, "param": {"type": ["string", "null"]}}
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "object", "required": [*_ERROR_FIELDS], "properties": _ERROR_FIELDS}},
}


async def openapi_document(exchange: HttpExchange) -> Response:
    """GET /openapi.json: this."""
    return json_response(_cached_document(exchange.state))


@functools.lru_cache(maxsize=1)  # it takes long enough for others to wait
def _cached_document(state: ServerState) -> dict[str, Any]:
    return build_document(state.endpoints)


def build_document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The description of some surfaces."""
    bodies = {one.schema.body for one in endpoints if one.schema.body is not None}
    named, definitions = models_json_schema(
        [(body, "validation") for body in sorted(bodies, key=lambda one: one.__name__)],
        ref_template=f"{_REF_PREFIX}{{model}}",
    )
    refs = {body: schema for (body, _), schema in named.items()}
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        if one.method != WEBSOCKET_METHOD:
            paths.setdefault(_PATH_PARAMETER.sub(r"{\1}", one.path), {})[one.method.lower()] = _operation(one, refs)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mstar", "version": version("mstar-serve")},
        "security": [{"key": []}],
        "paths": paths,
        "x-websockets": {one.path: _description(one) for one in endpoints if one.method == WEBSOCKET_METHOD},
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": definitions["$defs"] | {"Error": _ERROR_SCHEMA},
        },
    }


def _operation(endpoint: Endpoint, refs: dict[Any, Any]) -> dict[str, Any]:
    inside = [
        {"name": name, "in": "path", "required": True, "schema": _STRING}
        for name in _PATH_PARAMETER.findall(endpoint.path)
    ]
    behind = [{"name": name, "in": "query", "schema": _STRING} for name in endpoint.schema.query_params]
    answer = {
        "description": "what was asked for",
        "content": {kind: dict[str, Any]() for kind in endpoint.schema.response_media_types},
    }
    told: dict[str, Any] = {
        "operationId": f"{endpoint.handler.__module__.rpartition('.')[2]}.{endpoint.handler.__name__}",
        "description": _description(endpoint),
        "parameters": inside
        + behind
        + ([_SLO_PARAMETER] if endpoint.method == "POST" and endpoint.request_type is not None else []),
        "responses": {"2XX": answer, "4XX": _ERROR_RESPONSE, "5XX": _ERROR_RESPONSE},
    }
    if endpoint.is_public:
        told["security"] = []
    if endpoint.method == "POST" and (endpoint.schema.body is not None or endpoint.request_type is not None):
        told["requestBody"] = {"required": True, "content": _body_content(endpoint, refs)}
    return told


def _body_content(endpoint: Endpoint, refs: dict[Any, Any]) -> dict[str, Any]:
    """What a body is: JSON, or a form if there are files in it."""
    model = {"type": "object", "required": ["model"], "properties": {"model": _STRING}}
    schema = refs[endpoint.schema.body] if endpoint.schema.body is not None else model
    if not endpoint.schema.files:
        return {"application/json": {"schema": schema}}
    files = {name: {"type": "string", "format": "binary"} for name in endpoint.schema.files}
    needed = [name for name, is_needed in endpoint.schema.files.items() if is_needed]
    return {"multipart/form-data": {"schema": {"allOf": [schema, {"properties": files, "required": needed}]}}}


def _description(endpoint: Endpoint) -> str:
    """What a surface says of itself."""
    return " ".join((endpoint.handler.__doc__ or "").split())
