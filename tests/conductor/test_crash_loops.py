"""Workers in a crash loop: requests are rejected at once, model commands retry or stop the worker."""

from dataclasses import replace

import pytest

from mstar.sim.models import SimRequest
from mstar.wire import messages as m
from tests.conductor.deployment import FRONTEND, LAUNCHER, LIMITS, Deployment

TALK = "talk"


class CrashingDeployment(Deployment):
    """A deployment whose workers can fail to start."""

    def fail_starts(self, name, count=5, next_start_in_s=12.0):
        """Report failed starts in a row of a worker, after its current incarnation."""
        first = self.launcher.incarnations.get(name, -1) + 1
        for number in range(1, count + 1):
            self.launcher.incarnations[name] = first + number - 1
            peer = m.Peer(name, self.launcher.incarnations[name])
            self.deliver(LAUNCHER, m.ProcessExited(peer, "exited with status 1", [], number, next_start_in_s))

    def kill_and_fail(self, name):
        """Kill a worker that is up, then have its restarts fail."""
        self.exit_process(self.workers[name].peer)
        self.fail_starts(name)

    def rejections(self):
        return self.sent_of_kind(m.RequestRejected)

    def model_state(self, model=TALK):
        self.deliver(FRONTEND, m.ModelStatusQuery(3))
        return self.sent_of_kind(m.ModelStatusReply)[-1].states[model]


def one_worker():
    return CrashingDeployment({TALK: {"lm": ["a"]}}).start_all()


def test_requests_are_rejected_at_once_while_the_only_worker_crashes():
    deployment = one_worker()
    deployment.kill_and_fail("a")
    deployment.advance_time(2.0)
    deployment.submit("r")
    (rejected,) = deployment.rejections()
    assert (rejected.rid, rejected.status) == ("r", 503)
    assert rejected.retry_after_s == pytest.approx(10.0)
    assert rejected.reason.startswith("worker a of the model `talk` failed to start 5 times; fix:")
    assert deployment.model_state() == "failing"
    deployment.launcher.start_incarnation("a")
    deployment.submit("s")
    assert deployment.started_walks().keys() == {"s"}
    assert deployment.model_state() == "loaded"


def test_a_worker_that_loads_after_a_failed_start_is_waited_for():
    deployment = one_worker()
    deployment.exit_process(deployment.workers["a"].peer)
    deployment.fail_starts("a", count=2)
    deployment.submit("r")
    deployment.advance_time(25.0)
    assert deployment.sent_of_kind(m.RequestRejected | m.RequestFinished) == []
    deployment.launcher.start_incarnation("a")
    assert deployment.started_walks().keys() == {"r"}


def test_a_running_request_waits_for_a_crashing_worker_for_worker_wait_s():
    deployment = one_worker()
    deployment.submit("r")
    deployment.kill_and_fail("a")
    deployment.advance_time(29.0)
    assert deployment.sent_of_kind(m.RequestFinished) == []
    deployment.advance_time(2.0)
    assert [end.status for end in deployment.sent_of_kind(m.RequestFinished)] == ["unavailable"]


def test_a_resubmitted_request_waits_instead_of_being_rejected():
    deployment = one_worker()
    deployment.kill_and_fail("a")
    deployment.submit("r", last_seen_attempt=0)
    assert deployment.rejections() == []
    deployment.launcher.start_incarnation("a")
    assert deployment.started_walks().keys() == {"r"}


def test_another_replica_serves_while_one_crashes():
    deployment = CrashingDeployment({TALK: {"lm": ["a", "b"]}}).start_all()
    deployment.kill_and_fail("a")
    deployment.submit("r")
    assert deployment.rejections() == []
    assert deployment.started_walks() == {"r": m.Peer("b", 0)}
    assert deployment.model_state() == "loaded"


def test_a_successor_in_a_crash_loop_beside_a_lost_replica_is_survived():
    limits = replace(LIMITS, can_start_successors=True)
    deployment = CrashingDeployment({TALK: {"lm": ["a", "b"]}}, limits).start_all()
    deployment.advance_time(3.0)
    deployment.deliver(LAUNCHER, m.RollWeights(1))
    deployment.advance_time(3.0)
    (start,) = deployment.sent_of_kind(m.StartWorker)
    other = ({"a", "b"} - {start.worker}).pop()
    deployment.exit_process(deployment.workers[other].peer)  # the group is below its target
    # An earlier conductor has seen its first failed starts.
    deployment.deliver(LAUNCHER, m.ProcessExited(m.Peer(f"{start.worker}+", 2), "exited with status 1", [], 3, 12.0))
    deployment.advance_time(2.0)
    deployment.submit("r")
    assert deployment.started_walks()["r"].name == start.worker


def test_a_load_command_retries_a_crashing_worker_at_once():
    deployment = one_worker()
    deployment.kill_and_fail("a")
    deployment.deliver(FRONTEND, m.LoadModel(1, TALK))
    assert deployment.sent_of_kind(m.ModelStatusReply)[0].states == {TALK: "failing"}
    assert deployment.sent_of_kind(m.StartWorker) == [m.StartWorker("a", skip_backoff=True)]
    deployment.launcher.start_incarnation("a")
    deployment.advance_time(1.0)
    assert deployment.model_state() == "loaded"


def test_an_unload_command_stops_the_retries_and_a_load_command_resumes_them():
    deployment = one_worker()
    deployment.kill_and_fail("a")
    deployment.deliver(FRONTEND, m.UnloadModel(1, TALK))
    assert deployment.sent_of_kind(m.StopWorker) == [m.StopWorker(m.Peer("a", 5))]
    assert deployment.model_state() == "unloaded"
    deployment.advance_time(30.0)
    assert deployment.sent_of_kind(m.StartWorker | m.StopWorker) == []
    deployment.deliver(FRONTEND, m.LoadModel(2, TALK))
    deployment.advance_time(0.5)
    assert set(deployment.started_workers()) == {"a"}
    deployment.deliver(LAUNCHER, m.ProcessExited(m.Peer("a", 6), "exited with status 1", [], 6, 3.0))
    deployment.submit("r")
    assert [rejected.status for rejected in deployment.rejections()] == [503]


def test_an_elastic_model_whose_workers_all_crash_is_rejected_after_the_first_request():
    deployment = CrashingDeployment({TALK: {"lm": {"workers": ["a", "b"], "min_replicas": 0}}})
    deployment.submit("r")
    deployment.advance_time(1.0)
    for name in "ab":
        assert deployment.started_workers() == [name]
        deployment.fail_starts(name)
        deployment.advance_time(0.5)
    deployment.submit("s")
    assert [rejected.rid for rejected in deployment.rejections()] == ["s"]
    deployment.advance_time(31.0)
    assert [(end.rid, end.status) for end in deployment.sent_of_kind(m.RequestFinished)] == [("r", "unavailable")]


def test_a_request_for_another_model_is_not_rejected():
    deployment = CrashingDeployment({TALK: {"lm": ["a"]}, "guide": {"lm": ["b"]}}).start_all()
    deployment.kill_and_fail("a")
    deployment.deliver(FRONTEND, m.Submit("r", "guide", m.Value(SimRequest(1, 3))))
    assert deployment.rejections() == []
    assert deployment.started_walks().keys() == {"r"}
