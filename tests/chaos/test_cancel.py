"""Clients that leave, wherever the runtime happens to be: nothing of what they asked for is left."""

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
from tests.chaos.deployment import NAMES, PLACEMENTS, WORKERS, RequestRound, build_oracles, wait_until_idle
from tests.integration.deployment_clients import TARGETS, Client, Oracle, add_frontend

MAX_DELAY_S = 0.06
REQUESTS = (("orpheus", 1), ("bagel", 1), ("bagel", 2), ("qwen3_omni", 0), ("qwen3_omni", 1), ("dialogue", 0))
MULTI_TURN_PLACEMENT = '[place]\nlm = ["a", "b", "c"]'


def cancel_points():
    """Every failpoint of the runtime."""
    sources = (path.read_text() for path in Path(mstar.__file__).parent.rglob("*.py"))
    return sorted({name for source in sources for name in re.findall(r'^ +hit\("([\w.]+)"\)', source, re.MULTILINE)})


@pytest.fixture
def launcher():
    deployed = load_planned_models(
        {name: TARGETS[name] for name in (*NAMES, "dialogue")}, PLACEMENTS | {"dialogue": MULTI_TURN_PLACEMENT}
    )
    with InProcessLauncher(deployed) as deployment:
        yield deployment, add_frontend(deployment)
    failpoints.arm({})


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_disconnected_client_leaves_nothing_at_any_point(launcher, report):
    deployment, front_end = launcher
    chosen, known, missed, took = random.Random(5), build_oracles(), [], []
    talks = Oracle.from_file(TARGETS["dialogue"])
    everyone = [m.Peer(name, 0) for name in ("conductor", *WORKERS)]
    RequestRound(front_end, known).wait_and_check()
    wait_until_idle(front_end, everyone)
    fds, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    names = cancel_points()
    assert len(names) >= 40
    for name in names:
        for _ in range(20):  # as chance has it, it does not come there at once
            failpoints.arm({name: "sleep:0.02"})
            disconnect_at(deployment, front_end, known | {"dialogue": talks}, chosen)
            hits = failpoints.hits()
            failpoints.arm({})
            took.append(wait_until_idle(front_end, everyone))
            if name in hits:
                break
        else:
            missed.append(name)
        assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (fds, threads), name
    RequestRound(front_end, known).wait_and_check()
    report(f"cancel: at {len(names)} points, nothing left after {max(took):.2f} s at most; never there: {missed}")
    assert not missed


def disconnect_at(deployment, front_end, known, chosen):
    """Open requests, have one of them begin again, and leave them all within a short time."""
    clients = [Client(front_end, name, known[name].requests[number]) for name, number in REQUESTS]
    front_end.send_input(clients[-1].rid, known["dialogue"].requests[1])
    lost, conductor, node = (
        clients[chosen.randrange(len(clients))],
        deployment.conductors["dialogue"],
        deployment.actor_loop,
    )
    again = m.Submit(lost.rid, "", m.Value(None), last_seen_attempt=1 << 60)  # it says that something was lost
    moments = sorted(chosen.random() * MAX_DELAY_S for _ in clients)
    start = time.monotonic()
    for number, (client, moment) in enumerate(zip(chosen.sample(clients, len(clients)), moments, strict=True)):
        time.sleep(max(0.0, start + moment - time.monotonic()))
        if number == 1:
            node.call_soon(lambda: node.send(front_end.peer, conductor, m.Register()))
            node.call_soon(lambda: node.send(front_end.peer, conductor, again))
        client.close()
