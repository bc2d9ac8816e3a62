"""The text form and the fingerprint of a walk."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

from mstar.graph import ir
from mstar.graph.text import _Writer, fingerprint, render
from mstar.graph.types import INT
from tests.examples.test_examples import NAMES, load, model_of
from tests.graph.sample_graphs import FIRST, repeat, val, valid_walk, walk, walk_with_change

GOLDEN = Path(__file__).parent / "golden"


def renamed(part, value, stream):
    """A walk with other names for its values and streams."""
    if isinstance(part, ir.Value):
        return replace(part, name=value(part.name))
    if is_dataclass(part):
        changed = {field.name: renamed(getattr(part, field.name), value, stream) for field in fields(part)}
        if "stream" in changed:
            changed["stream"] = stream(part.stream)
        return replace(part, **changed)
    return tuple(renamed(inner, value, stream) for inner in part) if isinstance(part, tuple) else part


def test_every_kind_of_node_reads_as_before(golden):
    golden(GOLDEN / "every_node.txt", render(valid_walk()))


def test_what_a_walk_returns_is_the_last_line():
    assert render(walk(inputs=[FIRST])) == "walk w(%prefill: int64[1])\n"
    assert render(walk(inputs=[FIRST], outputs=[FIRST])).endswith("\n  return %prefill\n")
    as_tuple = replace(walk(inputs=[FIRST], outputs=[FIRST]), is_tuple=True)
    assert render(as_tuple).endswith("\n  return %prefill,\n")
    assert fingerprint(as_tuple) != fingerprint(replace(as_tuple, is_tuple=False))


def test_lines_of_source_do_not_show():
    elsewhere = replace(
        valid_walk(),
        site="other.py:99",
        body=(replace(valid_walk().body[0], site="other.py:98"), *valid_walk().body[1:]),
    )
    assert render(elsewhere) == render(valid_walk())
    assert elsewhere == valid_walk()


def test_a_region_is_no_single_line():
    with pytest.raises(TypeError, match="Loop has bodies and is not a single line"):
        _Writer(str, str).leaf(repeat("i"))


def test_names_do_not_change_the_fingerprint():
    other = renamed(valid_walk(), lambda name: f"x_{name[::-1]}", lambda name: f"y_{name}")
    assert other != valid_walk()
    assert fingerprint(other) == fingerprint(valid_walk())


def test_swapped_names_change_the_fingerprint():
    """Which value goes where is structure."""
    graph = walk(ir.Take(val("a"), val("b", INT), val("c")), inputs=[val("a"), val("b", INT)])
    crossed = replace(graph, inputs=graph.inputs[::-1])
    assert fingerprint(graph) != fingerprint(crossed)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (ir.New, {"component": "talker"}),
        (ir.Const, {"literal": 1}),
        (ir.Const, {"literal": "0"}),
        (ir.Field, {"name": "other"}),
        (ir.Call, {"op": "other"}),
        (ir.Call, {"component": "other"}),
        (ir.Call, {"static": (("mode", "slow"),)}),
        (ir.Call, {"static": ()}),
        (ir.Call, {"extends": ()}),
        (ir.Call, lambda call: {"args": call.args[:-1]}),
        (ir.Put, lambda put: (put, put)),
        (ir.Put, {"stream": "notes"}),
        (ir.Open, {"item": INT}),
        (ir.Get, {"default": val("token.2")}),
        (ir.Emit, {"kind": "Image"}),
        (ir.Emit, {"clock": (("rate", 16000),)}),
        (ir.Loop, {"steps": 7}),
        (ir.Loop, {"stop": ()}),
        (ir.Loop, {"collect": ()}),
        (ir.Loop, lambda loop: {"carry": (replace(loop.carry[0], next=loop.carry[0].inner),)}),
        (ir.Windows, {"size": 5}),
        (ir.Windows, {"stride": 3}),
        (ir.Windows, {"first": 3}),
        (ir.Windows, {"flush": True}),
        (ir.Each, {"collect": ()}),
        (ir.Each, {"body": ()}),
        (ir.Choose, lambda choice: {"then": choice.otherwise, "otherwise": choice.then}),
        (ir.Take, {"index": val("max_tokens", INT)}),
    ],
)
def test_structure_changes_the_fingerprint(kind, change):
    other = walk_with_change(kind, change)
    assert other != valid_walk()
    assert fingerprint(other) != fingerprint(valid_walk())
    assert render(other) != render(valid_walk())


def test_examples_have_fingerprints_of_their_own():
    graphs = [graph for name in NAMES for graph in model_of(load(name)).graphs().values()]
    changed = {fingerprint(graph) for graph in graphs}
    assert len(changed) == len(graphs) >= 10
    assert all(re.fullmatch(r"[0-9a-f]{64}", one) for one in changed)
