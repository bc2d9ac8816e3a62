"""In-process deployment: parity with eager runs, errors, limits and cancellation."""

import random
import time

import pytest

from mstar.conductor.limits import ConductorLimits
from mstar.config import RuntimeConfig
from mstar.launch.in_process import InProcessLauncher
from mstar.launch.local_launcher import LocalLauncher
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.testing.parity import random_placement
from mstar.wire.messages import Peer, RequestFinished, RequestRejected
from tests.chaos.faulty_models import TrapRequest, Traps
from tests.integration.deployment_clients import EXAMPLES, TARGETS, Client, Oracle, add_frontend, run_clients
from tests.machine_share import TimeLimit


def deployed(model, placement=None):
    return {"m": PlannedModel(model, plan(model.graphs(), placement))}


@pytest.mark.parametrize("name", TARGETS)
def test_every_example_in_one_process_under_a_random_placement(name):
    oracle = Oracle.from_file(TARGETS[name])
    placement = random_placement(oracle.model.graphs(), random.Random(name))
    with InProcessLauncher(deployed(oracle.model, placement)) as deployment:
        run_clients(add_frontend(deployment), "m", oracle, 8)


def test_orpheus_in_processes_under_its_placement():
    oracle = Oracle.from_file(TARGETS["orpheus"])
    placement = EXAMPLES / "placements" / "orpheus.toml"
    with LocalLauncher({"orpheus": TARGETS["orpheus"]}, {"orpheus": placement}, standby=False) as local:
        run_clients(add_frontend(local), "orpheus", oracle, 8)
        assert not local.recent_exits


@pytest.fixture
def traps():
    """A model with injected failures in one process; one request runs, one more is queued."""
    with InProcessLauncher(
        deployed(Traps()), options=RuntimeConfig(max_running_requests=1, max_queued_requests=1)
    ) as deployment:
        yield deployment, add_frontend(deployment)


@pytest.mark.parametrize("trap", ["raise", "route"])
def test_exceptions_of_a_model_reach_the_client(traps, trap):
    request = TrapRequest(7, steps=5, trap=trap, at=3)
    with pytest.raises((ValueError, KeyError)) as eager:
        Traps().run(request)
    end = Client(traps[1], "m", request).wait().end
    assert (end.status, end.error_type, end.error_message) == ("failed", type(eager.value).__name__, str(eager.value))


def test_no_worker_is_declared_dead_when_all_were_stalled(traps):
    start, count = time.monotonic(), 10_000_000
    while time.monotonic() - start < ConductorLimits().heartbeat_timeout_s:
        start, count = time.monotonic(), 2 * count
        sum(range(count))  # holds the GIL: no other thread runs
    time.sleep(0.1)
    assert Client(traps[1], "m", TrapRequest(7, steps=3)).wait().end.status == "ok"


def test_an_unknown_model_is_refused(traps):
    end = Client(traps[1], "n", TrapRequest(7)).wait().end
    assert isinstance(end, RequestRejected)
    assert (end.status, end.reason) == (404, "no model is called 'n'")


def test_a_request_over_the_limit_gets_retry_after(traps):
    clients = [Client(traps[1], "m", TrapRequest(key, steps=20)) for key in range(3)]
    end = clients[2].wait().end
    assert isinstance(end, RequestRejected)
    assert end.status == 429
    assert end.retry_after_s > 0
    assert [client.wait().end.status for client in clients[:2]] == ["ok", "ok"]


def test_a_request_that_takes_too_long_is_ended(traps):
    with TimeLimit(0.5, at_least_s=0.1):
        client = Client(traps[1], "m", TrapRequest(7, steps=10_000), timeout_s=0.1).wait()
    assert isinstance(client.end, RequestFinished)
    assert (client.end.status, client.end.error_type) == ("deadline", "Deadline")


def test_a_cancelled_request_leaves_nothing(traps):
    deployment, front_end = traps
    client = Client(front_end, "m", TrapRequest(7, steps=10_000))
    while len(client.log) < 3:
        time.sleep(0.002)
    client.close()
    Client(front_end, "m", TrapRequest(8, steps=2)).wait()  # it was admitted, so the other one is over
    assert client.end is None
    for peer in (front_end.peer, deployment.conductor, Peer("local", 0)):
        counts = front_end.query_counts(peer).result(1.0)
        assert not any(n for what, n in counts.items() if what not in ("workers", "inbox")), counts
