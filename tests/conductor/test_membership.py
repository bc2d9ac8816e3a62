"""Membership: registration, dead peers, stops and readiness."""

import pytest

from mstar.conductor.membership import Membership, WorkerLost
from mstar.conductor.outbox import Outbox
from mstar.wire import messages as m

LAUNCHER, FRONTEND = m.Peer("launcher", 0), m.Peer("frontend", 0)
A, A1, B = m.Peer("a", 0), m.Peer("a", 1), m.Peer("b", 0)


class Cluster:
    """A membership of workers a and b, of which a is initial, and what it sends and reports."""

    def __init__(self):
        self.outbox = Outbox(LAUNCHER)
        self.membership = Membership(self.outbox, {"a", "b"}, {"a"})
        self.events = []
        self.membership.subscribe(
            started=[lambda _, worker: self.events.append(worker.peer)],
            lost=[lambda _, lost: self.events.append(lost)],
        )

    def sent(self):
        return [(send.to, send.message) for send in self.outbox.drain()]


@pytest.fixture
def cluster():
    return Cluster()


def test_ready_is_sent_once_when_all_initial_workers_are_up(cluster):
    cluster.membership.register(0.0, B, 0)
    assert cluster.sent() == []
    cluster.membership.register(0.0, A, 0)
    cluster.membership.check_ready()
    assert cluster.sent() == [(LAUNCHER, m.Ready())]
    assert cluster.events == [B, A]


def test_registration_is_idempotent(cluster):
    for _ in range(2):
        cluster.membership.register(0.0, A, 0)
    assert cluster.events == [A]


def test_a_new_incarnation_replaces_the_old_one(cluster):
    cluster.membership.register(0.0, A, 0)
    cluster.membership.register(1.0, A1, 3)
    assert cluster.events == [A, WorkerLost(A), A1]
    assert cluster.membership.is_alive(A1)
    assert not cluster.membership.is_alive(A)
    assert cluster.membership.workers["a"].weights_version == 3
    cluster.membership.register(2.0, A, 0)
    assert cluster.membership.is_alive(A1), "an old incarnation does not replace a new one"


def test_the_predecessor_of_a_restarted_worker_is_reported_as_dead(cluster):
    cluster.membership.register(0.0, B, 0)
    cluster.membership.register(0.0, A1, 0)  # its predecessor died under an earlier conductor
    assert (B, m.PeerDead(A)) in cluster.sent()
    assert cluster.membership.dead_peers == {"a": A}


def test_every_peer_is_reported_of_a_dead_one_once(cluster):
    membership = cluster.membership
    membership.register(0.0, B, 0)
    membership.register_frontend(FRONTEND)
    for _ in range(2):
        membership.mark_dead(A)
    assert cluster.sent() == [(B, m.PeerDead(A)), (FRONTEND, m.PeerDead(A))]


def test_a_peer_that_registers_later_is_reported_too(cluster):
    cluster.membership.mark_dead(A)
    cluster.membership.register_frontend(FRONTEND)
    cluster.membership.register(0.0, B, 0)
    assert cluster.sent() == [(FRONTEND, m.PeerDead(A)), (B, m.PeerDead(A))]


def test_a_stopping_worker_cannot_register_until_it_exited(cluster):
    membership = cluster.membership
    membership.register(0.0, A, 0)
    cluster.sent()
    membership.stop(1.0, A)
    assert cluster.sent() == [(LAUNCHER, m.StopWorker(A))]
    membership.register(1.1, A, 0)
    assert not membership.is_alive(A)
    assert membership.confirm_stopped(A)
    assert not membership.confirm_stopped(A)
    membership.register(2.0, A1, 0)
    assert membership.is_alive(A1)


def test_draining_workers_do_not_serve(cluster):
    membership = cluster.membership
    membership.register(0.0, A, 0)
    membership.register(0.0, B, 0)
    membership.workers["a"].draining_since = 1.0
    assert [worker.peer for worker in membership.serving(("a", "b", "c"))] == [B]
    assert [worker.peer for worker in membership.draining()] == [A]
