"""Requests of stalled workers move, and messages of dead incarnations are ignored."""

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
    is_fully_up,
    launch_deployment,
    wait_until,
    wait_until_idle,
)
from tests.integration.deployment_clients import Client, Oracle, add_frontend
from tests.machine_share import MachineShare

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
DETECTION_S = 1.5
"""Target for the time until the requests of a stalled worker run elsewhere, on a machine that runs nothing else."""


class StaleProcess:
    """A process that impersonates a dead incarnation."""

    def __init__(self, local, peer):
        self.peer = peer
        self.actor_loop = ActorLoop(AddressBook(local.directory), local.key, ArenaCodec())
        self.actor_loop.add(self)
        self._thread = threading.Thread(target=self.actor_loop.run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self.actor_loop.stop()
        self._thread.join()

    def receive(self, now, sender, message):
        pass

    def tick(self, now):
        pass

    def send(self, to, *messages):
        for message in messages:
            self.actor_loop.call_soon(lambda message=message: self.actor_loop.send(self.peer, to, message))


def worker_states(front_end, local):
    """State of each worker as its conductor reports it."""
    activity = front_end.query_activity(local.conductors["orpheus"]).result(5.0)
    return {worker.name: worker.state for worker in activity.workers}


def stale_messages(rid, attempt):
    """Messages that a dead worker could still send."""
    return (
        m.Emit(rid, attempt, "Text", 10, m.Value("a lie")),
        m.SeatDone(rid, attempt, 0, 0, {}, {}, {"Text": 1}),
        m.AttemptFailed(rid, attempt, "Lie", "of an attempt that is over"),
    )


def test_requests_of_a_stalled_worker_move_and_it_is_used_again(report):
    oracles, detection_s = build_oracles(), []
    with launch_deployment() as (local, front_end):
        RequestRound(front_end, oracles).wait_and_check()
        for name in ("a", "b"):
            wait_until(lambda: is_fully_up(local))
            requests, pid = RequestRound(front_end, oracles), local.pid(name)
            time.sleep(0.05)
            stopped, machine = time.monotonic(), MachineShare()
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda name=name: worker_states(front_end, local)[name] == "unresponsive")
            detection_s.append((time.monotonic() - stopped) * machine.share)
            requests.wait_and_check()
            assert worker_states(front_end, local)[name] == "unresponsive", "it took no part"
            os.kill(pid, signal.SIGCONT)
            wait_until(lambda name=name: worker_states(front_end, local)[name] == "up")
            RequestRound(front_end, oracles).wait_and_check()
            assert local.pid(name) == pid
        report(f"SIGSTOP: unresponsive after {', '.join(f'{seconds:.2f}' for seconds in detection_s)} s")
        assert not local.recent_exits
        assert max(detection_s) <= DETECTION_S

        # A dead incarnation.
        os.kill(local.pid("a"), signal.SIGKILL)
        wait_until(lambda: len(local.recent_exits) == 1)
        wait_until(lambda: is_fully_up(local))
        requests = RequestRound(front_end, oracles)
        refused = local.actor_loop.counters["refused_old"]
        with StaleProcess(local, m.Peer("a", 0)) as ghost:
            for client in requests.clients:
                ghost.send(front_end.peer, *stale_messages(client.rid, 1 << 30))
                ghost.send(local.conductors["orpheus"], *stale_messages(client.rid, 0))
            requests.wait_and_check()
            wait_until(lambda: local.actor_loop.counters["refused_old"] > refused)
        wait_until_idle(front_end, local.peers())


def test_messages_of_a_finished_attempt_change_nothing():
    oracle = Oracle(TRAPS, [TrapRequest(key, steps=250) for key in range(4)])
    with LocalLauncher({"traps": TRAPS_FILE}, {"traps": '[place]\npart = ["a", "b"]'}) as local:
        front_end = add_frontend(local)
        clients = [Client(front_end, "traps", request) for request in oracle.requests]
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
        wait_until_idle(front_end, local.peers())


def test_a_computing_worker_is_not_replaced_without_heartbeats(report):
    oracle = Oracle(TRAPS, [TrapRequest(1, steps=5, trap="hold", at=3), TrapRequest(2, steps=5)])
    with LocalLauncher({"traps": TRAPS_FILE}, standby=False) as local:
        front_end = add_frontend(local)
        clients = [Client(front_end, "traps", request) for request in oracle.requests]
        for number, client in enumerate(clients):
            oracle.check(client.wait(), number)
        report(f"a worker that held the GIL was not replaced: {clients[0].duration_s:.1f} s")
        assert not local.recent_exits
