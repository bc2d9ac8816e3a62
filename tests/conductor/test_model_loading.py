"""Loading and unloading of models: running requests finish, workers stop, the next request loads the model again."""

import pytest

from mstar.conductor.limits import ConductorLimits
from mstar.sim.models import SimRequest
from mstar.wire import messages as m
from tests.conductor.deployment import FRONTEND, LAUNCHER, LIMITS, Deployment, worker_load

TALK, GUIDE = "talk", "guide"


class ModelDeployment(Deployment):
    """A deployment with the model commands of a front end."""

    def __init__(self, limits=LIMITS, **places):
        super().__init__(places, limits)

    def send_command(self, message):
        """Send a command; return the reply."""
        self.deliver(FRONTEND, message)
        (reply,) = self.sent_of_kind(m.ModelStatusReply)
        assert reply.correlation_id == message.correlation_id
        return reply

    def unload(self, model=TALK):
        return self.send_command(m.UnloadModel(1, model))

    def load(self, model=TALK):
        return self.send_command(m.LoadModel(2, model))

    @property
    def model_states(self):
        return self.send_command(m.ModelStatusQuery(3)).states


def talk_deployment(**more):
    return ModelDeployment(talk={"lm": ["a", "b"]}, **more).start_all()


def test_an_unloaded_model_has_no_workers():
    deployment = talk_deployment()
    assert deployment.model_states == {TALK: "loaded"}
    assert deployment.unload() == m.ModelStatusReply(1, {TALK: "unloaded"})
    assert deployment.launcher.stop_idle_workers() == ["a", "b"]
    assert (deployment.workers, deployment.model_states) == ({}, {TALK: "unloaded"})
    deployment.advance_time(60.0)
    assert deployment.sent_of_kind(m.StartWorker | m.StopWorker) == []


def test_running_requests_finish_before_unloading():
    deployment = talk_deployment()
    deployment.submit("r")
    deployment.submit("s")
    deployment.unload()
    assert deployment.launcher.stop_idle_workers(60) == []
    deployment.finish_walk("r")
    assert deployment.launcher.stop_idle_workers(60) == []
    deployment.finish_walk("s")
    assert [end.status for end in deployment.sent_of_kind(m.RequestFinished)] == ["ok", "ok"]
    assert deployment.launcher.stop_idle_workers() == ["a", "b"]


def test_the_next_request_loads_the_model():
    deployment = talk_deployment()
    deployment.unload()
    deployment.launcher.stop_idle_workers()
    deployment.submit("r")
    assert deployment.model_states == {TALK: "loading"}
    deployment.advance_time(0.3)
    assert deployment.launcher.apply_commands() == ([], ["a", "b"])
    assert deployment.model_states == {TALK: "loaded"}
    assert deployment.started_walks().keys() == {"r"}
    deployment.finish_walk("r")
    deployment.advance_time(60.0)
    assert deployment.sent_of_kind(m.StartWorker | m.StopWorker) == []
    assert not deployment.core.autoscaler.is_active, "nothing is left to scale"
    assert deployment.core.capacity.inactive == set()


def test_a_load_command_loads_the_model():
    deployment = talk_deployment()
    deployment.unload()
    deployment.launcher.stop_idle_workers()
    assert deployment.load() == m.ModelStatusReply(2, {TALK: "loading"})
    deployment.advance_time(0.3)
    assert deployment.launcher.apply_commands() == ([], ["a", "b"])
    deployment.advance_time(60.0)
    assert deployment.model_states == {TALK: "loaded"}
    assert deployment.sent_of_kind(m.StartWorker | m.StopWorker) == []


def test_commands_are_idempotent():
    deployment = talk_deployment()
    assert deployment.load().states == {TALK: "loaded"}
    for _ in range(2):
        for _ in range(2):
            assert deployment.unload().states == {TALK: "unloaded"}
        assert deployment.launcher.stop_idle_workers() == ["a", "b"]
        for _ in range(2):
            assert deployment.load().states == {TALK: "loading"}
        deployment.advance_time(0.3)
        assert deployment.launcher.apply_commands() == ([], ["a", "b"])


def test_a_draining_worker_stays_when_a_request_arrives():
    deployment = talk_deployment()
    deployment.unload()
    deployment.advance_time(2.3)  # startup_settle_s
    assert all(worker.draining_since is not None for worker in deployment.workers.values())
    deployment.submit("r")
    deployment.advance_time(10.0)
    assert deployment.sent_of_kind(m.StopWorker | m.StartWorker) == []
    assert deployment.started_walks().keys() == {"r"}


def test_a_stopping_worker_is_started_again_after_it_stopped():
    deployment = talk_deployment()
    deployment.unload()
    deployment.advance_time(6.0)
    stopping = [stop.peer for stop in deployment.sent_of_kind(m.StopWorker)]
    assert len(stopping) == 2
    deployment.submit("r")
    deployment.advance_time(1.0)
    assert deployment.sent_of_kind(m.StartWorker) == []
    for peer in stopping:
        deployment.exit_process(peer, "stopped")
    deployment.advance_time(0.3)
    assert deployment.launcher.apply_commands() == ([], ["a", "b"])
    assert deployment.started_walks().keys() == {"r"}


