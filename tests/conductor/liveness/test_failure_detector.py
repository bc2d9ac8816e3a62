"""Failure detector: heartbeats, unresponsive workers, and kills of workers without progress."""

import pytest

from mstar.conductor.limits import ConductorLimits
from mstar.conductor.liveness.failure_detector import FailureDetector
from mstar.conductor.membership import Membership, WorkerLost
from mstar.conductor.outbox import Outbox
from mstar.wire import messages as m

LAUNCHER = m.Peer("launcher", 0)
A, B = m.Peer("a", 0), m.Peer("b", 0)


class Cluster:
    """A failure detector of workers a and b, and what it sends and reports."""

    def __init__(self):
        self.outbox = Outbox(LAUNCHER)
        self.membership = Membership(self.outbox, {"a", "b"}, {"a"})
        self.detector = FailureDetector(self.membership, self.outbox, ConductorLimits(heartbeat_timeout_s=1.0))
        self.lost, self.unresponsive = [], []
        self.membership.subscribe(started=[], lost=[lambda _, lost: self.lost.append(lost)])
        self.detector.subscribe([lambda _, worker: self.unresponsive.append(worker.peer)])

    def sent(self):
        return [(send.to, send.message) for send in self.outbox.drain()]


@pytest.fixture
def cluster():
    return Cluster()


def test_a_silent_worker_is_unresponsive_until_its_next_message(cluster):
    membership = cluster.membership
    membership.register(0.0, A, 0)
    membership.register(0.0, B, 0)
    cluster.detector.on_message(0.9, B)
    cluster.detector.tick(1.1)
    assert (membership.is_alive(A), membership.is_responsive(A)) == (True, False)
    assert membership.is_responsive(B)
    assert cluster.unresponsive == [A]
    cluster.detector.on_message(60.0, A)
    assert membership.is_responsive(A)


def test_a_worker_that_stays_silent_is_killed(cluster):
    cluster.membership.register(0.0, A, 0)
    cluster.detector.tick(120.0)
    assert cluster.membership.is_alive(A)
    cluster.sent()
    cluster.detector.tick(121.0)
    assert (LAUNCHER, m.Kill(A, "no message for 121 s")) in cluster.sent()
    assert cluster.lost == [WorkerLost(A)]


def test_workers_that_fall_silent_together_are_not_killed_together(cluster):
    membership = cluster.membership
    membership.register(0.0, A, 0)
    membership.register(0.0, B, 0)
    cluster.detector.on_message(1.0, B)
    cluster.detector.tick(130.0)
    assert membership.workers.keys() == {"b"}, "the one that is silent for the longest time"
    cluster.detector.tick(130.9)
    assert membership.is_alive(B)
    cluster.detector.tick(131.0)
    assert not membership.is_alive(B)


def test_a_worker_of_an_earlier_conductor_that_does_not_register_is_killed(cluster):
    old, restarted, late = m.Peer("a", 3), m.Peer("b", 1), m.Peer("b+", 0)
    cluster.detector.expect([old, restarted, late])
    cluster.detector.tick(1000.0)
    cluster.detector.on_message(1010.0, late)
    cluster.membership.register(1020.0, m.Peer("b", 2), 0)
    cluster.detector.on_message(1119.0, m.Peer("b", 2))
    cluster.detector.tick(1120.0)
    assert not [message for _, message in cluster.sent() if isinstance(message, m.Kill)]
    cluster.detector.tick(1121.0)
    kills = [message for _, message in cluster.sent() if isinstance(message, m.Kill)]
    assert kills == [m.Kill(old, "no message to a new conductor for 121 s")]
    assert cluster.lost == []
    cluster.detector.tick(1200.0)
    assert not [message for _, message in cluster.sent() if isinstance(message, m.Kill)], "once"


def test_workers_that_do_not_register_are_not_killed_together_or_after_their_exit(cluster):
    cluster.detector.expect([A, B])
    cluster.detector.tick(0.0)
    cluster.membership.mark_dead(B)
    cluster.detector.tick(121.0)
    cluster.detector.tick(122.0)
    assert [message.peer for _, message in cluster.sent() if isinstance(message, m.Kill)] == [A]
    cluster.detector.expect([A, B])
    cluster.membership.dead_peers.clear()
    cluster.detector.tick(200.0)
    cluster.detector.tick(321.0)
    cluster.detector.tick(321.5)
    assert [message.peer for _, message in cluster.sent() if isinstance(message, m.Kill)] == [A]
    cluster.detector.tick(322.0)
    assert [message.peer for _, message in cluster.sent() if isinstance(message, m.Kill)] == [B]


def test_a_worker_whose_batch_is_known_to_be_long_can_be_silent_for_longer(cluster):
    cluster.membership.register(0.0, A, 0)
    cluster.detector.on_batch_running(0.0, A, 0.0, 30.0)
    cluster.detector.tick(300.0)
    assert cluster.membership.is_alive(A)
    cluster.detector.on_batch_running(300.0, A, 300.0, 30.0)
    assert cluster.membership.is_alive(A)
    cluster.detector.tick(301.0)
    assert not cluster.membership.is_alive(A)


def test_heartbeats_are_sent_every_interval(cluster):
    cluster.membership.register(0.0, A, 0)
    cluster.sent()
    for now in (0.0, 0.1, 0.2, 0.3):
        cluster.detector.tick(now)
    assert cluster.sent() == [(A, m.Heartbeat())] * 2


def test_a_computing_worker_can_be_silent_up_to_the_grace_period(cluster):
    cluster.membership.register(0.0, A, 0)
    for now in range(61):
        cluster.detector.on_still_computing(now, A)
        cluster.detector.tick(now)
    assert cluster.membership.is_responsive(A)
    for now in (61, 62):
        cluster.detector.on_still_computing(now, A)
        cluster.detector.tick(now)
    assert not cluster.membership.is_responsive(A)


def test_a_batch_without_end_kills_its_worker(cluster):
    cluster.membership.register(0.0, A, 0)
    cluster.detector.on_batch_running(0.0, A, 120.0, 1.0)
    assert cluster.membership.is_alive(A)
    cluster.detector.on_batch_running(0.0, A, 121.0, 1.0)
    assert (LAUNCHER, m.Kill(A, "its batch has run for 121 s")) in cluster.sent()
