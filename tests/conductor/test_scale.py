"""A conductor beside few and many workers, requests and tenants: costs as executed bytecodes, the same everywhere."""

import random

import pytest

from bench.cost.ticks import count_bytecodes
from mstar.conductor.fair_queue import FairQueue
from mstar.conductor.indexed_heap import IndexedHeap
from mstar.conductor.limits import ConductorLimits
from mstar.sim.models import SimRequest
from mstar.wire import messages as m
from mstar.wire.slo import Slo
from mstar.wire.stats import StreamDemand, WorkerLoad
from tests.conductor.deployment import FRONTEND, Deployment

LIMITS = ConductorLimits(max_running_requests=100_000, max_queued_requests=100_000, heartbeat_timeout_s=1e9)
DEMANDS = {"story": StreamDemand(0.0001, 0.0001, 0.1, 0.0001)}


def deployment_of(workers):
    """States move between two sets of workers, and every worker reports its load."""
    names = [f"w{number:03}" for number in range(workers)]
    half = workers // 2
    deployment = Deployment({"story": {"lm": names[:half], "lm.tell": names[half:]}}, LIMITS).start_all()
    for number, name in enumerate(names):
        deployment.core.capacity.update_load(name, WorkerLoad(number / workers / 10, DEMANDS, 0, 0))
    return deployment


def output(number):
    return {0: m.ValueInput(m.Value(number))}


def serve(deployment, rid, **fields):
    """Serve a request up to the start of its third walk, which uses a state of the second one elsewhere."""
    deployment.submit(rid, slo=Slo(ttft_s=60.0), **fields)
    deployment.finish_walk(rid, output(7))
    deployment.finish_walk(rid, output(1), states={1: 4})
    assert deployment.requests[rid].walk_run.number == 2


def cost_of_request(workers):
    deployment = deployment_of(workers)
    for number in range(2 * workers):
        serve(deployment, f"earlier{number}")
    return count_bytecodes(lambda: [serve(deployment, f"r{number}") for number in range(20)])


def cost_of_lost_worker(requests_elsewhere):
    deployment = Deployment({"talk": {"lm": "a"}, "guide": {"lm": "b"}}, LIMITS).start_all()
    for number in range(requests_elsewhere):
        deployment.deliver(FRONTEND, m.Submit(f"g{number}", "guide", m.Value(SimRequest(1, 3))))
    for number in range(5):
        deployment.submit(f"t{number}")
    cost = count_bytecodes(lambda: deployment.exit_process(m.Peer("a", 0)))
    assert [deployment.requests[f"t{number}"].retries for number in range(5)] == [1] * 5
    assert deployment.requests["g0"].retries == 0
    return cost


def cost_of_queueing(tenants):
    queue, submit = FairQueue(), m.Submit("r", "talk", m.Value(None), "t0")
    for number in range(tenants):
        queue.add(m.Submit(f"q{number}", "talk", m.Value(None), f"t{number}"))
    return count_bytecodes(lambda: (queue.has_share(submit, 10), queue.add(submit), queue.remove("r")))


def cost_of_submission(tenants):
    """Other tenants run requests, and nothing is queued."""
    deployment = Deployment({"talk": {"lm": "a"}}, LIMITS).start_all()
    for number in range(tenants):
        deployment.submit(f"t{number}", tenant=f"t{number}")
    return count_bytecodes(lambda: deployment.submit("r", tenant="other"))


@pytest.mark.parametrize(
    ("cost", "few", "many"),
    [
        (cost_of_request, 10, 200),
        (cost_of_lost_worker, 50, 1_000),
        (cost_of_queueing, 10, 200),
        (cost_of_submission, 10, 200),
    ],
    ids=["request, by workers", "lost worker, by requests elsewhere", "queue, by tenants", "submission, by tenants"],
)
def test_costs_do_not_grow(cost, few, many):
    assert cost(many) < 1.2 * cost(few)


def test_the_heap_finds_the_smallest_value_and_looks_only_at_those_that_changed():
    rng, names, evaluated = random.Random(0), [f"n{number}" for number in range(50)], []
    values = dict.fromkeys(names, 0.0)

    def value(name):
        evaluated.append(name)
        return values[name]

    heap = IndexedHeap(names, value)
    for _ in range(2_000):
        for name in rng.sample(names, rng.randrange(4)):
            values[name] = float(rng.randrange(5))
            heap.update(name)
        heap.update("unknown")
        index = min(range(50), key=lambda index: values[names[index]])
        assert heap.smallest() == (values[names[index]], index)
    assert len(evaluated) < 50 + 2_000 * 3
    assert len(vars(heap)["_heap"]) <= 4 * 50
