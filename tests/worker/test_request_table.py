"""Preempted walk runs resume in the order in which they started."""

import pytest

from mstar.engine.jobs import JobFailed
from mstar.wire import messages as m
from mstar.worker.commands import Batch, CreateState
from tests.worker.worker_harness import WorkerHarness

RIDS = ("r0", "r1", "r2", "r3")


def preempted_worker():
    """A worker with four walk runs. The engine evicts the states of the last three while the first one runs."""
    worker = WorkerHarness()
    for rid in RIDS:
        worker.start("stateful", rid=rid)
    states = [worker.take_command(CreateState).state for _ in RIDS]
    worker.finish_batch(2, evicted=states[1:])
    assert preempted(worker) == ["r1", "r2", "r3"]
    assert [batch_rids(batch) for batch in worker.commands] == [["r0"]], "only the first one runs"
    return worker


def preempted(worker):
    return [run.request.rid for run in worker.core._requests.walk_runs() if run.is_preempted]


def batch_rids(batch):
    assert isinstance(batch, Batch)
    return [suspect.rid for suspect in batch.suspects]


def resumed(worker):
    (batch,) = (command for command in worker.commands if isinstance(command, Batch))
    return batch_rids(batch)


@pytest.mark.parametrize("end", ["finished", "failed", "released"])
def test_the_oldest_preempted_walk_run_resumes_when_another_one_ends(end):
    worker = preempted_worker()
    if end == "released":
        worker.receive(m.ReleaseAttempt("r0", 0))
    worker.finish_batch(JobFailed(ValueError("no")) if end == "failed" else 3)
    assert resumed(worker) == ["r1"]
    assert preempted(worker) == ["r2", "r3"]


def test_preempted_walk_runs_resume_one_by_one_in_order():
    worker = preempted_worker()
    order = []
    while any(isinstance(command, Batch) for command in worker.commands):
        order += resumed(worker)
        worker.finish_batch(3)
    assert order == ["r0", "r1", "r1", "r2", "r2", "r3", "r3"]
    assert preempted(worker) == []


def test_the_oldest_preempted_walk_run_resumes_when_no_other_one_can_run():
    worker = WorkerHarness()
    for rid in RIDS:
        worker.start("stateful", rid=rid)
    states = [worker.take_command(CreateState).state for _ in RIDS]
    worker.finish_batch(2, evicted=states)
    assert resumed(worker) == ["r0"]
    assert preempted(worker) == ["r1", "r2", "r3"]


def distributed(worker):
    """The count, and the same by looking at each request."""
    table = worker.core._requests
    looked_at = sum(any(seat != worker.core.peer for seat in run.start.seats) for run in table.walk_runs())
    assert table.distributed_count == looked_at
    return looked_at


def test_requests_with_partitions_elsewhere_are_counted():
    worker = WorkerHarness()
    worker.start("single", rid="here").start("split", rid="r0").start("split", rid="r1")
    assert distributed(worker) == 2
    worker.start("single", rid="r0", walk_index=1)
    assert distributed(worker) == 1, "its last walk runs only here"
    worker.start("split", rid="r1", attempt=1)
    assert distributed(worker) == 1
    worker.receive(m.ReleaseAttempt("r1", 1, keep_states=True))
    assert distributed(worker) == 1
    worker.receive(m.ReleaseAttempt("r1", 1), m.ReleaseAttempt("here", 0))
    assert distributed(worker) == 0
    worker.start("split", rid="r2").receive(m.Register(), sender=m.Peer("conductor", 1))
    assert distributed(worker) == 0
