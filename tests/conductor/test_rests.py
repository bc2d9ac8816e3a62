"""Models that rest: what was there ends whole, workers of theirs end, and whoever comes next wakes them."""

import pytest

from mstar.conductor.core import ConductorCore, Limits, Served
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.sim.models import Ask, model_of
from mstar.wire import messages as m
from tests.conductor.test_scaling import FRONT, LAUNCHER, LIMITS, Deployment, busy

TALK, GUIDE = "talk", "guide"


class House(Deployment):
    """A conductor of several models, each with a placement."""

    def __init__(self, limits=LIMITS, **places):
        served = {}
        for name, place in places.items():
            placement = parse_placement({"place": place}, "a test")
            served[name] = Served.of(model_of(name), plan(model_of(name).graphs(), placement))
        self.model = next(iter(places))
        self.core = ConductorCore(m.Peer("conductor", 0), LAUNCHER, served, limits)
        self.now = 0.0
        self.said = []
        self.lives = {}

    def start(self):
        for name in sorted({name for one in self.core.served.values() for name in one.plans.workers}):
            self.come(name)
        return self

    def come(self, name):
        self.lives[name] = self.lives.get(name, -1) + 1
        self.up(name, self.lives[name])

    def stands(self, message):
        """What a front end is told to a question."""
        self.tell(FRONT, message)
        (standing,) = self.heard(m.Standing)
        assert standing.ticket == message.ticket
        return standing

    def rest(self, model=TALK):
        return self.stands(m.Rest(1, model))

    def wake(self, model=TALK):
        return self.stands(m.Wake(2, model))

    @property
    def states(self):
        return self.stands(m.TakeStanding(3)).states

    def obey(self):
        """Do as a launcher does: end who is to end, start who is wanted."""
        gone = self.retired()
        wanted = [one.worker for one in self.heard(m.Wanted)]
        for name in wanted:
            if name not in self.core.workers:
                self.come(name)
        return gone, wanted

    def sleep(self, seconds=6.0):
        """Time passes until nothing more happens."""
        ended = []
        for _ in range(round(seconds)):
            self.pass_time(1.0)
            ended += self.retired()
        return sorted(ended)


def talk(**more):
    return House(talk={"lm": ["a", "b"]}, **more).start()


def test_a_model_that_rests_has_no_workers():
    one = talk()
    assert one.states == {TALK: "up"}
    assert one.rest() == m.Standing(1, {TALK: "resting"})
    assert one.sleep() == ["a", "b"]
    assert (one.core.workers, one.states) == ({}, {TALK: "resting"})
    one.pass_time(60.0)
    assert one.heard(m.Wanted | m.Retire) == []


def test_what_was_there_ends_first():
    one = talk()
    one.ask("r")
    one.ask("s")
    one.rest()
    assert one.sleep(60) == []
    one.done("r")
    assert one.sleep(60) == []
    one.done("s")
    assert [end.status for end in one.heard(m.Finished)] == ["ok", "ok"]
    assert one.sleep() == ["a", "b"]


def test_the_next_request_wakes_it_whole():
    one = talk()
    one.rest()
    one.sleep()
    one.ask("r")
    assert one.states == {TALK: "loading"}
    one.pass_time(0.3)
    assert one.obey() == ([], ["a", "b"])
    assert one.states == {TALK: "up"}
    assert one.started().keys() == {"r"}
    one.done("r")
    one.pass_time(60.0)
    assert one.heard(m.Wanted | m.Retire) == []
    assert not one.core.scaling.is_active, "all is as it was"
    assert one.core.scaling.asleep == set()


def test_it_is_woken_when_it_is_told_to():
    one = talk()
    one.rest()
    one.sleep()
    assert one.wake() == m.Standing(2, {TALK: "loading"})
    one.pass_time(0.3)
    assert one.obey() == ([], ["a", "b"])
    one.pass_time(60.0)
    assert one.states == {TALK: "up"}
    assert one.heard(m.Wanted | m.Retire) == []


def test_twice_is_as_good_as_once():
    one = talk()
    assert one.wake().states == {TALK: "up"}
    for _ in range(2):
        for _ in range(2):
            assert one.rest().states == {TALK: "resting"}
        assert one.sleep() == ["a", "b"]
        for _ in range(2):
            assert one.wake().states == {TALK: "loading"}
        one.pass_time(0.3)
        assert one.obey() == ([], ["a", "b"])


def test_who_leaves_stays_when_somebody_comes():
    one = talk()
    one.rest()
    one.pass_time(2.3)  # a conductor that has begun waits until it knows who is there
    assert all(worker.leaves is not None for worker in one.core.workers.values())
    one.ask("r")
    one.pass_time(10.0)
    assert one.heard(m.Retire | m.Wanted) == []
    assert one.started().keys() == {"r"}


