"""States go from one engine to another; room is made for them, and who had to leave for that is told."""

import gc

import numpy as np
import pytest

from mstar.engine.engine import Engine
from mstar.engine.jobs import Done
from mstar.nn.pages import NeverFits, OutOfPages
from mstar.testing.toy_speech import CodecState, StreamingCodec
from mstar.testing.toys import SampledLM, Sampling
from mstar.transfer.values import pack, unpack
from mstar.walk.states import KV
from tests.engine.parts import Fragile, Notes, Paged, PagedNotes, numbers, run

PAGES, SIZE = 4, 2


def filled(engine, paged, *lengths):
    """States that have read so many numbers each."""
    made = [engine.new_state(paged, PagedNotes) for _ in lengths]
    for notes, length in zip(made, lengths, strict=True):
        (result,) = run(paged, "read", {"x": numbers(*range(length)), "notes": notes}, engine=engine)
        assert isinstance(result, Done)
    return made


def test_a_state_goes_on_where_it_was_loaded():
    here, there = Engine(), Engine()
    one, other = Paged(PAGES, SIZE), Paged(PAGES, SIZE)
    (notes,) = filled(here, one, 5)
    moved = there.load(other, PagedNotes, unpack(pack(here.export(notes))))
    results = [
        run(paged, "read", {"x": numbers(7), "notes": state}, engine=engine)[0].values[0].tolist()
        for paged, state, engine in ((one, notes, here), (other, moved, there))
    ]
    assert results[0] == results[1]
    one.pool.check()
    other.pool.check()


def test_a_state_that_has_left_is_brought_back_to_be_exported():
    engine, paged = Engine(), Paged(PAGES, SIZE)
    first, second = filled(engine, paged, 5, 8)
    assert not first.is_resident
    assert engine.export(first) == [0, 1, 2, 3, 4]
    assert not second.is_resident, "it made room"


def test_others_leave_for_a_state_that_comes_and_this_is_told_once():
    engine, paged = Engine(), Paged(PAGES, SIZE)
    first, second, third = filled(engine, paged, 4, 2, 2)
    moved = engine.load(paged, PagedNotes, [1, 2, 3, 4, 5, 6])
    assert [notes.is_resident for notes in (first, second, third, moved)] == [False, False, True, True]
    assert engine.take_evicted() == [first, second]
    assert engine.take_evicted() == []
    paged.pool.check()


def test_who_left_and_is_gone_is_not_told_and_not_kept():
    engine, paged = Engine(), Paged(PAGES, SIZE)
    states = filled(engine, paged, 4, 4, 4)
    kept = states[1]
    run(paged, "read", {"x": numbers(1), "notes": states[0]}, engine=engine)
    del states
    gc.collect()
    assert list(engine._residents._known) == list(engine._residents._evicted) == [id(kept)]
    assert engine.take_evicted() == [kept]


def test_a_state_that_can_never_fit_is_refused_and_nobody_leaves():
    engine, paged = Engine(), Paged(PAGES, SIZE)
    states = filled(engine, paged, 4, 4)
    with pytest.raises(NeverFits, match="5 pages of 2 are needed, and there are 4"):
        engine.load(paged, PagedNotes, list(range(9)))
    assert all(notes.is_resident for notes in states)
    assert issubclass(NeverFits, OutOfPages)


def test_a_state_that_finds_no_room_is_refused_when_nobody_can_leave():
    engine, paged = Engine(), Paged(PAGES, SIZE)
    other = PagedNotes(paged, paged.pool.new())  # of somebody else: this engine does not know it
    other.append([1] * 3)
    with pytest.raises(OutOfPages, match="3 pages of 2 are needed, 2 of 4 are free"):
        engine.load(paged, PagedNotes, list(range(6)))
    paged.pool.check()


# ---------------------------------------------------------------- plain states
def test_plain_states_move_by_default():
    engine, component = Engine(), Fragile()
    notes = engine.new_state(component, Notes)
    run(component, "stack", {"x": numbers(1, 2), "notes": notes}, engine=engine)
    exported = engine.export(notes)
    run(component, "stack", {"x": numbers(9), "notes": notes}, engine=engine)
    moved = Engine().load(component, Notes, unpack(pack(exported)))
    assert (moved.seen, notes.seen) == ([1, 2], [1, 2, 9])


def test_toys_go_on_as_if_they_had_not_moved():
    lm, wish = SampledLM(), Sampling(seed=3)
    kv = lm.kv()
    token = lm.prefill(lm.tokenize("hello"), kv, wish)
    moved = SampledLM().load_state(KV, unpack(pack(kv.export())))
    for _ in range(5):
        token, other = lm.decode(token, kv, wish), lm.decode(token, moved, wish)
        assert token.tolist() == other.tolist()
    codec = StreamingCodec()
    state = codec.state(CodecState)
    codec.decode(np.arange(8), state)
    there = codec.load_state(CodecState, unpack(pack(state.export())))
    assert np.array_equal(codec.decode(np.arange(8), state), codec.decode(np.arange(8), there))


def test_what_a_component_loads_and_holds_is_nothing_by_default():
    component = Fragile()
    component.prepare()
    assert component.stock() == {}
