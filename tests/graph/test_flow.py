"""What a node takes from its body, and what therefore waits for what."""

from __future__ import annotations

import pytest

from mstar.graph import ir
from mstar.graph.flow import access, drains, fills, order
from mstar.graph.types import INT, ListType
from tests.graph.sample_graphs import FIRST, KV, LAST, NEXT, STATE, TOKEN, call, repeat, val, valid_walk

A, B, C = val("a"), val("b"), val("c")
EXTEND = call("lm.decode", [], token=A, kv=STATE, extends=[STATE])
LOOK = call("lm.score", [], kv=STATE)


def test_access_of_a_call():
    has = access(EXTEND)
    assert has.reads == {"a", "kv"}
    assert has.extends == {("state", "kv")}
    assert has.views == frozenset()
    assert access(LOOK).views == {("state", "kv")}
    assert access(LOOK).extends == frozenset()
    assert has.touches == access(LOOK).touches == {("state", "kv")}


def test_constants_are_not_read():
    assert access(call("lm.scale", [A], by=2, mode="fast")).reads == frozenset()


@pytest.mark.parametrize(
    ("node", "reads", "extends"),
    [
        (ir.New("lm", STATE), set(), set()),
        (ir.Fork(STATE, val("kv.2", KV)), {"kv"}, set()),
        (ir.Const(1, A), set(), set()),
        (ir.Take(A, B, C), {"a", "b"}, set()),
        (ir.Field(A, "x", B), {"a"}, set()),
        (ir.Open("s", TOKEN), set(), set()),
        (ir.Put("s", A), {"a"}, {("put", "s")}),
        (ir.Get("s", A, B), {"a"}, {("get", "s")}),
        (ir.Emit("Text", A), {"a"}, {("emit", "Text")}),
    ],
)
def test_access_of_single_nodes(node, reads, extends):
    assert access(node).reads == reads
    assert access(node).extends == extends


def test_access_of_a_region_is_what_it_takes_from_outside():
    loop = next(node for node in valid_walk().body if isinstance(node, ir.Loop))
    has = access(loop)
    assert has.reads == {"max_tokens", "prefill", "kv"}
    assert has.extends == {("state", "kv"), ("put", "codes"), ("put", "notes")}
    choice = next(node for node in valid_walk().body if isinstance(node, ir.Choose))
    assert access(choice).reads == {"is_end.2", "token.2", "kv.2"}


def test_what_a_region_makes_for_itself_is_its_own():
    inside = (
        ir.New("lm", STATE),
        EXTEND,
        ir.Open("own", TOKEN),
        ir.Put("own", A),
        ir.Get("own", A, B),
        ir.Windows("own", C, val("fresh", INT), 1, 1, 1, False, ()),
    )
    has = access(repeat("i", *inside))
    assert has.reads == {"a"}
    assert has.touches == frozenset()
    assert fills(repeat("i", *inside)) == drains(repeat("i", *inside)) == frozenset()


def test_who_fills_and_who_drains():
    nodes = {type(node).__name__ + str(number): node for number, node in enumerate(valid_walk().body)}
    assert {name: sorted(fills(node)) for name, node in nodes.items() if fills(node)} == {"Loop8": ["codes", "notes"]}
    assert {name: sorted(drains(node)) for name, node in nodes.items() if drains(node)} == {
        "Windows9": ["codes"],
        "Loop10": ["notes"],
    }


def waits(*body):
    return [sorted(before) for before in order(body)]


def test_a_value_is_waited_for():
    assert waits(call("x.a", [A]), call("x.b", [B]), call("x.c", [C], a=A, b=B)) == [[], [], [0, 1]]


def test_program_order_alone_means_nothing():
    assert waits(call("x.a", [A]), call("x.b", [B]), ir.Emit("Text", FIRST), ir.Emit("Audio", NEXT)) == [[], [], [], []]


def test_states_are_extended_in_order_and_looked_at_side_by_side():
    assert waits(EXTEND, LOOK, LOOK, EXTEND, EXTEND, LOOK) == [[], [0], [0], [0, 1, 2], [3], [4]]


def test_readers_are_waited_for_once():
    """A third writer waits for the second, which has waited for all before."""
    assert waits(LOOK, EXTEND, EXTEND) == [[], [0], [1]]


def test_a_fork_looks_at_its_state():
    assert waits(EXTEND, ir.Fork(STATE, val("kv.2", KV)), EXTEND) == [[], [0], [0, 1]]


def test_one_modality_is_emitted_in_order():
    assert waits(ir.Emit("Text", A), ir.Emit("Audio", A), ir.Emit("Text", B)) == [[], [], [0]]


def test_the_ends_of_a_stream_are_two_things():
    assert waits(ir.Put("s", A), ir.Put("s", A), ir.Get("s", A, B), ir.Get("s", A, C)) == [[], [0], [], [2]]


def test_windows_do_not_wait_for_what_fills_them():
    window = ir.Windows("s", A, val("fresh", INT), 1, 1, 1, False, ())
    assert waits(ir.Open("s", TOKEN), repeat("i", ir.Put("s", B)), window) == [[], [], []]


def test_regions_wait_as_a_whole():
    each = ir.Each(val("items", ListType(TOKEN)), C, val("index", INT), (), (LOOK,))
    assert waits(repeat("i", EXTEND), each, repeat("j", EXTEND)) == [[], [0], [0, 1]]


def test_the_order_of_the_good_walk():
    """By number: 5 is the prefill, 8 the loop, 9 its windows, 10 its get, 11 the each, 13 the choice."""
    before = order(valid_walk().body)
    assert before[8] == {0, 4, 5}
    assert before[9] == frozenset()
    assert before[10] == {5}
    assert before[11] == {1}
    assert before[12] == {8}
    assert before[13] == {1, 8, 11, 12}
    assert LAST in ir.defines(valid_walk().body[8])
