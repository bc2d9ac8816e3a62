"""State migration between engines: export, load with eviction, and the report of evicted states."""

import gc

import numpy as np
import pytest

from mstar.engine.engine import Engine
from mstar.engine.jobs import JobDone
from mstar.errors import NeverFits, OutOfPages
from mstar.testing.toy_language import SampledLM, Sampling
from mstar.testing.toy_speech import CodecState, StreamingCodec
from mstar.transfer.values import pack, unpack
from mstar.walk.states import KV
from tests.engine.toy_components import FailingOps, NumberLog, PagedComponent, PagedLog, int_array, run

PAGES, SIZE = 4, 2


def filled_states(engine, paged, *lengths):
    """States that have read the given counts of numbers."""
    made = [engine.new_state(paged, PagedLog) for _ in lengths]
    for notes, length in zip(made, lengths, strict=True):
        (result,) = run(paged, "read", {"x": int_array(*range(length)), "notes": notes}, engine=engine)
        assert isinstance(result, JobDone)
    return made


def test_a_state_continues_where_it_was_loaded():
    local, loaded = Engine(), Engine()
    one, other = PagedComponent(PAGES, SIZE), PagedComponent(PAGES, SIZE)
    (notes,) = filled_states(local, one, 5)
    moved = loaded.load(other, PagedLog, unpack(pack(local.export(notes))))
    results = [
        run(paged, "read", {"x": int_array(7), "notes": state}, engine=engine)[0].values[0].tolist()
        for paged, state, engine in ((one, notes, local), (other, moved, loaded))
    ]
    assert results[0] == results[1]
    one.pool.check()
    other.pool.check()


def test_an_evicted_state_is_restored_for_export():
    engine, paged = Engine(), PagedComponent(PAGES, SIZE)
    first, second = filled_states(engine, paged, 5, 8)
    assert not first.is_resident
    assert engine.export(first) == [0, 1, 2, 3, 4]
    assert not second.is_resident, "it made room"


def test_others_are_evicted_for_an_incoming_state_and_reported_once():
    engine, paged = Engine(), PagedComponent(PAGES, SIZE)
    first, second, third = filled_states(engine, paged, 4, 2, 2)
    moved = engine.load(paged, PagedLog, [1, 2, 3, 4, 5, 6])
    assert [notes.is_resident for notes in (first, second, third, moved)] == [False, False, True, True]
    assert engine.take_evicted() == [first, second]
    assert engine.take_evicted() == []
    paged.pool.check()


def test_evicted_and_freed_states_are_not_reported():
    engine, paged = Engine(), PagedComponent(PAGES, SIZE)
    states = filled_states(engine, paged, 4, 4, 4)
    retained = states[1]
    run(paged, "read", {"x": int_array(1), "notes": states[0]}, engine=engine)
    del states
    gc.collect()
    assert list(engine.eviction._states) == list(engine.eviction._evicted) == [id(retained)]
    assert engine.take_evicted() == [retained]


def test_a_state_that_can_never_fit_is_rejected_without_eviction():
    engine, paged = Engine(), PagedComponent(PAGES, SIZE)
    states = filled_states(engine, paged, 4, 4)
    with pytest.raises(NeverFits, match="5 KV cache pages of 2 positions needed, 4 exist"):
        engine.load(paged, PagedLog, list(range(9)))
    assert all(notes.is_resident for notes in states)
    assert issubclass(NeverFits, OutOfPages)


def test_a_state_is_rejected_when_nothing_can_be_evicted():
    engine, paged = Engine(), PagedComponent(PAGES, SIZE)
    other = PagedLog(paged, paged.pool.new_table())  # unknown to this engine
    other.append([1] * 3)
    with pytest.raises(OutOfPages, match="3 pages of 2 positions needed, 2 of 4 free"):
        engine.load(paged, PagedLog, list(range(6)))
    paged.pool.check()


# ---------------------------------------------------------------- plain states
def test_plain_states_move_by_default():
    engine, component = Engine(), FailingOps()
    notes = engine.new_state(component, NumberLog)
    run(component, "stack", {"x": int_array(1, 2), "notes": notes}, engine=engine)
    exported = engine.export(notes)
    run(component, "stack", {"x": int_array(9), "notes": notes}, engine=engine)
    moved = Engine().load(component, NumberLog, unpack(pack(exported)))
    assert (moved.seen, notes.seen) == ([1, 2], [1, 2, 9])


def test_toy_models_continue_after_a_move():
    lm, sampling = SampledLM(), Sampling(seed=3)
    kv = lm.kv()
    token = lm.prefill(lm.tokenize("hello"), kv, sampling)
    moved = SampledLM().load_state(KV, unpack(pack(kv.export())))
    for _ in range(5):
        token, other = lm.decode(token, kv, sampling), lm.decode(token, moved, sampling)
        assert token.tolist() == other.tolist()
    codec = StreamingCodec()
    state = codec.state(CodecState)
    codec.decode(np.arange(8), state)
    loaded = codec.load_state(CodecState, unpack(pack(state.export())))
    assert np.array_equal(codec.decode(np.arange(8), state), codec.decode(np.arange(8), loaded))


def test_a_component_has_no_memory_stats_by_default():
    component = FailingOps()
    component.prepare()
    assert component.memory_stats() == {}
