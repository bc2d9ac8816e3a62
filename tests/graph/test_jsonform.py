"""The JSON form of a walk loses nothing."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass

import pytest

from mstar.graph.jsonform import from_json, to_json
from tests.examples.test_examples import NAMES, load, model_of
from tests.graph.sample_graphs import valid_walk


def sites(part):
    """The source line of every part, which equality leaves aside."""
    if is_dataclass(part):
        inner = [line for field in fields(part) for line in sites(getattr(part, field.name))]
        return [getattr(part, "site", None), *inner]
    return [line for item in part for line in sites(item)] if isinstance(part, tuple) else []


def same(one, other):
    return one == other and sites(one) == sites(other)


def test_the_good_walk_comes_back():
    assert same(from_json(to_json(valid_walk())), valid_walk())


@pytest.mark.parametrize("name", NAMES)
def test_examples_come_back(name):
    for graph in model_of(load(name)).graphs().values():
        again = from_json(to_json(graph))
        assert same(again, graph)
        assert to_json(again) == to_json(graph)


def test_it_is_one_line_of_plain_objects():
    text = to_json(valid_walk())
    assert "\n" not in text
    data = json.loads(text)
    assert data["is"] == "Walk"
    assert data["body"][0] == {
        "is": "New",
        "component": "lm",
        "out": {"is": "Value", "name": "kv", "type": {"is": "StateType", "kind": "KV"}},
        "site": "f.py:1",
    }


def test_only_a_walk_is_a_walk():
    with pytest.raises(ValueError, match="the JSON is a ObjectType, not a Walk"):
        from_json('{"is": "ObjectType", "name": "int"}')
