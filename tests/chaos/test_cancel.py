"""Client disconnects at every failpoint: nothing leaks."""

import os
import random
import re
import threading
import time
from pathlib import Path

import pytest

import mstar
from mstar import failpoints
from mstar.launch.in_process import InProcessLauncher
from mstar.plan.planned_model import load_planned_models
from mstar.wire import messages as m
from tests.chaos import lookahead_model, prefill_model
from tests.chaos.deployment import NAMES, PLACEMENTS, WORKERS, RequestRound, build_oracles, wait_until_idle
from tests.integration.deployment_clients import TARGETS, Client, Oracle, add_frontend

MAX_DELAY_S = 0.06
REQUESTS = (("orpheus", 1), ("bagel", 1), ("bagel", 2), ("qwen3_omni", 0), ("qwen3_omni", 1))
REQUESTS += (("prefill", 0), ("lookahead", 0), ("dialogue", 0))
OWN_MODELS = {"prefill": prefill_model.__file__, "lookahead": lookahead_model.__file__}
MULTI_TURN_PLACEMENT = '[place]\nlm = ["a", "b", "c"]'


def cancel_points():
    """Every failpoint of the runtime."""
    sources = (path.read_text() for path in Path(mstar.__file__).parent.rglob("*.py"))
    return sorted({name for source in sources for name in re.findall(r'^ +hit\("([\w.]+)"\)', source, re.MULTILINE)})


@pytest.fixture
def launcher():
    targets = {name: TARGETS[name] for name in (*NAMES, "dialogue")} | OWN_MODELS
    places = PLACEMENTS | {"dialogue": MULTI_TURN_PLACEMENT, "prefill": prefill_model.PLACEMENT}
    places["lookahead"] = lookahead_model.PLACEMENT
    deployed = load_planned_models(targets, places)
    with InProcessLauncher(deployed) as deployment:
        yield deployment, add_frontend(deployment)
    failpoints.arm({})


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_disconnected_client_leaves_nothing_at_any_point(launcher, report):
    deployment, front_end = launcher
    rng, oracles, missed, cleanup_s = random.Random(5), build_oracles(), [], []
    others = {name: Oracle.from_file(file) for name, file in ({"dialogue": TARGETS["dialogue"]} | OWN_MODELS).items()}
    processes = [m.Peer(name, 0) for name in ("conductor", *WORKERS, lookahead_model.READER_WORKER)]
    RequestRound(front_end, oracles).wait_and_check()
    wait_until_idle(front_end, processes)
    fds, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    names = cancel_points()
    assert len(names) >= 40
    for name in names:
        for _ in range(20):  # the failpoint is not always reached
            failpoints.arm({name: "sleep:0.02"})
            disconnect_at(deployment, front_end, oracles | others, rng)
            hits = failpoints.hits()
            failpoints.arm({})
            cleanup_s.append(wait_until_idle(front_end, processes))
            if name in hits:
                break
        else:
            missed.append(name)
        assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (fds, threads), name
    RequestRound(front_end, oracles).wait_and_check()
    report(
        f"cancel: at {len(names)} points, nothing left after {max(cleanup_s):.2f} s at most; never reached: {missed}"
    )
    assert not missed


def disconnect_at(deployment, front_end, oracles, rng):
    """Open requests, restart one of them, and disconnect all within a short time."""
    clients = [Client(front_end, name, oracles[name].requests[number]) for name, number in REQUESTS]
    front_end.send_input(clients[-1].rid, oracles["dialogue"].requests[1])
    lost, conductor, actor_loop = (
        clients[rng.randrange(len(clients))],
        deployment.conductors["dialogue"],
        deployment.actor_loop,
    )
    again = m.Submit(lost.rid, "", m.Value(None), last_seen_attempt=1 << 60)  # as if an emission was lost
    moments = sorted(rng.random() * MAX_DELAY_S for _ in clients)
    start = time.monotonic()
    for number, (client, moment) in enumerate(zip(rng.sample(clients, len(clients)), moments, strict=True)):
        time.sleep(max(0.0, start + moment - time.monotonic()))
        if number == 1:
            actor_loop.call_soon(lambda: actor_loop.send(front_end.peer, conductor, m.Register()))
            actor_loop.call_soon(lambda: actor_loop.send(front_end.peer, conductor, again))
        client.close()
