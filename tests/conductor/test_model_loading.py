"""Models that rest: what was there ends whole, workers of theirs end, and whoever comes next wakes them."""

import pytest

from mstar.conductor.core import ConductorCore
from mstar.conductor.limits import ConductorLimits
from mstar.conductor.model import ConductorModel
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.sim.models import SimRequest, sim_model
from mstar.wire import messages as m
from tests.conductor.test_autoscaler import FRONT, LAUNCHER, LIMITS, Deployment, busy_load

TALK, GUIDE = "talk", "guide"


class LoadingDeployment(Deployment):
    """A conductor of several models, each with a placement."""

    def __init__(self, limits=LIMITS, **places):
        served = {}
        for name, place in places.items():
            placement = parse_placement({"place": place}, "a test")
            served[name] = ConductorModel.from_plans(sim_model(name), plan(sim_model(name).graphs(), placement))
        self.model = next(iter(places))
        self.core = ConductorCore(m.Peer("conductor", 0), LAUNCHER, served, limits)
        self.now = 0.0
        self.sent = []
        self.incarnations = {}

    def start(self):
        for name in sorted({name for one in self.core.models.values() for name in one.plans.workers}):
            self.start_incarnation(name)
        return self

    def start_incarnation(self, name):
        self.incarnations[name] = self.incarnations.get(name, -1) + 1
        self.worker_up(name, self.incarnations[name])

    def send_query(self, message):
        """What a front end is told to a question."""
        self.deliver(FRONT, message)
        (standing,) = self.sent_of_kind(m.ModelStatusReply)
        assert standing.correlation_id == message.correlation_id
        return standing

    def unload(self, model=TALK):
        return self.send_query(m.UnloadModel(1, model))

    def load(self, model=TALK):
        return self.send_query(m.LoadModel(2, model))

    @property
    def model_states(self):
        return self.send_query(m.ModelStatusQuery(3)).states

    def apply_launcher_commands(self):
        """Do as a launcher does: end who is to end, start who is wanted."""
        gone = self.stop_workers()
        wanted = [one.worker for one in self.sent_of_kind(m.StartWorker)]
        for name in wanted:
            if name not in self.core.membership.workers:
                self.start_incarnation(name)
        return gone, wanted

    def wait_until_quiet(self, seconds=6.0):
        """Time passes until nothing more happens."""
        ended = []
        for _ in range(round(seconds)):
            self.advance_time(1.0)
            ended += self.stop_workers()
        return sorted(ended)


def talk_deployment(**more):
    return LoadingDeployment(talk={"lm": ["a", "b"]}, **more).start()


def test_an_unloaded_model_has_no_workers():
    one = talk_deployment()
    assert one.model_states == {TALK: "loaded"}
    assert one.unload() == m.ModelStatusReply(1, {TALK: "unloaded"})
    assert one.wait_until_quiet() == ["a", "b"]
    assert (one.core.membership.workers, one.model_states) == ({}, {TALK: "unloaded"})
    one.advance_time(60.0)
    assert one.sent_of_kind(m.StartWorker | m.StopWorker) == []


def test_running_requests_finish_before_unloading():
    one = talk_deployment()
    one.submit("r")
    one.submit("s")
    one.unload()
    assert one.wait_until_quiet(60) == []
    one.finish_walk("r")
    assert one.wait_until_quiet(60) == []
    one.finish_walk("s")
    assert [end.status for end in one.sent_of_kind(m.RequestFinished)] == ["ok", "ok"]
    assert one.wait_until_quiet() == ["a", "b"]


def test_the_next_request_loads_the_model():
    one = talk_deployment()
    one.unload()
    one.wait_until_quiet()
    one.submit("r")
    assert one.model_states == {TALK: "loading"}
    one.advance_time(0.3)
    assert one.apply_launcher_commands() == ([], ["a", "b"])
    assert one.model_states == {TALK: "loaded"}
    assert one.started_walks().keys() == {"r"}
    one.finish_walk("r")
    one.advance_time(60.0)
    assert one.sent_of_kind(m.StartWorker | m.StopWorker) == []
    assert not one.core.autoscaler.is_active, "all is as it was"
    assert one.core.capacity.inactive == set()


def test_a_load_command_loads_the_model():
    one = talk_deployment()
    one.unload()
    one.wait_until_quiet()
    assert one.load() == m.ModelStatusReply(2, {TALK: "loading"})
    one.advance_time(0.3)
    assert one.apply_launcher_commands() == ([], ["a", "b"])
    one.advance_time(60.0)
    assert one.model_states == {TALK: "loaded"}
    assert one.sent_of_kind(m.StartWorker | m.StopWorker) == []


def test_commands_are_idempotent():
    one = talk_deployment()
    assert one.load().states == {TALK: "loaded"}
    for _ in range(2):
        for _ in range(2):
            assert one.unload().states == {TALK: "unloaded"}
        assert one.wait_until_quiet() == ["a", "b"]
        for _ in range(2):
            assert one.load().states == {TALK: "loading"}
        one.advance_time(0.3)
        assert one.apply_launcher_commands() == ([], ["a", "b"])


def test_a_draining_worker_stays_when_a_request_arrives():
    one = talk_deployment()
    one.unload()
    one.advance_time(2.3)  # a conductor that has begun waits until it knows who is there
    assert all(worker.draining_since is not None for worker in one.core.membership.workers.values())
    one.submit("r")
    one.advance_time(10.0)
    assert one.sent_of_kind(m.StopWorker | m.StartWorker) == []
    assert one.started_walks().keys() == {"r"}


