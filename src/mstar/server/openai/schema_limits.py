"""Limits on the JSON schemas of clients (structured output and forced tool calls).

A schema is compiled to a grammar for every request that sends a new one, in time that grows faster than its size. It is
checked here first: size, depth, number of properties and enum values, and references that lead back to themselves.
What a keyword means is left to the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from mstar.requests import Grammar
from mstar.server.errors import ApiError

MAX_SCHEMA_BYTES = 64 << 10
"""Maximum bytes of a schema as JSON."""
MAX_SCHEMA_DEPTH = 64
"""Maximum nesting of objects and lists in a schema."""
MAX_SCHEMA_PROPERTIES = 256
"""Maximum number of properties of all objects in a schema. Compiling takes time with the square of their number."""
MAX_SCHEMA_CHOICES = 1000
"""Maximum number of enum values and alternatives (`anyOf`, `oneOf`, `allOf`) in a schema."""
_PROPERTY_KEYWORDS = ("properties", "patternProperties", "dependentSchemas")
_CHOICE_KEYWORDS = ("enum", "anyOf", "oneOf", "allOf")
_SAME_POSITION_KEYWORDS = ("anyOf", "oneOf", "allOf")
"""Keywords whose schemas describe the same value as the schema that has them."""


def check_schema(schema: Mapping[str, Any], param: str) -> None:
    """Raise ApiError unless a schema is within the limits; `param` names the request field in errors."""
    try:
        size = len(msgspec.json.encode(schema))
    except (RecursionError, TypeError, ValueError):
        raise _limit_error(param, f"it is nested more than {MAX_SCHEMA_DEPTH} levels deep") from None
    if size > MAX_SCHEMA_BYTES:
        raise _limit_error(param, f"it has {size} bytes, maximum {MAX_SCHEMA_BYTES}")
    properties = choices = 0
    for depth, node in _nodes(schema):
        if depth > MAX_SCHEMA_DEPTH:
            raise _limit_error(param, f"it is nested more than {MAX_SCHEMA_DEPTH} levels deep")
        properties += sum(len(node[key]) for key in _PROPERTY_KEYWORDS if isinstance(node.get(key), dict))
        choices += sum(len(node[key]) for key in _CHOICE_KEYWORDS if isinstance(node.get(key), list))
        if properties > MAX_SCHEMA_PROPERTIES:
            raise _limit_error(param, f"it has more than {MAX_SCHEMA_PROPERTIES} properties")
        if choices > MAX_SCHEMA_CHOICES:
            raise _limit_error(param, f"it has more than {MAX_SCHEMA_CHOICES} enum values and alternatives")
    if reference := _find_circular_reference(schema):
        message = f"{param}: the schema refers to itself without a value in between ({reference!r}). fix: remove it"
        raise ApiError(400, "bad_grammar", message, param=param)


def check_grammar(grammar: Grammar, param: str) -> None:
    """Raise ApiError unless the JSON schema of a grammar is within the limits. Other kinds have no limits here."""
    if grammar.kind == "json_schema":
        try:
            schema = msgspec.json.decode(grammar.text)
        except (msgspec.DecodeError, RecursionError):
            schema = None
        if not isinstance(schema, dict):
            raise ApiError(400, "bad_grammar", f"{param}: the schema is not a JSON object. fix: send one", param=param)
        check_schema(cast("dict[str, Any]", schema), param)


def _nodes(schema: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (depth, object) for every object in a schema."""
    stack: list[tuple[int, Any]] = [(1, schema)]
    while stack:
        depth, node = stack.pop()
        if isinstance(node, dict):
            fields = cast("dict[str, Any]", node)
            yield depth, fields
            stack += [(depth + 1, value) for value in fields.values() if isinstance(value, dict | list)]
        elif isinstance(node, list):
            stack += [(depth + 1, value) for value in cast("list[Any]", node) if isinstance(value, dict | list)]


def _find_circular_reference(schema: Mapping[str, Any]) -> str:
    """A `$ref` that leads back to itself without passing a property or an item; empty if there is none."""
    finished: set[int] = set()
    for _, start in _nodes(schema):
        if id(start) in finished:
            continue
        path: list[tuple[int, str, Iterator[tuple[str, Any]]]] = [(id(start), "", _same_position(schema, start))]
        open_nodes = {id(start)}
        while path:
            node_id, _, successors = path[-1]
            name, successor = next(successors, ("", None))
            if successor is None:
                path.pop()
                open_nodes.discard(node_id)
                finished.add(node_id)
            elif id(successor) in open_nodes:
                return next((label for label in (name, *(entry[1] for entry in reversed(path))) if label), "$ref")[:64]
            elif id(successor) not in finished:
                path.append((id(successor), name, _same_position(schema, successor)))
                open_nodes.add(id(successor))
    return ""


def _same_position(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (reference, schema) for the schemas that describe the same value as a node."""
    reference = node.get("$ref")
    if isinstance(reference, str) and (target := _resolve(schema, reference)) is not None:
        yield reference, target
    for keyword in _SAME_POSITION_KEYWORDS:
        members = node.get(keyword)
        for member in cast("list[Any]", members) if isinstance(members, list) else ():
            if isinstance(member, dict):
                yield "", cast("dict[str, Any]", member)


def _resolve(schema: Mapping[str, Any], reference: str) -> Mapping[str, Any] | None:
    """Target of a local reference (`#/$defs/name`); None if it has none here."""
    if reference not in ("#", "") and not reference.startswith("#/"):
        return None
    target: Any = schema
    for token in reference.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        target = cast("dict[str, Any]", target).get(key) if isinstance(target, dict) else None
    return cast("dict[str, Any]", target) if isinstance(target, dict) else None


def _limit_error(param: str, reason: str) -> ApiError:
    message = f"{param}: the schema is too large: {reason}. fix: send a smaller schema"
    return ApiError(400, "bad_grammar", message, param=param)
