"""Schemas above a limit are rejected; usual schemas, recursive ones included, are not."""

import pytest

from mstar.requests import Grammar
from mstar.server.errors import ApiError
from mstar.server.openai import schema_limits
from mstar.server.openai.schema_limits import check_grammar, check_schema

STRING = {"type": "string"}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": {"properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}},
}


def nested(levels):
    schema = STRING
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def wide(count):
    return {"type": "object", "properties": {f"p{number}": STRING for number in range(count)}}


ACCEPTED = {
    "any": {},
    "linked list": TREE,
    "two references to one definition": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {}}},
    "reference to a whole schema by an item": {"type": "array", "items": {"$ref": "#"}},
    "unknown reference": {"$ref": "#/$defs/missing"},
    "remote reference": {"$ref": "https://example.com/schema"},
    "property called $ref": {"properties": {"$ref": STRING}},
    "most properties": wide(schema_limits.MAX_SCHEMA_PROPERTIES),
    "deepest": nested(schema_limits.MAX_SCHEMA_DEPTH - 1),
}
REJECTED = {
    "properties": (wide(schema_limits.MAX_SCHEMA_PROPERTIES + 1), "more than 256 properties"),
    "properties of two objects": ({"anyOf": [wide(200), wide(200)]}, "more than 256 properties"),
    "depth": (nested(schema_limits.MAX_SCHEMA_DEPTH), "more than 64 levels"),
    "great depth": (nested(900), "more than 64 levels"),
    "enum": ({"enum": [*range(1001)]}, "more than 1000 enum values"),
    "bytes": ({"description": "x" * (64 << 10)}, "maximum 65536"),
    "circular": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "refers to itself",
    ),
    "circular through anyOf": ({"anyOf": [STRING, {"$ref": "#"}]}, "refers to itself"),
    "circular below a property": (
        {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}},
        "refers to itself",
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_usual_schema_is_accepted(name):
    check_schema(ACCEPTED[name], "schema")
    check_grammar(Grammar.json_schema(ACCEPTED[name]), "schema")


@pytest.mark.parametrize("name", REJECTED)
def test_a_schema_above_a_limit_is_rejected(name):
    schema, reason = REJECTED[name]
    with pytest.raises(ApiError, match=reason) as raised:
        check_schema(schema, "schema")
    assert (raised.value.status, raised.value.code, raised.value.param) == (400, "bad_grammar", "schema")


@pytest.mark.parametrize("text", ["[]", "{", "1", "[" * 5000])
def test_a_grammar_that_is_no_schema_is_rejected(text):
    with pytest.raises(ApiError, match="not a JSON object"):
        check_grammar(Grammar("json_schema", text), "grammar")


def test_other_grammars_have_no_schema_limits():
    check_grammar(Grammar.regex("[a-z]+"), "grammar")
