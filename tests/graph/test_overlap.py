"""Race and deadlock rules of walks, each violated once."""

from __future__ import annotations

from mstar.graph import ir
from mstar.graph.overlap import check_overlap
from mstar.graph.types import INT, ListType
from tests.graph.sample_graphs import FIRST, KV, STATE, TOKEN, call, repeat, val, valid_walk, walk

OTHER = val("other", KV)
OPEN = ir.Open("codes", TOKEN, "f.py:1")
READ = val("read")
GET = ir.Get("codes", FIRST, READ, "f.py:21")


def fill(*more, site="f.py:10"):
    return repeat("i", ir.Put("codes", FIRST, "f.py:11"), *more, site=site)


def read(*more, site="f.py:20"):
    return repeat("j", GET, *more, site=site)


def problems_of(*body, inputs=(FIRST, STATE), is_whole=True):
    """The problems as (line, text)."""
    problems = check_overlap(walk(*body, inputs=inputs), is_whole=is_whole)
    assert all(problem.fix for problem in problems)
    return [(problem.site, problem.message.removeprefix("walk `w`: ")) for problem in problems]


def test_a_valid_walk_has_no_problems():
    assert check_overlap(valid_walk()) == []
    assert problems_of(OPEN, fill(), read()) == []


# ---------------------------------------------------------------- 1: streams
def test_a_stream_is_opened_first():
    assert problems_of(fill(), OPEN, read()) == [("f.py:1", "stream ~codes is used before it is created")]


def test_a_stream_is_filled():
    assert problems_of(OPEN, read()) == [("f.py:1", "stream ~codes is never filled")]


def test_a_stream_is_read():
    assert problems_of(OPEN, fill()) == [("f.py:1", "stream ~codes is never read")]


def test_an_unused_stream_is_reported_once():
    assert problems_of(OPEN) == [("f.py:1", "stream ~codes is never filled")]


def test_an_incomplete_graph_has_no_missing_puts_or_reads():
    assert problems_of(OPEN, is_whole=False) == []
    assert problems_of(OPEN, fill(), is_whole=False) == []


def test_no_node_both_fills_and_reads():
    message = "deadlock: one loop both fills and reads stream ~codes"
    assert problems_of(OPEN, fill(GET)) == [("f.py:10", message)]


def test_a_stream_is_filled_before_it_is_read():
    message = "stream ~codes is read before the last code that fills it"
    assert problems_of(OPEN, read(), fill()) == [("f.py:20", message)]


def test_streams_of_inner_bodies_are_seen_too():
    assert problems_of(repeat("k", OPEN, fill())) == [("f.py:1", "stream ~codes is never read")]
    arm = ir.Arm((OPEN, fill()), ())
    assert problems_of(ir.Choose(val("f"), ir.Arm((), ()), arm, ())) == [("f.py:1", "stream ~codes is never read")]


# ---------------------------------------------------------------- 2: no waiting
def uses(state=STATE):
    return call("lm.decode", [], token=FIRST, kv=state, extends=[state])


def test_both_sides_cannot_use_one_state():
    message = "both sides of stream ~codes use the state %kv, at line 10 and here"
    assert problems_of(OPEN, fill(uses()), read(uses())) == [("f.py:20", message)]


def test_one_side_cannot_read_a_state_that_the_other_extends():
    message = "both sides of stream ~codes use the state %kv, at line 10 and here"
    look = call("lm.score", [], kv=STATE)
    assert problems_of(OPEN, fill(uses()), read(look)) == [("f.py:20", message)]
    assert problems_of(OPEN, fill(look), read(uses())) == [("f.py:20", message)]


def test_both_sides_can_read_a_state():
    look = call("lm.score", [], kv=STATE)
    assert problems_of(OPEN, fill(look), read(look)) == []


def test_both_sides_cannot_emit_one_modality():
    message = "both sides of stream ~codes emit Text, at line 10 and here"
    assert problems_of(OPEN, fill(ir.Emit("Text", FIRST)), read(ir.Emit("Text", READ))) == [("f.py:20", message)]
    assert problems_of(OPEN, fill(ir.Emit("Text", FIRST)), read(ir.Emit("Latents", READ))) == []


def test_both_sides_cannot_fill_a_second_stream():
    second, put = ir.Open("second", TOKEN, "f.py:2"), ir.Put("second", FIRST)
    body = (OPEN, second, fill(put), read(put), repeat("k", ir.Get("second", FIRST, val("last"))))
    message = "both sides of stream ~codes put into stream ~second, at line 10 and here"
    assert problems_of(*body) == [("f.py:20", message)]


def test_both_sides_cannot_read_a_second_stream():
    second, get = ir.Open("second", TOKEN, "f.py:2"), ir.Get("second", FIRST, val("got"))
    body = (OPEN, second, repeat("k", ir.Put("second", FIRST)), fill(get), read(get))
    message = "both sides of stream ~codes read stream ~second with get, at line 10 and here"
    assert ("f.py:20", message) in problems_of(*body)


def filling():
    """A loop that fills the stream and carries a value."""
    carry = (ir.Carry("x", FIRST, val("x"), FIRST, val("x.2")),)
    return ir.Loop(3, val("i", INT), carry, (), (), (ir.Put("codes", FIRST),), "f.py:10")


def test_a_reader_cannot_need_the_result_of_its_writer():
    reader = read(call("lm.use", [], last=val("x.2")))
    message = "deadlock: this reads stream ~codes but needs %x.2, the result of the code that fills it (line 10)"
    assert problems_of(OPEN, filling(), reader) == [("f.py:20", message)]


