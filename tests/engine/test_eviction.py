"""More states than pages: who was not used for long leaves, all get what they would get, and nothing leaks."""

from __future__ import annotations

import gc
import random
import weakref
from itertools import count

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from mstar.engine.engine import Engine
from mstar.engine.jobs import Job, JobDone, JobFailed
from mstar.errors import OutOfPages
from tests.engine.toy_components import (
    POISON,
    FailingOps,
    NumberLog,
    PagedComponent,
    PagedLog,
    Poison,
    digest,
    int_array,
    run,
    to_comparable,
)

PAGES, SIZE = 8, 2


def state(engine, paged):
    return engine.new_state(paged, PagedLog)


def read(engine, paged, *calls):
    """Read numbers into states, all in one batch."""
    results = run(paged, "read", *({"x": int_array(*x), "notes": notes} for notes, x in calls), engine=engine)
    paged.pool.check()
    return results


def filled_states(engine, paged, count, pages=1):
    """States with the given numbers of pages, read one after the other."""
    made = [state(engine, paged) for _ in range(count)]
    for number, notes in enumerate(made):
        (result,) = read(engine, paged, (notes, [number] * pages * SIZE))
        assert isinstance(result, JobDone)
    return made


# ---------------------------------------------------------------- random schedules
class Request:
    """Reads numbers, looks at what it has read, forks; knows what unlimited memory gives."""

    def __init__(self, notes, chosen):
        self.notes = notes
        self.seen = []
        self.parts = [[chosen.randrange(100) for _ in range(chosen.randint(0, 3))] for _ in range(5)]
        self.job = None

    def next_job(self):
        if self.job is None:
            self.job = Job({"x": int_array(*self.parts[0]), "notes": self.notes})
        return self.job

    def take(self, result):
        assert not isinstance(result, JobFailed)
        if isinstance(result, JobDone):
            part = self.parts.pop(0)
            before = len(self.seen)
            self.seen += part
            each = [digest(self.seen[: before + end]) for end in range(1, len(part) + 1)]
            assert to_comparable(result) == [[digest(self.seen)], each, 1.0]
            self.job = None


