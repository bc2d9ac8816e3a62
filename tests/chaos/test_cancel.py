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
from mstar.launch.together import Together
from mstar.plan.deployment import deploy
from mstar.wire import messages as m
from tests.chaos.parts import NAMES, PLACEMENTS, WORKERS, Round, oracles, settle
from tests.served.parts import TARGETS, Client, Oracle, front

WITHIN_S = 0.06
ASKED = (("orpheus", 1), ("bagel", 1), ("bagel", 2), ("qwen3_omni", 0), ("qwen3_omni", 1), ("dialogue", 0))
TALKS = '[place]\nlm = ["a", "b", "c"]'


def points():
    """Every failpoint of the runtime."""
    sources = (path.read_text() for path in Path(mstar.__file__).parent.rglob("*.py"))
    return sorted({name for source in sources for name in re.findall(r'^ +hit\("([\w.]+)"\)', source, re.MULTILINE)})


@pytest.fixture
def together():
    deployed = deploy({name: TARGETS[name] for name in (*NAMES, "dialogue")}, PLACEMENTS | {"dialogue": TALKS})
    with Together(deployed) as deployment:
        yield deployment, front(deployment)
    failpoints.arm({})


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_who_leaves_leaves_nothing_wherever_that_is(together, report):
    deployment, front_end = together
    chosen, known, missed, took = random.Random(5), oracles(), [], []
    talks = Oracle.of(TARGETS["dialogue"])
    everyone = [m.Peer(name, 0) for name in ("conductor", *WORKERS)]
    Round(front_end, known).check()
    settle(front_end, everyone)
    fds, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    names = points()
    assert len(names) >= 40
    for name in names:
        for _ in range(20):  # as chance has it, it does not come there at once
            failpoints.arm({name: "sleep:0.02"})
            leave(deployment, front_end, known | {"dialogue": talks}, chosen)
            hits = failpoints.hits()
            failpoints.arm({})
            took.append(settle(front_end, everyone))
            if name in hits:
                break
        else:
            missed.append(name)
        assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (fds, threads), name
    Round(front_end, known).check()
    report(f"cancel: at {len(names)} points, nothing left after {max(took):.2f} s at most; never there: {missed}")
    assert not missed


def leave(deployment, front_end, known, chosen):
    """Open requests, have one of them begin again, and leave them all within a short time."""
    clients = [Client(front_end, name, known[name].requests[number]) for name, number in ASKED]
    front_end.say(clients[-1].rid, known["dialogue"].requests[1])
    lost, conductor, node = clients[chosen.randrange(len(clients))], deployment.conductors["dialogue"], deployment.node
    again = m.Submit(lost.rid, "", m.Value(None), after=1 << 60)  # it says that something was lost
    moments = sorted(chosen.random() * WITHIN_S for _ in clients)
    start = time.monotonic()
    for number, (client, moment) in enumerate(zip(chosen.sample(clients, len(clients)), moments, strict=True)):
        time.sleep(max(0.0, start + moment - time.monotonic()))
        if number == 1:
            node.call(lambda: node.send(front_end.peer, conductor, m.Hello()))
            node.call(lambda: node.send(front_end.peer, conductor, again))
        client.close()