def test_one_that_is_being_ended_is_wanted_when_it_has_ended():
    one = talk()
    one.rest()
    one.pass_time(6.0)
    ended = [retire.peer for retire in one.heard(m.Retire)]
    assert len(ended) == 2
    one.ask("r")
    one.pass_time(1.0)
    assert one.heard(m.Wanted) == []
    for peer in ended:
        one.tell(LAUNCHER, m.Gone(peer, "retired"))
    one.pass_time(0.3)
    assert one.obey() == ([], ["a", "b"])
    assert one.started().keys() == {"r"}


def test_it_may_rest_while_it_is_loaded():
    one = talk()
    one.rest()
    one.sleep()
    one.wake()
    one.pass_time(0.3)
    assert [wanted.worker for wanted in one.heard(m.Wanted)] == ["a", "b"]
    assert one.rest().states == {TALK: "resting"}
    one.pass_time(1.0)
    for name in "ab":
        one.come(name)
    assert one.sleep() == ["a", "b"]
    one.ask("r")
    one.pass_time(0.3)
    assert one.obey() == ([], ["a", "b"])
    assert one.started().keys() == {"r"}


def test_a_request_that_waits_is_served_although_it_is_to_rest():
    one = talk()
    one.rest()
    one.sleep()
    one.ask("r")
    one.rest()  # before anybody was wanted
    one.pass_time(0.3)
    assert one.obey() == ([], ["a", "b"])
    assert one.started().keys() == {"r"}
    one.done("r")
    assert one.sleep() == ["a", "b"]


def test_one_that_dies_and_is_started_again_rests_too():
    one = talk()
    one.rest()
    one.tell(LAUNCHER, m.Gone(m.Peer("a", 0), "it died"))
    one.come("a")
    assert one.sleep() == ["a", "b"]


def test_others_are_left_alone():
    one = House(talk={"lm": ["a", "b"]}, guide={"lm": ["b"]}).start()
    assert one.rest(TALK).why == ""
    assert one.sleep(60) == ["a"], "b serves the other one"
    assert one.states == {TALK: "resting", GUIDE: "up"}
    one.pass_time(30.0, {"b": busy(waiting=9, share=3.0)})
    assert one.heard(m.Wanted) == []
    one.ask("r")
    one.pass_time(0.3)
    assert one.obey() == ([], ["a"])
    one.done("r")
    one.pass_time(60.0)
    assert one.heard(m.Wanted | m.Retire) == []


def test_what_shares_all_its_workers_cannot_rest():
    one = House(talk={"lm": ["a", "b"]}, guide={"lm": ["b"]}).start()
    refused = one.rest(GUIDE)
    assert refused.states == {TALK: "up", GUIDE: "up"}
    assert refused.why.startswith("all its workers serve talk too, which would stay;")
    assert one.sleep(10) == []
    assert one.rest(TALK).why == ""
    assert one.rest(GUIDE).why == "", "nobody else stays"
    assert one.sleep(10) == ["a", "b"]
    one.wake(GUIDE)
    one.pass_time(0.3)
    assert one.obey() == ([], ["b"])
    assert one.states == {TALK: "resting", GUIDE: "up"}


def test_workers_that_cannot_end_do_not():
    one = talk(limits=Limits(is_fixed=True, silence=1e9))
    assert "in-process" in one.rest().why
    assert one.wake().states == {TALK: "up"}
    one.pass_time(10.0)
    assert one.heard(m.Retire) == []
    assert one.states == {TALK: "up"}


@pytest.mark.parametrize("least", [0, 1])
def test_a_crew_that_comes_and_goes_rests_at_once_and_is_as_before_when_it_is_woken(least):
    one = House(talk={"lm": {"workers": ["a", "b", "c"], "least": least}})
    one.come("a")
    one.ask("r")
    one.pass_time(3.0, {"a": busy(waiting=9)})
    one.obey()
    assert len(one.core.workers) == 2
    one.done("r")
    one.rest()
    assert len(one.sleep()) == 2
    one.wake()
    one.pass_time(0.3)
    assert len(one.obey()[1]) == 1
    assert one.states == {TALK: "up"}
    one.sleep(30)
    assert len(one.core.workers) == least
    assert one.states == {TALK: "up" if least else "resting"}


def test_weights_are_renewed_while_a_model_rests():
    one = House(talk={"lm": ["a"]}, guide={"lm": ["b"]}).start()
    one.rest(TALK)
    assert one.sleep() == ["a"]
    one.tell(LAUNCHER, m.Renew(1))
    for _ in range(20):
        one.pass_time(0.5)
        one.retired()
        for wanted in one.heard(m.Wanted):
            one.lives[wanted.worker] += 1
            one.up(wanted.worker, one.lives[wanted.worker], edition=1)
    assert [renewed.edition for renewed in one.heard(m.Renewed)] == [1]
    assert one.core.workers.keys() == {"b"}
    one.tell(FRONT, m.Submit("r", TALK, m.Value(Ask(1, 3))))
    one.pass_time(0.3)
    assert [wanted.worker for wanted in one.heard(m.Wanted)] == ["a"]
