"""Finished requests are freed by reference counting: no process keeps their bodies until a garbage collection."""

import gc
import re
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from mstar.launch.in_process import InProcessLauncher
from mstar.launch.local_launcher import LocalLauncher
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.plan.planned_model import PlannedModel
from mstar.sim.models import Chat, SimRequest
from mstar.wire.messages import Peer
from tests.chaos import deployment as chaos
from tests.chaos.faulty_models import TrapRequest, Traps
from tests.integration.deployment_clients import add_frontend
from tests.server.toy_server import run_toy_server
from tests.tiers import ci_cases

PLACEMENT = parse_placement({"place": {"lm": ["a", "b"], "voice": ["b", "c"]}})
CHAT = "/v1/chat/completions"
BODY_BYTES, CONCURRENT = 1_000_000, 4
MIN_WARM_UP_REQUESTS = 200
MAX_GROWTH_BYTES = 5 << 20


@contextmanager
def no_cycles():
    """Fail if the requests of the block leave objects of mstar that only the garbage collector can free."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
        gc.collect()
        left = [type(item).__qualname__ for item in gc.garbage if type(item).__module__.startswith("mstar.")]
        assert sorted(left) == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.fixture(scope="module")
def deployment():
    """Front end, conductor and three workers in this process: one garbage collector watches all of them."""
    chat, traps = Chat(), Traps()
    models = {
        "chat": PlannedModel(chat, plan(chat.graphs(), PLACEMENT)),
        "traps": PlannedModel(traps, plan(traps.graphs(), None)),
    }
    with InProcessLauncher(models) as deployed:
        yield deployed, add_frontend(deployed)


def read(stream, limit=None):
    """Read a turn, or a number of outputs."""
    for count, _ in enumerate(stream.turn(timeout=10.0), 1):
        if count == limit:
            return


def finish(front_end):
    stream = front_end.open_stream("chat", SimRequest(3, steps=4))
    assert len([*stream.events(timeout=10.0)]) == 6


def interrupt(front_end):
    stream = front_end.open_stream("chat", SimRequest(4, steps=400))
    for token in (21, 22):
        read(stream, limit=7)
        stream.send_input(token)
    stream.send_input(None)
    while stream.end is None:
        read(stream)


def leave(front_end):
    stream = front_end.open_stream("chat", SimRequest(5, steps=400))
    read(stream, limit=3)
    stream.close()


def fail(front_end):
    for trap in ("raise", "route"):
        stream = front_end.open_stream("traps", TrapRequest(7, steps=5, trap=trap, at=3))
        read(stream)
        assert stream.end.status == "failed"


def time_out(front_end):
    stream = front_end.open_stream("traps", TrapRequest(8, steps=10_000), timeout_s=0.1)
    read(stream)
    assert stream.end.status == "deadline"


def wait_until_idle(deployed, front_end):
    peers = [front_end.peer, deployed.conductor, *(Peer(name, 0) for name in ("a", "b", "c", "local"))]
    deadline = time.monotonic() + 10.0
    while any(
        count
        for peer in peers
        for name, count in front_end.query_counts(peer).result(5.0).items()
        if name not in ("workers", "inbox")
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("scenario", [finish, interrupt, leave, fail, time_out])
def test_a_request_leaves_no_reference_cycle(deployment, scenario):
    deployed, front_end = deployment
    scenario(front_end)  # the first one fills caches
    wait_until_idle(deployed, front_end)
    with no_cycles():
        for _ in range(3):
            scenario(front_end)
        wait_until_idle(deployed, front_end)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_http_request_leaves_no_reference_cycle(is_streamed):
    body = {"model": "parrot", "messages": [{"role": "user", "content": "hello"}], "stream": is_streamed}
    with run_toy_server() as server, server.client() as client:
        client.post(CHAT, json=body)
        assert server.wait_until_idle()
        with no_cycles():
            for _ in range(3):
                assert client.post(CHAT, json=body).status_code == 200
            assert server.wait_until_idle()


# ---------------------------------------------------------------- memory of real processes
def resident_bytes(pid):
    (kilobytes,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kilobytes) << 10


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", ci_cases([300, 10_000], 300))
def test_memory_stays_flat_over_large_requests(count):
    """Each request has a body of 1 MB, which reaches the conductor and the worker.

    In one run a worker grew by 5.9 MB over its first 5,000 requests and by nothing after that: that is warm-up. A leak
    of 18 KB per request is found by the short case, one of 0.6 KB by the long one.
    """
    with LocalLauncher({"m": chaos.TRAPS_FILE}, standby=False) as local:
        front_end = add_frontend(local)
        pids = {name: local.pid(name) for name in ("conductor", "local")}

        def send(requests):
            """Send requests, CONCURRENT at a time."""
            for first in range(0, requests, CONCURRENT):
                bodies = [f"{number:0{BODY_BYTES}}" for number in range(first, first + CONCURRENT)]
                streams = [front_end.open_stream("m", chaos.TrapRequest(7, steps=1, file=body)) for body in bodies]
                assert [len([*stream.events(timeout=30.0)]) for stream in streams] == [1] * CONCURRENT

        send(max(MIN_WARM_UP_REQUESTS, count // 2))
        before = {name: resident_bytes(pid) for name, pid in pids.items()}
        send(count)
        growth = {name: resident_bytes(pid) - before[name] for name, pid in pids.items()}
    assert all(abs(size) <= MAX_GROWTH_BYTES for size in growth.values()), growth