def test_a_loading_model_can_be_unloaded():
    deployment = talk_deployment()
    deployment.unload()
    deployment.launcher.stop_idle_workers()
    deployment.load()
    deployment.advance_time(0.3)
    assert deployment.started_workers() == ["a", "b"]
    assert deployment.unload().states == {TALK: "unloaded"}
    deployment.advance_time(1.0)
    for name in "ab":
        deployment.launcher.start_incarnation(name)
    assert deployment.launcher.stop_idle_workers() == ["a", "b"]
    deployment.submit("r")
    deployment.advance_time(0.3)
    assert deployment.launcher.apply_commands() == ([], ["a", "b"])
    assert deployment.started_walks().keys() == {"r"}


def test_a_queued_request_is_served_before_unloading():
    deployment = talk_deployment()
    deployment.unload()
    deployment.launcher.stop_idle_workers()
    deployment.submit("r")
    deployment.unload()  # before a worker was started
    deployment.advance_time(0.3)
    assert deployment.launcher.apply_commands() == ([], ["a", "b"])
    assert deployment.started_walks().keys() == {"r"}
    deployment.finish_walk("r")
    assert deployment.launcher.stop_idle_workers() == ["a", "b"]


def test_a_restarted_worker_is_unloaded_too():
    deployment = talk_deployment()
    deployment.unload()
    deployment.exit_process(m.Peer("a", 0))
    deployment.launcher.start_incarnation("a")
    assert deployment.launcher.stop_idle_workers() == ["a", "b"]


def test_workers_shared_with_a_loaded_model_stay():
    deployment = ModelDeployment(talk={"lm": ["a", "b"]}, guide={"lm": ["b"]}).start_all()
    assert deployment.unload(TALK).reason == ""
    assert deployment.launcher.stop_idle_workers(60) == ["a"], "b serves the other one"
    assert deployment.model_states == {TALK: "unloaded", GUIDE: "loaded"}
    deployment.advance_time(30.0, {"b": worker_load(queued_batches=9, utilization=3.0)})
    assert deployment.sent_of_kind(m.StartWorker) == []
    deployment.submit("r")
    deployment.advance_time(0.3)
    assert deployment.launcher.apply_commands() == ([], ["a"])
    deployment.finish_walk("r")
    deployment.advance_time(60.0)
    assert deployment.sent_of_kind(m.StartWorker | m.StopWorker) == []


def test_a_model_that_shares_all_its_workers_cannot_be_unloaded():
    deployment = ModelDeployment(talk={"lm": ["a", "b"]}, guide={"lm": ["b"]}).start_all()
    refused = deployment.unload(GUIDE)
    assert refused.states == {TALK: "loaded", GUIDE: "loaded"}
    assert refused.reason.startswith("it shares all its workers with talk\n  fix:")
    assert deployment.launcher.stop_idle_workers(10) == []
    assert deployment.unload(TALK).reason == ""
    assert deployment.unload(GUIDE).reason == "", "no other model stays"
    assert deployment.launcher.stop_idle_workers(10) == ["a", "b"]
    deployment.load(GUIDE)
    deployment.advance_time(0.3)
    assert deployment.launcher.apply_commands() == ([], ["b"])
    assert deployment.model_states == {TALK: "unloaded", GUIDE: "loaded"}


def test_fixed_workers_cannot_be_unloaded():
    deployment = talk_deployment(limits=ConductorLimits(has_fixed_workers=True, heartbeat_timeout_s=1e9))
    assert "in-process" in deployment.unload().reason
    assert deployment.load().states == {TALK: "loaded"}
    deployment.advance_time(10.0)
    assert deployment.sent_of_kind(m.StopWorker) == []
    assert deployment.model_states == {TALK: "loaded"}


@pytest.mark.parametrize("min_replicas", [0, 1])
def test_an_elastic_group_unloads_at_once_and_reloads_as_before(min_replicas):
    deployment = ModelDeployment(talk={"lm": {"workers": ["a", "b", "c"], "min_replicas": min_replicas}})
    deployment.launcher.start_incarnation("a")
    deployment.submit("r")
    deployment.advance_time(3.0, {"a": worker_load(queued_batches=9)})
    deployment.launcher.apply_commands()
    assert len(deployment.workers) == 2
    deployment.finish_walk("r")
    deployment.unload()
    assert len(deployment.launcher.stop_idle_workers()) == 2
    deployment.load()
    deployment.advance_time(0.3)
    assert len(deployment.launcher.apply_commands()[1]) == 1
    assert deployment.model_states == {TALK: "loaded"}
    deployment.launcher.stop_idle_workers(30)
    assert len(deployment.workers) == min_replicas
    assert deployment.model_states == {TALK: "loaded" if min_replicas else "unloaded"}


def test_weights_can_be_updated_while_a_model_is_unloaded():
    deployment = ModelDeployment(talk={"lm": ["a"]}, guide={"lm": ["b"]}).start_all()
    deployment.unload(TALK)
    assert deployment.launcher.stop_idle_workers() == ["a"]
    deployment.deliver(LAUNCHER, m.RollWeights(1))
    for _ in range(20):
        deployment.advance_time(0.5)
        deployment.launcher.stop_workers()
        for start in deployment.sent_of_kind(m.StartWorker):
            deployment.launcher.incarnations[start.worker] += 1
            deployment.worker_up(start.worker, deployment.launcher.incarnations[start.worker], weights_version=1)
    assert [rolled.weights_version for rolled in deployment.sent_of_kind(m.WeightsRolled)] == [1]
    assert deployment.workers.keys() == {"b"}
    deployment.deliver(FRONTEND, m.Submit("r", TALK, m.Value(SimRequest(1, 3))))
    deployment.advance_time(0.3)
    assert deployment.started_workers() == ["a"]
