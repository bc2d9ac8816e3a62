"""A worker that stands still is given up and replaced; what a life that is over still says is not heard."""

import os
import signal
import threading
import time

import pytest

from mstar.conductor.core import ATTEMPTS
from mstar.launch.local import Local
from mstar.transfer.codec import ArenaCodec
from mstar.wire import messages as m
from mstar.wire.node import Node
from mstar.wire.whereabouts import Whereabouts
from tests.chaos.parts import TRAPS, TRAPS_FILE, Ask, Round, is_whole, launched, oracles, peers, settle, wait_until
from tests.served.parts import Client, Oracle, front

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
GIVEN_UP_S = 1.5
ROOM = 1.5
"""The bar is for a machine at peace; this one is shared with other tests."""


class Ghost:
    """A process that should not be: one who says things in the name of another."""

    def __init__(self, local, peer):
        self.peer = peer
        self.node = Node(Whereabouts(local.directory), local.key, ArenaCodec())
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

    def says(self, to, *messages):
        for message in messages:
            self.node.call(lambda message=message: self.node.send(self.peer, to, message))


def lies(rid, attempt):
    """What a worker might still say of an attempt."""
    return (
        m.Emit(rid, attempt, "Text", 10, m.Value("a lie")),
        m.Done(rid, attempt, 0, 0, {}, {}, {"Text": 1}),
        m.Failed(rid, attempt, "Lie", "of an attempt that is over"),
    )


def test_who_stands_still_is_given_up_and_not_heard_again(report):
    known, took = oracles(), []
    with launched() as (local, front_end):
        Round(front_end, known).check()
        for name in ("a", "b"):
            wait_until(lambda: is_whole(local))
            what, pid = Round(front_end, known), local.pid(name)
            time.sleep(0.05)
            stopped, before = time.monotonic(), len(local.deaths)
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda before=before: len(local.deaths) > before)
            when, peer, why = local.deaths[before]
            took.append(when - stopped)
            assert peer.name == name
            assert why.startswith("not heard of for")
            what.check()
        report(f"SIGSTOP: given up after {', '.join(f'{seconds:.2f}' for seconds in took)} s")
        assert max(took) <= GIVEN_UP_S * ROOM

        # A life that is over.
        wait_until(lambda: is_whole(local))
        what = Round(front_end, known)
        refused = local.node.counters["refused_old"]
        with Ghost(local, m.Peer("a", 0)) as ghost:
            for client in what.clients:
                ghost.says(front_end.peer, *lies(client.rid, 1 << 30))
                ghost.says(local.conductors["orpheus"], *lies(client.rid, 0))
            what.check()
            wait_until(lambda: local.node.counters["refused_old"] > refused)
        settle(front_end, peers(local))


def test_what_is_said_of_an_attempt_that_is_over_changes_nothing():
    oracle = Oracle(TRAPS, [Ask(key, steps=250) for key in range(4)])
    with Local({"traps": TRAPS_FILE}, {"traps": '[place]\npart = ["a", "b"]'}) as local:
        front_end = front(local)
        clients = [Client(front_end, "traps", ask) for ask in oracle.requests]
        wait_until(lambda: all(len(client.log) > 5 for client in clients))
        os.kill(local.pid("conductor"), signal.SIGKILL)
        streams = front_end._core._streams
        wait_until(lambda: all(streams[client.rid].attempt >= ATTEMPTS for client in clients))
        late = front_end._core.late
        with Ghost(local, m.Peer("x", 0)) as ghost:
            for client in clients:
                for to in (front_end.peer, local.conductors["traps"], m.Peer("a", 0), m.Peer("b", 0)):
                    ghost.says(to, *lies(client.rid, 0), m.End(client.rid, 0), m.Credit(client.rid, 0, "Text", 1000))
            wait_until(lambda: front_end._core.late >= late + len(clients))
            assert all(client.end is None for client in clients)
            for number, client in enumerate(clients):
                oracle.judge(client.wait(), number)
        settle(front_end, peers(local))


def test_who_computes_is_not_given_up_though_nobody_hears_of_it(report):
    oracle = Oracle(TRAPS, [Ask(1, steps=5, trap="hold", at=3), Ask(2, steps=5)])
    with Local({"traps": TRAPS_FILE}, spare=False) as local:
        front_end = front(local)
        clients = [Client(front_end, "traps", ask) for ask in oracle.requests]
        for number, client in enumerate(clients):
            oracle.judge(client.wait(), number)
        report(f"a worker that let nobody else run was waited for: {clients[0].seconds:.1f} s")
        assert not local.deaths
