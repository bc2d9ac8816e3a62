"""A worker that stands still is given up and replaced; what a life that is over still says is not heard."""

import os
import signal
import threading
import time

import pytest

from mstar.conductor.attempts import ATTEMPTS_PER_INCARNATION
from mstar.launch.local_launcher import LocalLauncher
from mstar.transfer.codec import ArenaCodec
from mstar.wire import messages as m
from mstar.wire.transport.actor_loop import ActorLoop
from mstar.wire.transport.address_book import AddressBook
from tests.chaos.deployment import (
    TRAPS,
    TRAPS_FILE,
    RequestRound,
    TrapRequest,
    build_oracles,
    child_peers,
    is_fully_up,
    launch_deployment,
    wait_until,
    wait_until_idle,
)
from tests.integration.deployment_clients import Client, Oracle, add_frontend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
DETECTION_S = 1.5
SLOWDOWN_FACTOR = 1.5
"""The bar is for a machine at peace; this one is shared with other tests."""


class StaleProcess:
    """A process that should not be: one who says things in the name of another."""

    def __init__(self, local, peer):
        self.peer = peer
        self.node = ActorLoop(AddressBook(local.directory), local.key, ArenaCodec())
        self.node.add(self)
        self._thread = threading.Thread(target=self.node.run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self.node.stop()
        self._thread.join()

    def receive(self, now, sender, message):
        pass

    def tick(self, now):
        pass

    def send(self, to, *messages):
        for message in messages:
            self.node.call_soon(lambda message=message: self.node.send(self.peer, to, message))


def stale_messages(rid, attempt):
    """What a worker might still say of an attempt."""
    return (
        m.Emit(rid, attempt, "Text", 10, m.Value("a lie")),
        m.SeatDone(rid, attempt, 0, 0, {}, {}, {"Text": 1}),
        m.AttemptFailed(rid, attempt, "Lie", "of an attempt that is over"),
    )


def test_a_stalled_worker_is_replaced_and_ignored(report):
    known, took = build_oracles(), []
    with launch_deployment() as (local, front_end):
        RequestRound(front_end, known).wait_and_check()
        for name in ("a", "b"):
            wait_until(lambda: is_fully_up(local))
            what, pid = RequestRound(front_end, known), local.pid(name)
            time.sleep(0.05)
            stopped, before = time.monotonic(), len(local.recent_exits)
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda before=before: len(local.recent_exits) > before)
            when, peer, why = local.recent_exits[before]
            took.append(when - stopped)
            assert peer.name == name
            assert why.startswith("no heartbeat for")
            what.wait_and_check()
        report(f"SIGSTOP: given up after {', '.join(f'{seconds:.2f}' for seconds in took)} s")
        assert max(took) <= DETECTION_S * SLOWDOWN_FACTOR

        # A life that is over.
        wait_until(lambda: is_fully_up(local))
        what = RequestRound(front_end, known)
        refused = local.actor_loop.counters["refused_old"]
        with StaleProcess(local, m.Peer("a", 0)) as ghost:
            for client in what.clients:
                ghost.send(front_end.peer, *stale_messages(client.rid, 1 << 30))
                ghost.send(local.conductors["orpheus"], *stale_messages(client.rid, 0))
            what.wait_and_check()
            wait_until(lambda: local.actor_loop.counters["refused_old"] > refused)
        wait_until_idle(front_end, child_peers(local))


def test_messages_of_a_finished_attempt_change_nothing():
    oracle = Oracle(TRAPS, [TrapRequest(key, steps=250) for key in range(4)])
    with LocalLauncher({"traps": TRAPS_FILE}, {"traps": '[place]\npart = ["a", "b"]'}) as local:
        front_end = add_frontend(local)
        clients = [Client(front_end, "traps", ask) for ask in oracle.requests]
        wait_until(lambda: all(len(client.log) > 5 for client in clients))
        os.kill(local.pid("conductor"), signal.SIGKILL)
        streams = front_end._core._streams
        wait_until(lambda: all(streams[client.rid].attempt >= ATTEMPTS_PER_INCARNATION for client in clients))
        late = front_end._core.stale_messages
        with StaleProcess(local, m.Peer("x", 0)) as ghost:
            for client in clients:
                for to in (front_end.peer, local.conductors["traps"], m.Peer("a", 0), m.Peer("b", 0)):
                    ghost.send(
                        to,
                        *stale_messages(client.rid, 0),
                        m.ReleaseAttempt(client.rid, 0),
                        m.Credit(client.rid, 0, "Text", 1000),
                    )
            wait_until(lambda: front_end._core.stale_messages >= late + len(clients))
            assert all(client.end is None for client in clients)
            for number, client in enumerate(clients):
                oracle.check(client.wait(), number)
        wait_until_idle(front_end, child_peers(local))


def test_a_computing_worker_is_not_replaced_without_heartbeats(report):
    oracle = Oracle(TRAPS, [TrapRequest(1, steps=5, trap="hold", at=3), TrapRequest(2, steps=5)])
    with LocalLauncher({"traps": TRAPS_FILE}, standby=False) as local:
        front_end = add_frontend(local)
        clients = [Client(front_end, "traps", ask) for ask in oracle.requests]
        for number, client in enumerate(clients):
            oracle.check(client.wait(), number)
        report(f"a worker that let nobody else run was waited for: {clients[0].seconds:.1f} s")
        assert not local.recent_exits
