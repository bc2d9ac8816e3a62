"""How many workers run, who leaves, and that no request mixes weights: a conductor's core, and the time by hand."""

from dataclasses import replace

import pytest

from mstar.conductor.core import ConductorCore
from mstar.conductor.limits import ConductorLimits
from mstar.conductor.model import ConductorModel
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.sim.models import SimRequest, sim_model
from mstar.wire import messages as m
from mstar.wire.stats import WorkerLoad
from mstar.wire.steps import MessageReceived, Tick

LAUNCHER, FRONT = m.Peer("launcher", 0), m.Peer("front", 0)
LIMITS = ConductorLimits(scale_down_delay_s=5.0, drain_timeout_s=30.0, heartbeat_timeout_s=1e9)


class Deployment:
    """A conductor, and workers that exist only in what is said to it."""

    def __init__(self, place, model="talk", limits=LIMITS):
        graphs = sim_model(model).graphs()
        served = {
            model: ConductorModel.from_plans(
                sim_model(model), plan(graphs, parse_placement({"place": place}, "a test"))
            )
        }
        self.model = model
        self.core = ConductorCore(m.Peer("conductor", 0), LAUNCHER, served, limits)
        self.now = 0.0
        self.sent = []

    def deliver(self, sender, message):
        sent = self.core.step(self.now, MessageReceived(sender, message))
        self.sent += [(send.to, send.message) for send in sent]

    def advance_time(self, seconds, loads=()):
        """Let time pass, while workers say what they have to do."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.1
            for name, load in dict(loads).items():
                if name in self.core.membership.workers:
                    self.deliver(self.core.membership.workers[name].peer, m.Heartbeat(0.0, load))
            self.sent += [(send.to, send.message) for send in self.core.step(self.now, Tick())]

    def worker_up(self, name, incarnation=0, weights_version=0):
        self.deliver(m.Peer(name, incarnation), m.Register(weights_version=weights_version))

    def submit(self, rid):
        self.deliver(FRONT, m.Submit(rid, self.model, m.Value(SimRequest(1, 3))))

    def sent_of_kind(self, kind):
        """What of one kind was said since the last time it was asked."""
        found = [message for _, message in self.sent if isinstance(message, kind)]
        self.sent = [one for one in self.sent if not isinstance(one[1], kind)]
        return found

    def started_walks(self):
        return {start.rid: start.seats[0] for start in self.sent_of_kind(m.StartWalk)}

    def finish_walk(self, rid):
        """Its only walk ends."""
        request = self.core.lifecycle.requests[rid]
        for seat, peer in enumerate(request.walk_run.seats):
            self.deliver(peer, m.SeatDone(rid, request.attempt, request.walk_run.number, seat, {}, {}, {"Text": 3}))

    def stop_workers(self):
        """What is to end ends."""
        peers = [retire.peer for retire in self.sent_of_kind(m.StopWorker)]
        for peer in peers:
            self.deliver(LAUNCHER, m.ProcessExited(peer, "retired"))
        return [peer.name for peer in peers]


def elastic_deployment(min_replicas, names="abc", **more):
    return Deployment({"lm": {"workers": list(names), "min_replicas": min_replicas}}, **more)


def busy_load(waiting=0, share=0.0, late=0):
    return WorkerLoad(share, {}, waiting, late)


def test_a_placement_without_min_replicas_sends_nothing():
    one = Deployment({"lm": ["a", "b"]})
    one.worker_up("a")
    one.worker_up("b")
    one.advance_time(60.0, {"a": busy_load(waiting=9)})
    assert one.sent_of_kind(m.StartWorker | m.StopWorker) == []


def test_it_is_ready_when_min_replicas_are_up():
    one = elastic_deployment(min_replicas=1)
    assert one.sent_of_kind(m.Ready) == []
    one.worker_up("a")
    assert len(one.sent_of_kind(m.Ready)) == 1
    none = elastic_deployment(min_replicas=0)
    none.advance_time(0.1)
    assert len(none.sent_of_kind(m.Ready)) == 1


@pytest.mark.parametrize("load", [busy_load(waiting=4), busy_load(share=1.2)], ids=["calls wait", "streams need more"])
def test_overload_scales_up_to_the_maximum(load):
    one = elastic_deployment(min_replicas=1)
    one.worker_up("a")
    one.submit("r")
    one.advance_time(4.0, {"a": load})
    assert [wanted.worker for wanted in one.sent_of_kind(m.StartWorker)] == ["b"]
    one.worker_up("b")
    one.advance_time(4.0, {"a": load, "b": load})
    assert [wanted.worker for wanted in one.sent_of_kind(m.StartWorker)] == ["c"]
    one.worker_up("c")
    one.advance_time(10.0, {"a": load, "b": load, "c": load})
    assert one.sent_of_kind(m.StartWorker) == []


def test_missed_deadlines_scale_up_only_if_they_increase():
    one = elastic_deployment(min_replicas=1)
    one.worker_up("a")
    one.submit("r")
    one.advance_time(4.0, {"a": busy_load(late=1)})
    assert one.sent_of_kind(m.StartWorker) == []
    for late in range(2, 30):
        one.advance_time(0.2, {"a": busy_load(late=late)})
    assert {wanted.worker for wanted in one.sent_of_kind(m.StartWorker)} == {"b"}


def test_a_moment_is_not_enough():
    one = elastic_deployment(min_replicas=1)
    one.worker_up("a")
    one.advance_time(4.0, {"a": busy_load()})
    one.advance_time(0.5, {"a": busy_load(waiting=9)})
    one.advance_time(4.0, {"a": busy_load()})
    assert one.sent_of_kind(m.StartWorker) == []


def test_it_scales_down_after_a_delay_and_never_below_min_replicas():
    one = elastic_deployment(min_replicas=1)
    for name in "abc":
        one.worker_up(name)
    one.advance_time(4.9)
    assert one.sent_of_kind(m.StopWorker) == []
    gone = []
    for _ in range(60):
        one.advance_time(1.0)
        gone += one.stop_workers()
    assert len(gone) == 2
    assert len(one.core.membership.workers) == 1


def test_a_draining_worker_gets_no_walks_and_stops_when_idle():
    one = elastic_deployment(min_replicas=1, names="ab")
    one.worker_up("a")
    one.worker_up("b")
    one.submit("r0")
    one.submit("r1")
    seats = one.started_walks()
    assert {peer.name for peer in seats.values()} == {"a", "b"}
    one.core.membership.workers["b"].draining_since = one.now
    one.core.autoscaler.groups[0].target = 1
    one.advance_time(3.0)
    one.submit("r2")
    assert one.started_walks()["r2"].name == "a"
    assert one.sent_of_kind(m.StopWorker) == []
    one.finish_walk(next(rid for rid, peer in seats.items() if peer.name == "b"))
    one.advance_time(0.5)
    assert one.sent_of_kind(m.StopWorker) == []  # what it said last may still be on its way
    one.advance_time(1.5)
    assert one.stop_workers() == ["b"]


def test_what_takes_too_long_is_tried_again_elsewhere():
    one = elastic_deployment(min_replicas=1, names="ab", limits=replace(LIMITS, drain_timeout_s=3.0))
    one.worker_up("a")
    one.worker_up("b")
    one.submit("r0")
    one.submit("r1")
    rid = next(rid for rid, peer in one.started_walks().items() if peer.name == "b")
    one.core.membership.workers["b"].draining_since = one.now
    one.core.autoscaler.groups[0].target = 1
    one.advance_time(2.5)
    assert one.started_walks() == {}
    one.advance_time(1.0)
    assert one.stop_workers() == ["b"]
    assert one.started_walks()[rid].name == "a"


def test_a_draining_worker_stays_when_it_is_needed_again():
    one = elastic_deployment(min_replicas=2, names="abc")
    for name in "abc":
        one.worker_up(name)
    one.advance_time(5.0)
    one.core.membership.workers["c"].draining_since = one.now
    one.core.autoscaler.groups[0].target = 2
    one.deliver(LAUNCHER, m.ProcessExited(m.Peer("a", 0), "killed"))
    one.advance_time(20.0)
    assert one.core.membership.workers["c"].draining_since is None or one.core.stats()["starting"]
    assert one.sent_of_kind(m.StopWorker) == []


def test_the_first_request_at_zero_replicas_starts_a_worker():
    one = elastic_deployment(min_replicas=0, names="ab")
    one.submit("r")
    one.advance_time(0.5)
    assert [wanted.worker for wanted in one.sent_of_kind(m.StartWorker)] == ["a"]
    one.advance_time(100.0)  # large weights
    assert one.sent_of_kind(m.RequestFinished) == []
    one.worker_up("a")
    assert one.started_walks() == {"r": m.Peer("a", 0)}
    one.finish_walk("r")
    assert [end.status for end in one.sent_of_kind(m.RequestFinished)] == ["ok"]


def test_nobody_waits_for_ever_for_a_worker_that_dies_at_every_start():
    one = elastic_deployment(min_replicas=0, names="ab")
    one.submit("r")
    one.advance_time(1.0)
    for incarnation in range(3):
        one.deliver(LAUNCHER, m.ProcessExited(m.Peer("a", incarnation), "it raised"))
    one.advance_time(1.0)
    assert [wanted.worker for wanted in one.sent_of_kind(m.StartWorker)] == ["a", "b"]
    one.advance_time(301.0)
    assert [end.status for end in one.sent_of_kind(m.RequestFinished)] == ["unavailable"]


def test_an_idle_model_scales_to_zero():
    one = elastic_deployment(min_replicas=0, names="ab")
    one.submit("r")
    one.advance_time(1.0)
    one.worker_up("a")
    one.advance_time(60.0)
    assert one.sent_of_kind(m.StopWorker) == []  # it has something to do
    one.finish_walk("r")
    one.advance_time(9.0)
    assert one.sent_of_kind(m.StopWorker) == []
    one.advance_time(10.0)
    assert one.stop_workers() == ["a"]


def test_decisions_are_counted():
    one = elastic_deployment(min_replicas=0, names="ab")
    one.submit("r")
    one.advance_time(0.5)
    stock = one.core.stats()
    assert (stock["starting"], stock["starting a"], stock["draining"]) == (1, 1, 0)


# ---------------------------------------------------------------- editions
def test_a_rolling_update_replaces_workers_one_by_one():
    one = elastic_deployment(min_replicas=2, names="abc")
    one.worker_up("a")
    one.worker_up("b")
    one.advance_time(3.0)
    one.deliver(LAUNCHER, m.RollWeights(1))
    lives, least = {"a": 0, "b": 0, "c": -1}, 2
    for _ in range(100):
        one.advance_time(0.5)
        one.stop_workers()
        for wanted in one.sent_of_kind(m.StartWorker):
            lives[wanted.worker] += 1
            one.worker_up(wanted.worker, lives[wanted.worker], weights_version=1)
        least = min(least, len(one.core.membership.workers))
    assert [renewed.weights_version for renewed in one.sent_of_kind(m.WeightsRolled)] == [1]
    assert {worker.weights_version for worker in one.core.membership.workers.values()} == {1}
    assert (len(one.core.membership.workers), least) == (2, 2)


def test_a_rolling_update_of_one_worker_makes_requests_wait():
    one = Deployment({"lm": "a"})
    one.worker_up("a")
    one.submit("r0")
    one.deliver(LAUNCHER, m.RollWeights(1))
    one.advance_time(60.0)
    assert one.sent_of_kind(m.StopWorker) == []  # nobody else could finish r0
    one.submit("r1")
    assert set(one.started_walks()) == {"r0"}
    one.finish_walk("r0")
    one.advance_time(2.0)
    assert one.stop_workers() == ["a"]
    one.advance_time(0.5)
    assert [wanted.worker for wanted in one.sent_of_kind(m.StartWorker)] == ["a"]
    one.worker_up("a", 1, weights_version=1)
    assert one.started_walks() == {"r1": m.Peer("a", 1)}


def test_a_request_is_tried_again_only_with_the_weights_that_it_began_with():
    one = Deployment({"lm": ["a", "b"]})
    one.worker_up("a")
    one.worker_up("b", weights_version=1)
    one.submit("r")
    assert one.started_walks()["r"] == m.Peer("b", 0)  # the newest
    one.deliver(LAUNCHER, m.ProcessExited(m.Peer("b", 0), "killed"))
    assert one.started_walks() == {}
    one.worker_up("b", 1, weights_version=1)
    assert one.started_walks() == {"r": m.Peer("b", 1)}


def test_what_cannot_be_tried_with_its_weights_ends_and_says_why():
    one = Deployment({"lm": ["a", "b"]})
    one.worker_up("a")
    one.submit("r")
    one.worker_up("b", weights_version=1)
    one.deliver(LAUNCHER, m.ProcessExited(m.Peer("a", 0), "killed"))
    one.advance_time(0.3)
    (end,) = one.sent_of_kind(m.RequestFinished)
    assert end.status == "not_retryable"
    assert "version 0 of the weights" in end.error_message


def test_an_unstarted_request_restarts_with_new_weights():
    one = Deployment({"lm": ["a", "b"]}, model="story")
    one.worker_up("a")
    one.submit("r")  # its first walk emits nothing
    assert one.started_walks()["r"] == m.Peer("a", 0)
    one.worker_up("b", weights_version=1)
    one.deliver(LAUNCHER, m.ProcessExited(m.Peer("a", 0), "killed"))
    one.advance_time(0.3)
    assert one.sent_of_kind(m.RequestFinished) == []
    assert one.started_walks()["r"] == m.Peer("b", 0)