def serve(seed, budget, largest):
    """Requests that want at least twice the memory there is, in random batches; every result is checked."""
    chosen = random.Random(seed)
    engine, paged = Engine(max_batched_tokens=budget), PagedComponent(PAGES, SIZE)
    requests = [Request(state(engine, paged), chosen) for _ in range(12)]
    for turn in count():
        waiting = [request for request in requests if request.parts]
        if not waiting:
            break
        assert turn < 400, "it does not come to an end"
        batch = chosen.sample(waiting, chosen.randint(1, min(largest, len(waiting))))
        results = engine.run(paged, PagedComponent.ops()["read"], [request.next_job() for request in batch])
        for request, result in zip(batch, results, strict=True):
            request.take(result)
        paged.pool.check()
        for request in chosen.sample(requests, 2):
            assert run(paged, "look", {"notes": request.notes}, engine=engine) == [JobDone((_read_so_far(request),))]
        if chosen.random() < 0.3:
            _swap_for_a_fork(engine, chosen.choice(requests))
        paged.pool.check()
    expected = sum(-(-len(request.seen) // SIZE) for request in requests)
    del request, batch, waiting
    requests.clear()
    assert paged.pool.free_pages == PAGES, "every page came back"
    return expected, len(paged.evicted)


def _read_so_far(request):
    done = request.job.done if request.job is not None else 0
    return digest(request.seen + (request.parts[0][:done] if request.parts else []))


def _swap_for_a_fork(engine, request):
    if request.job is None:
        request.notes = engine.fork(request.notes)


@settings(max_examples=15, deadline=None, phases=[Phase.generate])  # a seed cannot be made simpler
@given(st.integers(0, 1 << 30), st.sampled_from([None, 1, 3, 7]), st.integers(1, 12))
def test_twice_the_memory_that_there_is(seed, budget, largest):
    serve(seed, budget, largest)


def test_random_schedules_need_more_than_twice_the_memory_and_evict():
    expected, left = serve(1, 3, 8)
    assert expected >= 2 * PAGES
    assert left > PAGES


# ---------------------------------------------------------------- who leaves
def test_the_least_recently_used_state_is_evicted_first():
    engine, paged = Engine(), PagedComponent(PAGES, SIZE)
    first, second, third, fourth = filled_states(engine, paged, 4, pages=2)
    run(paged, "look", {"notes": first}, engine=engine)
    read(engine, paged, (fifth := state(engine, paged), [1] * 5))
    assert paged.evicted == [second.number, third.number]
    read(engine, paged, (second, [1]))
    assert paged.evicted[2:] == [fourth.number]
    read(engine, paged, (third, [1]))
    assert paged.evicted[3:] == [first.number, fifth.number]


def test_no_more_states_are_evicted_than_needed():
    engine, paged = Engine(), PagedComponent(PAGES, SIZE)
    states = filled_states(engine, paged, PAGES)
    read(engine, paged, (state(engine, paged), [1]))
    assert [notes.is_resident for notes in states] == [False] + [True] * (PAGES - 1)


def test_no_state_of_the_batch_is_evicted_for_it():
    engine, paged = Engine(), PagedComponent(PAGES, SIZE)
    states = filled_states(engine, paged, PAGES)
    results = read(engine, paged, *((notes, [9]) for notes in states[:4]))
    assert all(isinstance(result, JobDone) for result in results)
    assert paged.evicted == [notes.number for notes in states[4:]]
    assert [notes.values() for notes in states[:4]] == [[number, number, 9] for number in range(4)]


def test_a_batch_that_does_not_fit_is_run_in_parts():
    engine, paged = Engine(), PagedComponent(PAGES, SIZE)
    states = [state(engine, paged) for _ in range(4)]
    results = read(engine, paged, *((notes, [number] * 8) for number, notes in enumerate(states)))
    assert [to_comparable(result)[0] for result in results] == [[digest([number] * 8)] for number in range(4)]
    assert paged.batch_positions == [16, 16]
    assert paged.evicted == [states[0].number, states[1].number]


def test_states_that_an_op_only_reads_are_restored_too():
    engine, paged = Engine(), PagedComponent(PAGES, SIZE)
    states = filled_states(engine, paged, 4, pages=4)
    assert [notes.is_resident for notes in states] == [False, False, True, True]
    results = run(paged, "look", *({"notes": notes} for notes in states), engine=engine)
    assert results == [JobDone((digest([number] * 8),)) for number in range(4)]
    paged.pool.check()


def test_unused_forks_can_be_evicted():
    engine, paged = Engine(), PagedComponent(PAGES, SIZE)
    (notes,) = filled_states(engine, paged, 1, pages=PAGES)
    fork = engine.fork(notes)
    del notes
    (result,) = read(engine, paged, (state(engine, paged), [1]))
    assert isinstance(result, JobDone)
    assert not fork.is_resident


def test_components_make_room_in_their_own_memory_only():
    engine, one, other = Engine(), PagedComponent(PAGES, SIZE), PagedComponent(PAGES, SIZE)
    elsewhere, here = filled_states(engine, other, PAGES), filled_states(engine, one, PAGES)
    read(engine, one, (state(engine, one), [1]))
    assert not here[0].is_resident
    assert all(notes.is_resident for notes in elsewhere)


def test_plain_states_are_not_evicted():
    engine, component = Engine(), FailingOps()
    notes = engine.new_state(component, NumberLog)
    run(component, "stack", {"x": int_array(1), "notes": notes}, engine=engine)
    assert notes.is_resident
    assert not notes.is_evictable
    with pytest.raises(NotImplementedError):
        notes.evict()


def test_a_state_that_is_not_evicted_is_reported():
    class Stays(PagedLog):
        def evict(self):
            pass

    engine, paged = Engine(), PagedComponent(1, SIZE)
    stays = Stays(paged, paged.pool.new_table())
    read(engine, paged, (stays, [1]))
    with pytest.raises(AssertionError, match=r"Stays.evict\(\) left the state resident"):
        read(engine, paged, (state(engine, paged), [1]))


# ---------------------------------------------------------------- what fails
def test_a_job_that_does_not_fit_by_itself_fails_and_the_others_do_not():
    engine, paged = Engine(), PagedComponent(PAGES, SIZE)
    (before,) = filled_states(engine, paged, 1)
    small, large = state(engine, paged), state(engine, paged)
    results = read(engine, paged, (large, [1] * (PAGES * SIZE + 1)), (small, [5]), (before, [6]))
    assert isinstance(results[0].error, OutOfPages)
    assert [to_comparable(result)[0] for result in results[1:]] == [[digest([5])], [digest([0, 0, 6])]]
    assert large.values() == []


def test_a_state_that_cannot_be_restored_fails_only_its_job():
    class Forgets(PagedComponent):
        def restore(self, states):
            if any(POISON in state.host for state in states):
                raise Poison("lost")
            super().restore(states)

    engine, paged = Engine(), Forgets(PAGES, SIZE)
    lost, retained = state(engine, paged), state(engine, paged)
    lost.append([POISON])
    read(engine, paged, (retained, [1] * 5))
    lost.evict()
    filled_states(engine, paged, 1, pages=PAGES)
    assert not retained.is_resident
    results = run(paged, "look", {"notes": lost}, {"notes": retained}, engine=engine)
    assert isinstance(results[0].error, Poison)
    assert results[1] == JobDone((digest([1] * 5),))
    paged.pool.check()


def test_a_failure_among_evicted_and_restored_states():
    engine, paged = Engine(), PagedComponent(PAGES, SIZE)
    states = filled_states(engine, paged, 6, pages=3)
    results = read(engine, paged, *((notes, [POISON if row == 2 else 50 + row]) for row, notes in enumerate(states)))
    for row, result in enumerate(results):
        if row == 2:
            assert isinstance(result, JobFailed)
        else:
            assert to_comparable(result)[0] == [digest([row] * 6 + [50 + row])]
    (result,) = run(paged, "look", {"notes": states[2]}, engine=engine)
    assert result == JobDone((digest([2] * 6),))


# ---------------------------------------------------------------- nothing is kept
def test_the_engine_keeps_no_state_alive():
    engine, paged = Engine(), PagedComponent(PAGES, SIZE)
    gc.disable()
    try:
        states = filled_states(engine, paged, 12, pages=2)
        alive = [weakref.ref(notes) for notes in states]
        del states
        assert [ref() for ref in alive] == [None] * 12
        assert paged.pool.free_pages == PAGES
    finally:
        gc.enable()
    assert not engine.eviction._states
    assert np.isin(paged.evicted, range(1, 13)).all()


def test_states_that_are_evicted_first_leave_before_older_ones():
    engine, paged = Engine(), PagedComponent(PAGES, SIZE)
    old, lookahead, new = filled_states(engine, paged, 3, pages=2)
    engine.eviction.set_first([lookahead], is_first=True)
    needed = filled_states(engine, paged, 1, pages=3)
    assert (old.is_resident, lookahead.is_resident, new.is_resident) == (True, False, True)
    read(engine, paged, (lookahead, [1]))
    assert not old.is_resident, "it is not chosen while its own call runs"
    engine.eviction.set_first([lookahead], is_first=False)
    needed += filled_states(engine, paged, 1, pages=2)
    assert (new.is_resident, lookahead.is_resident) == (False, True), "in the usual order again"