def test_a_stopping_worker_is_started_again_after_it_stopped():
    one = talk_deployment()
    one.unload()
    one.advance_time(6.0)
    ended = [retire.peer for retire in one.sent_of_kind(m.StopWorker)]
    assert len(ended) == 2
    one.submit("r")
    one.advance_time(1.0)
    assert one.sent_of_kind(m.StartWorker) == []
    for peer in ended:
        one.deliver(LAUNCHER, m.ProcessExited(peer, "retired"))
    one.advance_time(0.3)
    assert one.apply_launcher_commands() == ([], ["a", "b"])
    assert one.started_walks().keys() == {"r"}


def test_a_loading_model_can_be_unloaded():
    one = talk_deployment()
    one.unload()
    one.wait_until_quiet()
    one.load()
    one.advance_time(0.3)
    assert [wanted.worker for wanted in one.sent_of_kind(m.StartWorker)] == ["a", "b"]
    assert one.unload().states == {TALK: "unloaded"}
    one.advance_time(1.0)
    for name in "ab":
        one.start_incarnation(name)
    assert one.wait_until_quiet() == ["a", "b"]
    one.submit("r")
    one.advance_time(0.3)
    assert one.apply_launcher_commands() == ([], ["a", "b"])
    assert one.started_walks().keys() == {"r"}


def test_a_queued_request_is_served_before_unloading():
    one = talk_deployment()
    one.unload()
    one.wait_until_quiet()
    one.submit("r")
    one.unload()  # before anybody was wanted
    one.advance_time(0.3)
    assert one.apply_launcher_commands() == ([], ["a", "b"])
    assert one.started_walks().keys() == {"r"}
    one.finish_walk("r")
    assert one.wait_until_quiet() == ["a", "b"]


def test_a_restarted_worker_is_unloaded_too():
    one = talk_deployment()
    one.unload()
    one.deliver(LAUNCHER, m.ProcessExited(m.Peer("a", 0), "it died"))
    one.start_incarnation("a")
    assert one.wait_until_quiet() == ["a", "b"]


def test_others_are_left_alone():
    one = LoadingDeployment(talk={"lm": ["a", "b"]}, guide={"lm": ["b"]}).start()
    assert one.unload(TALK).reason == ""
    assert one.wait_until_quiet(60) == ["a"], "b serves the other one"
    assert one.model_states == {TALK: "unloaded", GUIDE: "loaded"}
    one.advance_time(30.0, {"b": busy_load(waiting=9, share=3.0)})
    assert one.sent_of_kind(m.StartWorker) == []
    one.submit("r")
    one.advance_time(0.3)
    assert one.apply_launcher_commands() == ([], ["a"])
    one.finish_walk("r")
    one.advance_time(60.0)
    assert one.sent_of_kind(m.StartWorker | m.StopWorker) == []


def test_a_model_that_shares_all_its_workers_cannot_be_unloaded():
    one = LoadingDeployment(talk={"lm": ["a", "b"]}, guide={"lm": ["b"]}).start()
    refused = one.unload(GUIDE)
    assert refused.states == {TALK: "loaded", GUIDE: "loaded"}
    assert refused.reason.startswith("it shares all its workers with talk\n  fix:")
    assert one.wait_until_quiet(10) == []
    assert one.unload(TALK).reason == ""
    assert one.unload(GUIDE).reason == "", "nobody else stays"
    assert one.wait_until_quiet(10) == ["a", "b"]
    one.load(GUIDE)
    one.advance_time(0.3)
    assert one.apply_launcher_commands() == ([], ["b"])
    assert one.model_states == {TALK: "unloaded", GUIDE: "loaded"}


def test_workers_that_cannot_end_do_not():
    one = talk_deployment(limits=ConductorLimits(has_fixed_workers=True, heartbeat_timeout_s=1e9))
    assert "in-process" in one.unload().reason
    assert one.load().states == {TALK: "loaded"}
    one.advance_time(10.0)
    assert one.sent_of_kind(m.StopWorker) == []
    assert one.model_states == {TALK: "loaded"}


@pytest.mark.parametrize("least", [0, 1])
def test_an_elastic_group_unloads_at_once_and_reloads_as_before(least):
    one = LoadingDeployment(talk={"lm": {"workers": ["a", "b", "c"], "min_replicas": least}})
    one.start_incarnation("a")
    one.submit("r")
    one.advance_time(3.0, {"a": busy_load(waiting=9)})
    one.apply_launcher_commands()
    assert len(one.core.membership.workers) == 2
    one.finish_walk("r")
    one.unload()
    assert len(one.wait_until_quiet()) == 2
    one.load()
    one.advance_time(0.3)
    assert len(one.apply_launcher_commands()[1]) == 1
    assert one.model_states == {TALK: "loaded"}
    one.wait_until_quiet(30)
    assert len(one.core.membership.workers) == least
    assert one.model_states == {TALK: "loaded" if least else "unloaded"}


def test_weights_can_be_updated_while_a_model_is_unloaded():
    one = LoadingDeployment(talk={"lm": ["a"]}, guide={"lm": ["b"]}).start()
    one.unload(TALK)
    assert one.wait_until_quiet() == ["a"]
    one.deliver(LAUNCHER, m.RollWeights(1))
    for _ in range(20):
        one.advance_time(0.5)
        one.stop_workers()
        for wanted in one.sent_of_kind(m.StartWorker):
            one.incarnations[wanted.worker] += 1
            one.worker_up(wanted.worker, one.incarnations[wanted.worker], weights_version=1)
    assert [renewed.weights_version for renewed in one.sent_of_kind(m.WeightsRolled)] == [1]
    assert one.core.membership.workers.keys() == {"b"}
    one.deliver(FRONT, m.Submit("r", TALK, m.Value(SimRequest(1, 3))))
    one.advance_time(0.3)
    assert [wanted.worker for wanted in one.sent_of_kind(m.StartWorker)] == ["a"]
