"""Every rule of a well-formed graph, broken one at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mstar.graph import ir
from mstar.graph.check import check
from mstar.graph.types import BOOL, INT, ListType, ObjectType, TensorType, is_flag, item_of, stacked_type
from tests.graph.sample_graphs import (
    FIRST,
    FLOAT,
    KV,
    LAST,
    NEXT,
    PROMPT,
    STATE,
    TOKEN,
    TOKENS,
    call,
    val,
    valid_walk,
    walk_with_change,
)

NOWHERE = val("nowhere")
WINDOW = TensorType("int64", (4, 1))


def test_the_good_walk_is_good():
    assert check(valid_walk()) == []


def carry(**changes):
    return lambda loop: {"carry": (replace(loop.carry[0], **changes),)}


def collect(**changes):
    return lambda region: {"collect": (replace(region.collect[0], **changes),)}


def arm(**changes):
    return lambda choice: {"then": replace(choice.then, **changes)}


BROKEN = {
    # names and scopes
    "%kv is defined twice": (ir.Fork, {"out": STATE}),
    "%prompt is defined twice": (ir.Const, {"out": replace(PROMPT, type=INT)}),
    "%token is defined twice": (ir.Windows, {"fresh": val("token", INT)}),
    "%nowhere is not defined in this scope": (ir.Emit, {"value": NOWHERE}),
    "%decode is not defined in this scope": (ir.Put, {"value": NEXT}),
    "%prefill is defined as int64[1] and used as int64[T]": (ir.Call, {"args": (("x", val("prefill", TOKENS)),)}, 2),
    "stream ~codes is opened twice": (ir.Open, {"stream": "codes"}, 1),
    "stream ~gone is not open in this scope": (ir.Put, {"stream": "gone"}),
    # states
    "%prefill is extended but is not a state argument": (ir.Call, {"extends": (FIRST,)}, 1),
    "%kv.2 is extended but is not a state argument": (ir.Call, {"extends": (val("kv.2", KV),)}, 1),
    "%kv is int, not a state": (ir.New, {"out": val("kv", INT)}),
    "%kv.2 is int, not a state": (ir.Fork, {"out": val("kv.2", INT)}),
    "%kv is a state and cannot be put into a stream": (ir.Put, {"value": STATE}),
    "%kv is a state and cannot be emitted": (ir.Emit, {"value": STATE}, 0),
    "%kv is a state and cannot be carried by a loop": (ir.Loop, carry(init=STATE)),
    "%kv is a state and cannot be collected": (ir.Each, collect(inner=STATE)),
    "%kv is a state and cannot be the result of an arm": (ir.Choose, arm(results=(STATE,))),
    # elements
    "index %max_tokens is float, not int": (ir.Take, {"index": val("max_tokens", FLOAT)}),
    "element %prompt.2 is float, not int64[]": (ir.Take, {"out": val("prompt.2", FLOAT)}),
    "element %prompt.2 is int64[], not None": (ir.Take, {"src": val("sampling", ObjectType("Sampling"))}),
    # streams
    "stream ~codes has items of type int64[1], not int": (ir.Put, {"value": val("max_tokens", INT)}),
    "stream ~notes has items of type int64[1], not int": (ir.Get, {"default": val("max_tokens", INT)}),
    "stream ~notes has items of type int64[1], not float": (ir.Get, {"out": val("got", FLOAT)}),
    # loops
    "steps %prefill is int64[1], not int": (ir.Loop, {"steps": FIRST}),
    "step %step is float, not int": (ir.Loop, {"step": val("step", FLOAT)}),
    "carry `token`: %prefill is int64[1], not float": (ir.Loop, carry(inner=val("token", FLOAT))),
    "carry `token`: %is_end is bool[], not int64[1]": (ir.Loop, carry(next=val("is_end", TensorType("bool")))),
    "carry `token`: %token.2 is float, not int64[1]": (ir.Loop, carry(out=val("token.2", FLOAT))),
    "%sound is not defined in this scope": (ir.Loop, carry(next=val("sound"))),
    "%score is not defined in this scope": (ir.Loop, collect(inner=val("score"))),
    "%got is not defined in this scope": (ir.Loop, {"stop": (val("got", BOOL),)}),
    "collection %text is float, not list[int64[1]]": (ir.Loop, collect(out=val("text", FLOAT))),
    "%decode is int64[1], not a bool": (ir.Loop, {"stop": (NEXT,)}),
    # windows
    "these windows skip items or never fill: size=4 stride=5 first=4": (ir.Windows, {"stride": 5}),
    "these windows skip items or never fill: size=4 stride=0 first=4": (ir.Windows, {"stride": 0}),
    "these windows skip items or never fill: size=4 stride=2 first=0": (ir.Windows, {"first": 0}),
    "these windows skip items or never fill: size=4 stride=2 first=5": (ir.Windows, {"first": 5}),
    "window %window is int64[4, 1], not int64[3, 1]": (ir.Windows, {"size": 3, "first": 3}),
    "window %window is list[int64[1]], not int64[4, 1]": (
        ir.Windows,
        {"flush": True, "item": val("window", ListType(TOKEN))},
    ),
    "stream ~missing is not open in this scope": (ir.Windows, {"stream": "missing"}),
    "fresh %fresh is float, not int": (ir.Windows, {"fresh": val("fresh", FLOAT)}),
    # each and choose
    "item %item is float, not int64[1]": (ir.Each, {"item": val("item", FLOAT)}),
    "item %item is int64[1], not None": (ir.Each, {"items": val("sampling", ObjectType("Sampling"))}),
    "index %index is float, not int": (ir.Each, {"index": val("index", FLOAT)}),
    "collection %scores is float, not list[float]": (ir.Each, collect(out=val("scores", FLOAT))),
    "%token.2 is int64[1], not a bool": (ir.Choose, {"flag": LAST}),
    "an arm returns 0 values, the choice has 1": (ir.Choose, arm(results=())),
    "arm result %max_tokens is int, not int64[1]": (ir.Choose, arm(results=(val("max_tokens", INT),))),
    "%item is not defined in this scope": (ir.Choose, arm(results=(val("item"),))),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_violated_rule_is_reported(message):
    kind, change, *nth = BROKEN[message]
    problems = check(walk_with_change(kind, change, nth=nth[0] if nth else 0))
    assert f"walk `speak`: {message}" in [problem.message for problem in problems]
    assert all(problem.fix for problem in problems)


def test_inputs_have_names_of_their_own():
    graph = replace(valid_walk(), inputs=(PROMPT, *valid_walk().inputs))
    assert [problem.message for problem in check(graph)] == ["walk `speak`: %prompt is defined twice"]


def test_outputs_exist():
    (problem,) = check(replace(valid_walk(), outputs=(NOWHERE,)))
    assert problem.message == "walk `speak`: %nowhere is not defined in this scope"
    assert problem.site == "f.py:0"


def test_a_problem_names_the_line_of_its_node():
    (problem,) = check(walk_with_change(ir.Take, {"out": val("prompt.2", FLOAT)}))
    assert str(problem) == (
        "f.py:4: walk `speak`: element %prompt.2 is float, not int64[]\n  fix: make the two types equal"
    )


def test_windows_that_are_cut_may_have_any_size():
    anything = val("window", TensorType("int64", ("W#1", 1)))
    decode = call("codec.decode", [val("sound")], codes=anything)
    assert check(walk_with_change(ir.Windows, {"flush": True, "item": anything, "body": (decode,)})) == []


def test_a_stream_of_another_body_does_not_exist():
    """A stream is seen in the body that opens it and inside; not after."""
    inner = (ir.Open("own", TOKEN), ir.Put("own", FIRST), ir.Get("own", FIRST, val("own.2")))
    body = (ir.Loop(3, val("i", INT), (), (), (), inner), ir.Put("own", FIRST))
    problems = check(ir.Walk("w", (FIRST,), body))
    assert [problem.message for problem in problems] == ["walk `w`: stream ~own is not open in this scope"]


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        (BOOL, True),
        (TensorType("bool"), True),
        (TensorType("bool", (1,)), True),
        (TensorType("bool", (2,)), False),
        (TensorType("bool", ("N",)), False),
        (TensorType("int64"), False),
        (INT, False),
        (KV, False),
    ],
)
def test_what_is_a_flag(type_, expected):
    assert is_flag(type_) is expected


def test_items_and_stacks():
    assert item_of(ListType(TOKENS)) == TOKENS
    assert item_of(WINDOW) == TOKEN
    assert item_of(TensorType("int64")) is None
    assert item_of(INT) is None
    assert stacked_type(TOKEN, 4) == WINDOW
    assert stacked_type(INT, 4) == ListType(INT)
    assert [str(type_) for type_ in (WINDOW, ListType(TOKENS), KV, INT)] == [
        "int64[4, 1]", "list[int64[T]]", "state KV", "int",
    ]  # fmt: skip
