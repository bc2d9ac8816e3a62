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

from mstar.server.calls import METHOD
from mstar.server.door import Door, Surface
from mstar.server.pacing import FORMS, HEADER
from mstar.server.visit import Visit, answered

_REF = "#/components/schemas/"
_PLACE = re.compile(r"{(\w+)(?::\w+)?}")
_TEXT = {"type": "string"}
_PACE = {"name": HEADER, "in": "header", "description": f"how soon it is wanted: {FORMS}", "schema": _TEXT}
_REFUSED = {
    "description": "refused; the reason is told",
    "content": {"application/json": {"schema": {"$ref": f"{_REF}Error"}}},
}
_FIELDS = {"type": _TEXT, "code": _TEXT, "message": _TEXT, "param": {"type": ["string", "null"]}}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "object", "required": [*_FIELDS], "properties": _FIELDS}},
}


async def describe(visit: Visit) -> Response:
    """GET /openapi.json: this."""
    return answered(_described(visit.door))


@functools.lru_cache(maxsize=1)  # it takes long enough for others to wait
def _described(door: Door) -> dict[str, Any]:
    return document(door.surfaces)


def document(surfaces: Sequence[Surface]) -> dict[str, Any]:
    """The description of some surfaces."""
    bodies = {one.terms.body for one in surfaces if one.terms.body is not None}
    named, definitions = models_json_schema(
        [(body, "validation") for body in sorted(bodies, key=lambda one: one.__name__)], ref_template=f"{_REF}{{model}}"
    )
    refs = {body: schema for (body, _), schema in named.items()}
    paths: dict[str, dict[str, Any]] = {}
    for one in surfaces:
        if one.method != METHOD:
            paths.setdefault(_PLACE.sub(r"{\1}", one.path), {})[one.method.lower()] = _operation(one, refs)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mstar", "version": version("mstar-serve")},
        "security": [{"key": []}],
        "paths": paths,
        "x-websockets": {one.path: _about(one) for one in surfaces if one.method == METHOD},
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": definitions["$defs"] | {"Error": _ERROR},
        },
    }


def _operation(one: Surface, refs: dict[Any, Any]) -> dict[str, Any]:
    inside = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in _PLACE.findall(one.path)]
    behind = [{"name": name, "in": "query", "schema": _TEXT} for name in one.terms.query]
    answer = {"description": "what was asked for", "content": {kind: dict[str, Any]() for kind in one.terms.answers}}
    told: dict[str, Any] = {
        "operationId": f"{one.handle.__module__.rpartition('.')[2]}.{one.handle.__name__}",
        "description": _about(one),
        "parameters": inside + behind + ([_PACE] if one.method == "POST" and one.ask is not None else []),
        "responses": {"2XX": answer, "4XX": _REFUSED, "5XX": _REFUSED},
    }
    if one.is_open:
        told["security"] = []
    if one.method == "POST" and (one.terms.body is not None or one.ask is not None):
        told["requestBody"] = {"required": True, "content": _content(one, refs)}
    return told


def _content(one: Surface, refs: dict[Any, Any]) -> dict[str, Any]:
    """What a body is: JSON, or a form if there are files in it."""
    model = {"type": "object", "required": ["model"], "properties": {"model": _TEXT}}
    schema = refs[one.terms.body] if one.terms.body is not None else model
    if not one.terms.files:
        return {"application/json": {"schema": schema}}
    files = {name: {"type": "string", "format": "binary"} for name in one.terms.files}
    needed = [name for name, is_needed in one.terms.files.items() if is_needed]
    return {"multipart/form-data": {"schema": {"allOf": [schema, {"properties": files, "required": needed}]}}}


def _about(one: Surface) -> str:
    """What a surface says of itself."""
    return " ".join((one.handle.__doc__ or "").split())