def test_a_reader_cannot_need_the_result_of_its_writer_through_a_node():
    between = call("lm.use", [val("y")], last=val("x.2"))
    message = "deadlock: this reads stream ~codes but waits for another node, which cannot finish before this starts"
    assert problems_of(OPEN, filling(), between, read(call("lm.use", [], y=val("y")))) == [("f.py:20", message)]


def test_a_reader_cannot_need_the_result_of_its_writer_through_a_stream():
    """The second reader waits for what ends only once it reads."""
    second = ir.Open("second", TOKEN, "f.py:2")
    carry = (ir.Carry("x", FIRST, val("x"), FIRST, val("x.2")),)
    both = (ir.Put("codes", FIRST), ir.Put("second", FIRST))
    maker = ir.Loop(3, val("i", INT), carry, (), (), both, "f.py:10")
    late = repeat("k", ir.Get("second", FIRST, val("got")), call("lm.use", [], x=val("x.2")), site="f.py:30")
    problems = problems_of(OPEN, second, maker, read(), late)
    assert [site for site, _ in problems] == ["f.py:30"]
    assert "this reads stream ~second but needs %x.2" in problems[0][1]


def test_a_reader_cannot_need_the_result_of_another_reader():
    """That reader ends after what fills both streams, which ends only once this one reads."""
    second = ir.Open("second", TOKEN, "f.py:2")
    maker = fill(ir.Put("second", FIRST))
    carry = (ir.Carry("y", FIRST, val("y"), READ, val("y.2")),)
    early = ir.Loop(3, val("j", INT), carry, (), (), (GET,), "f.py:20")
    late = repeat("k", ir.Get("second", FIRST, val("got")), call("lm.use", [], y=val("y.2")), site="f.py:30")
    problems = problems_of(OPEN, second, maker, early, late)
    assert [site for site, _ in problems] == ["f.py:30"]
    message = "deadlock: this reads stream ~second but waits for line 20, which cannot finish before this starts"
    assert problems[0][1] == message


def test_a_node_without_a_line_is_named_without_one():
    problems = problems_of(OPEN, fill(uses(), site=""), read(uses(), site=""))
    assert problems == [("", "both sides of stream ~codes use the state %kv, at another node and here")]


# ---------------------------------------------------------------- 3: each
def parallel_each(*body):
    return ir.Each(val("items", ListType(TOKEN)), val("item"), val("index", INT), (), body, "f.py:5")


def alone(*body, before=(), after=()):
    return problems_of(*before, parallel_each(*body), *after, inputs=(FIRST, STATE, val("items", ListType(TOKEN))))


def test_the_bodies_of_an_each_share_nothing_they_change():
    text = "the bodies of an each (line 5) run in parallel, so they cannot all "
    extend = call("lm.decode", [], kv=STATE, extends=[STATE], site="f.py:6")
    assert alone(extend) == [("f.py:6", text + "use the state %kv")]
    assert alone(ir.Emit("Text", FIRST, site="f.py:6")) == [("f.py:6", text + "emit Text")]
    put = ir.Put("codes", FIRST, "f.py:6")
    assert alone(put, before=(OPEN,), after=(read(),)) == [("f.py:6", text + "put into stream ~codes")]
    assert alone(GET, before=(OPEN, fill())) == [("f.py:21", text + "read stream ~codes with get")]


def test_the_innermost_line_is_named():
    deep = repeat("k", ir.Emit("Text", FIRST, site="f.py:7"), site="f.py:6")
    assert [site for site, _ in alone(deep)] == ["f.py:7"]


def test_the_bodies_of_an_each_can_change_their_own_states():
    own, mine = ir.New("lm", OTHER), call("lm.decode", [], kv=OTHER, extends=[OTHER])
    assert alone(own, mine) == []
    assert alone(call("lm.score", [], kv=STATE)) == []
    assert alone(ir.Fork(STATE, OTHER), mine) == []


# ---------------------------------------------------------------- 4: owners
def test_a_state_belongs_to_one_component():
    message = "talker.decode(kv=...) got a state that belongs to `lm`"
    made = ir.New("lm", OTHER)
    foreign = call("talker.decode", [], kv=OTHER, extends=[OTHER], site="f.py:9")
    assert problems_of(made, foreign) == [("f.py:9", message)]


def test_a_fork_belongs_to_the_component_of_its_state():
    second = val("second", KV)
    body = (ir.New("lm", OTHER), ir.Fork(OTHER, second), ir.Fork(second, val("third", KV)))
    foreign = call("talker.decode", [], kv=val("third", KV), site="f.py:9")
    assert [site for site, _ in problems_of(*body, foreign)] == ["f.py:9"]


def test_a_state_from_outside_belongs_to_its_first_user():
    first, then = call("lm.decode", [], kv=STATE), call("talker.decode", [], kv=STATE, site="f.py:9")
    assert problems_of(first, first) == []
    assert problems_of(first, repeat("k", then)) == [
        ("f.py:9", "talker.decode(kv=...) got a state that belongs to `lm`")
    ]


def test_windows_are_in_the_body_that_makes_their_stream():
    window = ir.Windows("codes", val("window"), val("fresh", INT), 1, 1, 1, False, (), "f.py:30")
    message = "windows of stream ~codes inside a region, which can run them several times or never"
    assert problems_of(OPEN, fill(), repeat("k", window)) == [("f.py:30", message)]
    assert problems_of(OPEN, fill(), ir.Choose(val("f"), ir.Arm((window,), ()), ir.Arm((), ()), ())) == [
        ("f.py:30", message)
    ]
    assert problems_of(OPEN, fill(), window) == []
    assert problems_of(repeat("k", OPEN, fill(), window)) == []
