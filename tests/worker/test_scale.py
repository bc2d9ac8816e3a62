"""A worker beside few and many other requests: costs as executed bytecodes, which do not depend on the machine."""

from bench.cost.ticks import count_bytecodes
from mstar.engine.jobs import JobDone
from mstar.wire import messages as m
from mstar.worker.commands import Batch, BatchFinished
from tests.worker.worker_harness import CONDUCTOR, FRONTEND, W0, WorkerHarness


def start(rid):
    return m.StartWalk(rid, 0, 0, "m", "single", (W0,), {0: m.ValueInput(m.Value(1))}, {}, FRONTEND)


def worker_with(waiting):
    """One request has ended its walk; two batches run, and other requests wait for the next one."""
    harness = WorkerHarness(max_batch_size=1)
    harness.receive(start("done"))
    (batch,) = [command for command in harness.commands if isinstance(command, Batch)]
    harness.step(BatchFinished(batch.number, [JobDone((2,))], 0.01))
    harness.receive(*(start(f"r{number}") for number in range(waiting + 1)))
    assert len(harness.core.scheduler) == waiting
    return harness


def cost_of_release(waiting):
    harness = worker_with(waiting)
    cost = count_bytecodes(lambda: harness.receive(m.ReleaseAttempt("done", 0)))
    assert harness.core.stats()["requests"] == waiting + 1
    return cost


def cost_of_new_conductor(waiting):
    harness = worker_with(waiting)
    cost = count_bytecodes(lambda: harness.receive(m.Register(), sender=m.Peer(CONDUCTOR.name, 1)))
    assert harness.core.stats()["requests"] == 0
    return cost


def cost_of_waiting_for_others(idle):
    """A call waits for calls of other workers, beside requests that have run here and go on elsewhere."""
    harness = WorkerHarness()
    for number in range(idle):
        harness.start("split", rid=f"idle{number}")
    while harness.core.stats()["running"]:
        batch = harness.take_command(Batch)
        harness.step(BatchFinished(batch.number, [JobDone((2,))] * len(batch.jobs), 0.1))
    cost = count_bytecodes(lambda: harness.start("played", rid="r", due_in_s={"Audio": 30.0}))
    assert harness.core.scheduler.fill_wait_s is not None
    assert harness.core.stats() | {"requests": idle + 1, "waiting": 1} == harness.core.stats()
    return cost


def test_the_end_of_a_request_costs_the_same_while_others_wait():
    assert cost_of_release(1_000) < 1.2 * cost_of_release(50)


def test_a_new_conductor_costs_the_same_for_each_request():
    assert cost_of_new_conductor(1_000) / 1_000 < 1.2 * cost_of_new_conductor(50) / 50


def test_waiting_for_a_fuller_batch_costs_the_same_beside_idle_requests():
    assert cost_of_waiting_for_others(1_000) < 1.2 * cost_of_waiting_for_others(50)
