"""How many workers run, who leaves, and that no request mixes weights: a conductor's core, and the time by hand."""

from dataclasses import replace

import pytest

from mstar.conductor.core import ConductorCore, Limits, Received, Served, Tick
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.sim.models import Ask, model_of
from mstar.wire import messages as m
from mstar.wire.figures import Load

LAUNCHER, FRONT = m.Peer("launcher", 0), m.Peer("front", 0)
LIMITS = Limits(calm=5.0, grace=30.0, silence=1e9)


class Deployment:
    """A conductor, and workers that exist only in what is said to it."""

    def __init__(self, place, model="talk", limits=LIMITS):
        graphs = model_of(model).graphs()
        served = {model: Served.of(model_of(model), plan(graphs, parse_placement({"place": place}, "a test")))}
        self.model = model
        self.core = ConductorCore(m.Peer("conductor", 0), LAUNCHER, served, limits)
        self.now = 0.0
        self.said = []

    def tell(self, sender, message):
        sent = self.core.step(self.now, Received(sender, message))
        self.said += [(send.to, send.message) for send in sent]

    def pass_time(self, seconds, loads=()):
        """Let time pass, while workers say what they have to do."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.1
            for name, load in dict(loads).items():
                if name in self.core.workers:
                    self.tell(self.core.workers[name].peer, m.Beat(0.0, load))
            self.said += [(send.to, send.message) for send in self.core.step(self.now, Tick())]

    def up(self, name, incarnation=0, edition=0):
        self.tell(m.Peer(name, incarnation), m.Hello(edition=edition))

    def ask(self, rid):
        self.tell(FRONT, m.Submit(rid, self.model, m.Value(Ask(1, 3))))

    def heard(self, kind):
        """What of one kind was said since the last time it was asked."""
        found = [message for _, message in self.said if isinstance(message, kind)]
        self.said = [one for one in self.said if not isinstance(one[1], kind)]
        return found

    def started(self):
        return {start.rid: start.seats[0] for start in self.heard(m.Start)}

    def done(self, rid):
        """Its only walk ends."""
        request = self.core.requests[rid]
        for seat, peer in enumerate(request.tour.seats):
            self.tell(peer, m.Done(rid, request.attempt, request.tour.number, seat, {}, {}, {"Text": 3}))

    def retired(self):
        """What is to end ends."""
        peers = [retire.peer for retire in self.heard(m.Retire)]
        for peer in peers:
            self.tell(LAUNCHER, m.Gone(peer, "retired"))
        return [peer.name for peer in peers]


def elastic(least, names="abc", **more):
    return Deployment({"lm": {"workers": list(names), "least": least}}, **more)


def busy(waiting=0, share=0.0, late=0):
    return Load(share, {}, waiting, late)


def test_a_placement_without_least_sends_nothing():
    one = Deployment({"lm": ["a", "b"]})
    one.up("a")
    one.up("b")
    one.pass_time(60.0, {"a": busy(waiting=9)})
    assert one.heard(m.Wanted | m.Retire) == []


def test_it_is_ready_when_as_many_are_there_as_always_run():
    one = elastic(least=1)
    assert one.heard(m.Ready) == []
    one.up("a")
    assert len(one.heard(m.Ready)) == 1
    none = elastic(least=0)
    none.pass_time(0.1)
    assert len(none.heard(m.Ready)) == 1


@pytest.mark.parametrize("load", [busy(waiting=4), busy(share=1.2)], ids=["calls wait", "streams need more"])
def test_too_much_to_do_brings_one_more_up_to_all(load):
    one = elastic(least=1)
    one.up("a")
    one.ask("r")
    one.pass_time(4.0, {"a": load})
    assert [wanted.worker for wanted in one.heard(m.Wanted)] == ["b"]
    one.up("b")
    one.pass_time(4.0, {"a": load, "b": load})
    assert [wanted.worker for wanted in one.heard(m.Wanted)] == ["c"]
    one.up("c")
    one.pass_time(10.0, {"a": load, "b": load, "c": load})
    assert one.heard(m.Wanted) == []


def test_late_emissions_bring_one_more_only_if_there_are_more_of_them():
    one = elastic(least=1)
    one.up("a")
    one.ask("r")
    one.pass_time(4.0, {"a": busy(late=1)})
    assert one.heard(m.Wanted) == []
    for late in range(2, 30):
        one.pass_time(0.2, {"a": busy(late=late)})
    assert {wanted.worker for wanted in one.heard(m.Wanted)} == {"b"}


def test_a_moment_is_not_enough():
    one = elastic(least=1)
    one.up("a")
    one.pass_time(4.0, {"a": busy()})
    one.pass_time(0.5, {"a": busy(waiting=9)})
    one.pass_time(4.0, {"a": busy()})
    assert one.heard(m.Wanted) == []


def test_fewer_run_after_a_while_and_never_fewer_than_least():
    one = elastic(least=1)
    for name in "abc":
        one.up(name)
    one.pass_time(4.9)
    assert one.heard(m.Retire) == []
    gone = []
    for _ in range(60):
        one.pass_time(1.0)
        gone += one.retired()
    assert len(gone) == 2
    assert len(one.core.workers) == 1


def test_who_leaves_gets_no_new_walks_and_is_ended_when_the_last_is_over():
    one = elastic(least=1, names="ab")
    one.up("a")
    one.up("b")
    one.ask("r0")
    one.ask("r1")
    seats = one.started()
    assert {peer.name for peer in seats.values()} == {"a", "b"}
    one.core.workers["b"].leaves = one.now
    one.core.scaling.crews[0].target = 1
    one.pass_time(3.0)
    one.ask("r2")
    assert one.started()["r2"].name == "a"
    assert one.heard(m.Retire) == []
    one.done(next(rid for rid, peer in seats.items() if peer.name == "b"))
    one.pass_time(0.5)
    assert one.heard(m.Retire) == []  # what it said last may still be on its way
    one.pass_time(1.5)
    assert one.retired() == ["b"]


def test_what_takes_too_long_is_tried_again_elsewhere():
    one = elastic(least=1, names="ab", limits=replace(LIMITS, grace=3.0))
    one.up("a")
    one.up("b")
    one.ask("r0")
    one.ask("r1")
    rid = next(rid for rid, peer in one.started().items() if peer.name == "b")
    one.core.workers["b"].leaves = one.now
    one.core.scaling.crews[0].target = 1
    one.pass_time(2.5)
    assert one.started() == {}
    one.pass_time(1.0)
    assert one.retired() == ["b"]
    assert one.started()[rid].name == "a"


def test_who_leaves_stays_when_it_is_needed_again():
    one = elastic(least=2, names="abc")
    for name in "abc":
        one.up(name)
    one.pass_time(5.0)
    one.core.workers["c"].leaves = one.now
    one.core.scaling.crews[0].target = 2
    one.tell(LAUNCHER, m.Gone(m.Peer("a", 0), "killed"))
    one.pass_time(20.0)
    assert one.core.workers["c"].leaves is None or one.core.stock()["wanted"]
    assert one.heard(m.Retire) == []


def test_the_first_request_at_zero_brings_a_worker_and_waits_for_it():
    one = elastic(least=0, names="ab")
    one.ask("r")
    one.pass_time(0.5)
    assert [wanted.worker for wanted in one.heard(m.Wanted)] == ["a"]
    one.pass_time(100.0)  # large weights
    assert one.heard(m.Finished) == []
    one.up("a")
    assert one.started() == {"r": m.Peer("a", 0)}
    one.done("r")
    assert [end.status for end in one.heard(m.Finished)] == ["ok"]


def test_nobody_waits_for_ever_for_a_worker_that_dies_at_every_start():
    one = elastic(least=0, names="ab")
    one.ask("r")
    one.pass_time(1.0)
    for incarnation in range(3):
        one.tell(LAUNCHER, m.Gone(m.Peer("a", incarnation), "it raised"))
    one.pass_time(1.0)
    assert [wanted.worker for wanted in one.heard(m.Wanted)] == ["a", "b"]
    one.pass_time(301.0)
    assert [end.status for end in one.heard(m.Finished)] == ["unavailable"]


def test_the_last_one_sleeps_when_nothing_was_asked_for_a_while():
    one = elastic(least=0, names="ab")
    one.ask("r")
    one.pass_time(1.0)
    one.up("a")
    one.pass_time(60.0)
    assert one.heard(m.Retire) == []  # it has something to do
    one.done("r")
    one.pass_time(9.0)
    assert one.heard(m.Retire) == []
    one.pass_time(10.0)
    assert one.retired() == ["a"]


def test_decisions_are_counted():
    one = elastic(least=0, names="ab")
    one.ask("r")
    one.pass_time(0.5)
    stock = one.core.stock()
    assert (stock["wanted"], stock["wanted a"], stock["leaving"]) == (1, 1, 0)


# ---------------------------------------------------------------- editions
def test_a_renewal_replaces_one_by_one_and_as_many_run_as_before():
    one = elastic(least=2, names="abc")
    one.up("a")
    one.up("b")
    one.pass_time(3.0)
    one.tell(LAUNCHER, m.Renew(1))
    lives, least = {"a": 0, "b": 0, "c": -1}, 2
    for _ in range(100):
        one.pass_time(0.5)
        one.retired()
        for wanted in one.heard(m.Wanted):
            lives[wanted.worker] += 1
            one.up(wanted.worker, lives[wanted.worker], edition=1)
        least = min(least, len(one.core.workers))
    assert [renewed.edition for renewed in one.heard(m.Renewed)] == [1]
    assert {worker.edition for worker in one.core.workers.values()} == {1}
    assert (len(one.core.workers), least) == (2, 2)


def test_of_one_name_there_is_a_gap_and_requests_wait():
    one = Deployment({"lm": "a"})
    one.up("a")
    one.ask("r0")
    one.tell(LAUNCHER, m.Renew(1))
    one.pass_time(60.0)
    assert one.heard(m.Retire) == []  # nobody else could finish r0
    one.ask("r1")
    assert set(one.started()) == {"r0"}
    one.done("r0")
    one.pass_time(2.0)
    assert one.retired() == ["a"]
    one.pass_time(0.5)
    assert [wanted.worker for wanted in one.heard(m.Wanted)] == ["a"]
    one.up("a", 1, edition=1)
    assert one.started() == {"r1": m.Peer("a", 1)}


def test_a_request_is_tried_again_only_with_the_weights_that_it_began_with():
    one = Deployment({"lm": ["a", "b"]})
    one.up("a")
    one.up("b", edition=1)
    one.ask("r")
    assert one.started()["r"] == m.Peer("b", 0)  # the newest
    one.tell(LAUNCHER, m.Gone(m.Peer("b", 0), "killed"))
    assert one.started() == {}
    one.up("b", 1, edition=1)
    assert one.started() == {"r": m.Peer("b", 1)}


def test_what_cannot_be_tried_with_its_weights_ends_and_says_why():
    one = Deployment({"lm": ["a", "b"]})
    one.up("a")
    one.ask("r")
    one.up("b", edition=1)
    one.tell(LAUNCHER, m.Gone(m.Peer("a", 0), "killed"))
    one.pass_time(0.3)
    (end,) = one.heard(m.Finished)
    assert end.status == "not_replayed"
    assert "edition 0 of the weights" in end.text


def test_who_has_nothing_yet_begins_with_other_weights():
    one = Deployment({"lm": ["a", "b"]}, model="story")
    one.up("a")
    one.ask("r")  # its first walk emits nothing
    assert one.started()["r"] == m.Peer("a", 0)
    one.up("b", edition=1)
    one.tell(LAUNCHER, m.Gone(m.Peer("a", 0), "killed"))
    one.pass_time(0.3)
    assert one.heard(m.Finished) == []
    assert one.started()["r"] == m.Peer("b", 0)
