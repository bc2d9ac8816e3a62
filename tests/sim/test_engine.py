"""The simulated engine: order of commands, memory and failures."""

import random

import pytest

from mstar.engine.jobs import UNFINISHED, Job, JobDone, JobFailed
from mstar.plan.tables import BatchKey
from mstar.sim.engine import EngineCosts, NeverFits, SimEngine
from mstar.sim.models import SimRequest, TrapError, WorkerCrash
from mstar.worker.commands import Batch, CreateState, Export, Fork, Free, LoadState, StateRef

TELL = BatchKey("lm", "tell")


def make_engine(pages: int = 100, unfinished: float = 0.0) -> SimEngine:
    return SimEngine(random.Random(0), EngineCosts(0.01, 0.001, pages, unfinished), [])


def tell(number: int, *states: int, request: SimRequest | None = None) -> Batch:
    jobs = [
        Job({"token": 1, "memory": StateRef(state, []), "request": request or SimRequest(1, 1)}) for state in states
    ]
    return Batch(number, "talk", TELL, jobs, [], None)


def run(engine: SimEngine, batch: Batch):
    assert engine.submit(batch) == pytest.approx(0.01 + 0.001 * len(batch.jobs))
    report, next_seconds = engine.finish_batch()
    assert next_seconds is None
    return report


def test_commands_wait_for_the_batch_before_them():
    engine = make_engine()
    engine.submit(CreateState(1, "talk", "lm", "Memory"))
    engine.submit(tell(1, 1))
    engine.submit(Fork(1, 2))
    assert 2 not in engine.states
    engine.finish_batch()
    assert engine.states[2].size == 1
    engine.submit(Free((1, 2)))
    assert engine.states == {}


def test_an_exported_state_is_equal():
    engine = make_engine()
    engine.submit(CreateState(1, "talk", "lm", "Memory"))
    run(engine, tell(1, 1))
    engine.submit(Export(1, 7, "b.0"))
    (exported,) = engine.outputs
    engine.submit(LoadState(2, "talk", exported.result))
    assert vars(engine.states[2]) == vars(engine.states[1])


def test_a_failed_call_does_not_change_its_state():
    engine = make_engine()
    engine.submit(CreateState(1, "talk", "lm", "Memory"))
    before = vars(engine.states[1]).copy()
    (result,) = run(engine, tell(1, 1, request=SimRequest(1, 1, "raise"))).results
    assert isinstance(result, JobFailed)
    assert isinstance(result.error, TrapError)
    assert vars(engine.states[1]) == before


def test_a_call_that_exceeds_memory_fails():
    engine = make_engine()
    engine.submit(CreateState(1, "talk", "lm", "Memory"))
    (result,) = run(engine, tell(1, 1, request=SimRequest(1, 1, "huge"))).results
    assert isinstance(result, JobFailed)
    assert isinstance(result.error, NeverFits)
    assert engine.states[1].size == 0


def test_the_least_recently_used_state_is_evicted():
    engine = make_engine(pages=2)
    for state in (1, 2, 3):
        engine.submit(CreateState(state, "talk", "lm", "Memory"))
    assert run(engine, tell(1, 1, 2)).evicted == ()
    assert run(engine, tell(2, 3)).evicted == (1,)
    report = run(engine, tell(3, 1))
    assert report.evicted == (2, 3)
    assert isinstance(report.results[0], JobDone)


def test_the_batch_of_a_crash_is_known():
    engine = make_engine()
    engine.submit(CreateState(1, "talk", "lm", "Memory"))
    engine.submit(tell(1, 1, request=SimRequest(1, 1, "crash")))
    with pytest.raises(WorkerCrash):
        engine.finish_batch()
    assert engine.batch is not None


def test_an_unfinished_job_is_submitted_again():
    engine = make_engine(unfinished=1.0)
    engine.submit(CreateState(1, "talk", "lm", "Memory"))
    batch = tell(1, 1)
    assert run(engine, batch).results == [UNFINISHED]
    assert run(engine, batch).results == [UNFINISHED]
    assert isinstance(run(engine, batch).results[0], JobDone)
