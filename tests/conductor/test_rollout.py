"""Rolling updates that start successors, and roll back at the first replica that fails to start."""

from dataclasses import replace

import pytest

from mstar.wire import messages as m
from tests.conductor.deployment import LAUNCHER, LIMITS, Deployment, worker_load

SETTLE_S = 2.2
"""An autoscaler that had nothing to do waits for `startup_settle_s` first."""
SINGLE_HOST = replace(LIMITS, can_start_successors=True)


OLD, NEW = m.Peer("a", 0), m.Peer("a+", 0)
"""A worker, and its successor."""


def deploy(place, limits=SINGLE_HOST, running=None):
    deployment = Deployment({"talk": {"lm": place}}, limits)
    for name in running or (place if isinstance(place, list) else place["workers"][:1]):
        deployment.launcher.start_incarnation(name)
    deployment.advance_time(3.0)
    deployment.deliver(LAUNCHER, m.RollWeights(1))
    deployment.advance_time(SETTLE_S)
    return deployment


def successors(deployment):
    """Workers whose successors were requested, each with the process that serves."""
    deployment.advance_time(0.5)
    starts = deployment.sent_of_kind(m.StartWorker)
    return {start.worker: start.beside for start in starts if start.beside is not None}


def fail_start(deployment, name, failed_starts):
    deployment.launcher.incarnations[name] = deployment.launcher.incarnations.get(name, -1) + 1
    peer = m.Peer(name, deployment.launcher.incarnations[name])
    deployment.deliver(LAUNCHER, m.ProcessExited(peer, "exited with status 1", [], failed_starts, 0.1))


def replace_worker(deployment, name):
    """Register the successor of a worker, and stop the worker."""
    deployment.worker_up(f"{name}+", 0, weights_version=1)
    deployment.advance_time(2.0)
    assert deployment.launcher.stop_workers() == [name]


def test_a_successor_serves_at_once_while_its_worker_finishes_what_it_has():
    deployment = deploy(["a"])
    deployment.submit("old")
    assert deployment.started_walks() == {"old": OLD}
    assert successors(deployment) == {"a": OLD}
    deployment.advance_time(60.0)
    assert deployment.workers["a"].draining_since is None, "it serves while the successor loads"
    deployment.submit("during the load")
    assert deployment.started_walks() == {"during the load": OLD}
    deployment.worker_up("a+", 0, weights_version=1)
    deployment.submit("new")
    assert deployment.started_walks() == {"new": NEW}
    deployment.sent_of_kind(m.StartWorker)
    deployment.advance_time(60.0)
    deployment.submit("later")
    assert deployment.started_walks() == {"later": NEW}
    assert deployment.sent_of_kind(m.StopWorker | m.WeightsRolled | m.StartWorker) == [], "its requests still run"
    for rid in ("old", "during the load"):
        assert [peer.name for peer in deployment.requests[rid].walk_run.seats] == ["a"]
        deployment.finish_walk(rid)
    deployment.advance_time(2.0)
    assert deployment.launcher.stop_workers() == ["a"]
    deployment.advance_time(1.0)
    assert [rolled.weights_version for rolled in deployment.sent_of_kind(m.WeightsRolled)] == [1]
    deployment.deliver(LAUNCHER, m.RollWeights(2))
    assert successors(deployment) == {"a": NEW}, "the next successor has the first name again"


def test_replicas_are_replaced_one_after_the_other():
    deployment = deploy(["a", "b"])
    for _ in range(2):
        ((name, _),) = successors(deployment).items()
        replace_worker(deployment, name)
    deployment.advance_time(1.0)
    assert len(deployment.sent_of_kind(m.WeightsRolled)) == 1
    assert deployment.workers.keys() == {"a+", "b+"}


def test_every_group_of_a_model_gets_the_new_version_before_old_workers_drain():
    deployment = Deployment({"sing": {"lm": ["a"], "voice": ["b"]}}, SINGLE_HOST).start_all()
    deployment.advance_time(3.0)
    deployment.deliver(LAUNCHER, m.RollWeights(1))
    deployment.advance_time(SETTLE_S)
    for name in ("a", "b"):
        assert list(successors(deployment)) == [name]
        assert all(worker.draining_since is None for worker in deployment.workers.values())
        deployment.submit(name)
        assert deployment.started_walks()[name].name in ("a", "b"), "the old version is the one that all groups have"
        deployment.worker_up(f"{name}+", 0, weights_version=1)
    deployment.submit("new")
    assert deployment.started_walks()["new"].name in ("a+", "b+")


@pytest.mark.parametrize("place", [["a"], ["a", "b"]], ids=["one replica", "two replicas"])
def test_broken_weights_stop_the_rollout_at_the_first_replica(place):
    deployment = deploy(place)
    ((name, _),) = successors(deployment).items()
    fail_start(deployment, f"{name}+", 1)
    assert deployment.sent_of_kind(m.RolloutFailed) == [], "a failed start is retried once"
    fail_start(deployment, f"{name}+", 2)
    assert deployment.sent_of_kind(m.RolloutFailed) == [m.RolloutFailed(1, 0, name, "exited with status 1")]
    assert deployment.sent_of_kind(m.StopWorker) == [m.StopWorker(m.Peer(f"{name}+", 1))]
    deployment.advance_time(60.0)
    assert deployment.sent_of_kind(m.StopWorker | m.StartWorker | m.WeightsRolled) == []
    assert sorted(deployment.workers) == place
    deployment.submit("r")
    assert deployment.started_walks().keys() == {"r"}
    assert deployment.core.versions.newest == 0
    assert not deployment.core.rollout.is_active


def test_a_worker_that_was_in_a_crash_loop_before_does_not_stop_the_rollout():
    deployment = Deployment({"talk": {"lm": ["a"]}, "sing": {"lm": ["b"], "voice": ["c"]}}, SINGLE_HOST).start_all()
    deployment.exit_process(m.Peer("c", 0))
    for failed_starts in range(1, 5):
        fail_start(deployment, "c", failed_starts)
    deployment.advance_time(3.0)
    deployment.deliver(LAUNCHER, m.RollWeights(1))
    fail_start(deployment, "c", 5)
    deployment.advance_time(SETTLE_S)
    assert list(successors(deployment)) == ["b"], "the rollout replaces workers"
    fail_start(deployment, "c", 6)
    assert deployment.sent_of_kind(m.RolloutFailed) == []
    deployment.worker_up("c", 7, weights_version=1)
    deployment.exit_process(m.Peer("c", 7))
    for failed_starts in (1, 2):
        fail_start(deployment, "c", failed_starts)
    failures = deployment.sent_of_kind(m.RolloutFailed)
    assert [failed.worker for failed in failures] == ["c"], "it has started with the new weights, and counts again"


def test_a_new_conductor_rolls_back_a_successor_that_was_in_a_crash_loop_before():
    deployment = Deployment({"talk": {"lm": ["a"]}}, SINGLE_HOST)
    for failed_starts in (1, 2, 3):
        fail_start(deployment, "a+", failed_starts)
    deployment.deliver(LAUNCHER, m.RollWeights(1))
    deployment.worker_up("a", 0)
    fail_start(deployment, "a+", 4)
    assert deployment.sent_of_kind(m.RolloutFailed) == [m.RolloutFailed(1, 0, "a", "exited with status 1")]


def test_the_next_rollout_starts_after_a_failed_one():
    deployment = deploy(["a"])
    assert successors(deployment) == {"a": OLD}
    for failed_starts in (1, 2):
        fail_start(deployment, "a+", failed_starts)
    assert deployment.sent_of_kind(m.StopWorker) == [m.StopWorker(m.Peer("a+", 1))]
    deployment.deliver(LAUNCHER, m.RollWeights(2))
    assert successors(deployment) == {"a": OLD}
    deployment.worker_up("a+", 2, weights_version=2)
    deployment.advance_time(2.0)
    assert deployment.launcher.stop_workers() == ["a"]
    assert deployment.workers.keys() == {"a+"}


def test_a_worker_serves_again_while_its_successor_restarts():
    deployment = deploy(["a"])
    assert successors(deployment) == {"a": OLD}
    deployment.submit("old")
    deployment.worker_up("a+", 0, weights_version=1)
    deployment.advance_time(1.0)
    assert deployment.workers["a"].draining_since is not None
    deployment.exit_process(NEW)
    deployment.started_walks()
    deployment.submit("r")
    assert deployment.started_walks() == {"r": OLD}
    deployment.worker_up("a+", 1, weights_version=1)
    deployment.submit("s")
    assert deployment.started_walks() == {"s": m.Peer("a+", 1)}
    deployment.advance_time(1.0)
    assert deployment.workers["a"].draining_since is not None


def test_a_stopped_worker_leaves_the_load_of_its_successor():
    deployment = deploy(["a"])
    assert successors(deployment) == {"a": OLD}
    deployment.worker_up("a+", 0, weights_version=1)
    load = worker_load(utilization=0.5)
    deployment.deliver(NEW, m.Heartbeat(0.0, load))
    deployment.advance_time(2.0)
    assert deployment.launcher.stop_workers() == ["a"]
    assert deployment.core.capacity.worker_load("a") == load
    deployment.exit_process(NEW)
    assert deployment.core.capacity.worker_load("a") is None


def test_a_worker_that_served_again_is_kept_for_the_stop_delay_of_its_next_drain():
    deployment = deploy(["a"])
    assert successors(deployment) == {"a": OLD}
    deployment.worker_up("a+", 0, weights_version=1)
    deployment.advance_time(0.7)
    assert deployment.workers["a"].draining_since is not None
    deployment.exit_process(NEW)
    deployment.advance_time(10.0)
    assert deployment.workers["a"].draining_since is None
    deployment.worker_up("a+", 1, weights_version=1)
    deployment.advance_time(0.8)
    assert deployment.workers["a"].draining_since is not None
    assert deployment.sent_of_kind(m.StopWorker) == []
    deployment.advance_time(1.0)
    assert deployment.launcher.stop_workers() == ["a"]


def test_a_successor_that_was_up_and_fails_to_restart_is_rolled_back():
    deployment = deploy(["a"])
    assert successors(deployment) == {"a": OLD}
    deployment.submit("old")
    deployment.worker_up("a+", 0, weights_version=1)
    deployment.advance_time(1.0)
    deployment.submit("new")
    deployment.exit_process(NEW)
    for failed_starts in (1, 2):
        fail_start(deployment, "a+", failed_starts)
    assert [failed.serving_version for failed in deployment.sent_of_kind(m.RolloutFailed)] == [0]
    assert deployment.workers["a"].draining_since is None
    deployment.started_walks()
    deployment.advance_time(1.0)
    assert "new" not in deployment.requests, "the new weights are gone, and its client can have output of them"


def test_a_rollback_drains_the_successors_that_are_up():
    deployment = Deployment({"sing": {"lm": ["a"], "voice": ["b"]}}, SINGLE_HOST).start_all()
    deployment.advance_time(3.0)
    deployment.deliver(LAUNCHER, m.RollWeights(1))
    deployment.advance_time(SETTLE_S)
    assert list(successors(deployment)) == ["a"]
    deployment.worker_up("a+", 0, weights_version=1)
    assert list(successors(deployment)) == ["b"]
    for failed_starts in (1, 2):
        fail_start(deployment, "b+", failed_starts)
    assert [failed.serving_version for failed in deployment.sent_of_kind(m.RolloutFailed)] == [0]
    deployment.sent_of_kind(m.StopWorker)
    deployment.advance_time(2.0)
    assert deployment.launcher.stop_workers() == ["a+"]
    deployment.submit("r")
    assert deployment.started_walks()["r"].name in ("a", "b")


def test_a_successor_that_was_rolled_back_does_not_replace_its_worker():
    deployment = Deployment({"sing": {"lm": ["a"], "voice": ["b"]}}, SINGLE_HOST).start_all()
    deployment.advance_time(3.0)
    deployment.deliver(LAUNCHER, m.RollWeights(1))
    deployment.advance_time(SETTLE_S)
    assert list(successors(deployment)) == ["a"]
    deployment.worker_up("a+", 0, weights_version=1)
    assert list(successors(deployment)) == ["b"]
    for failed_starts in (1, 2):
        fail_start(deployment, "b+", failed_starts)
    deployment.exit_process(OLD)
    assert deployment.workers["a+"].draining_since is not None, "`b` has the old version only"
    deployment.worker_up("a", 1)
    deployment.submit("r")
    assert {peer.name for peer in deployment.requests["r"].walk_run.seats} == {"a", "b"}


def test_a_new_conductor_stops_the_successor_that_an_earlier_one_has_started():
    deployment = Deployment({"talk": {"lm": ["a"]}}, SINGLE_HOST).start_all()
    deployment.deliver(LAUNCHER, m.RollWeights(1))
    deployment.launcher.incarnations["a+"] = 0
    fail_start(deployment, "a+", 2)
    assert len(deployment.sent_of_kind(m.RolloutFailed)) == 1
    assert deployment.sent_of_kind(m.StopWorker) == [m.StopWorker(m.Peer("a+", 1))]


@pytest.mark.parametrize("weights_version", [0, 1])
def test_a_successor_that_starts_after_a_rollback_is_stopped(weights_version):
    deployment = deploy(["a"])
    assert successors(deployment) == {"a": OLD}
    for failed_starts in (1, 2):
        fail_start(deployment, "a+", failed_starts)
    deployment.sent_of_kind(m.StopWorker)
    deployment.worker_up("a+", 2, weights_version=weights_version)
    deployment.submit("r")
    assert deployment.started_walks() == {"r": OLD}
    deployment.advance_time(5.0)
    assert deployment.launcher.stop_workers() == ["a+"]
    assert deployment.core.versions.newest == 0


def test_a_new_conductor_completes_a_rollout_that_has_begun():
    deployment = Deployment({"talk": {"lm": ["a"]}}, SINGLE_HOST)
    deployment.worker_up("a", 0)
    deployment.worker_up("a+", 0, weights_version=1)
    deployment.submit("r")
    assert deployment.started_walks() == {"r": NEW}
    deployment.advance_time(6.0)
    assert deployment.launcher.stop_workers() == ["a"]
    deployment.advance_time(1.0)
    assert len(deployment.sent_of_kind(m.WeightsRolled)) == 1


def test_a_surge_replica_that_fails_to_start_is_stopped_and_the_rollout_rolled_back():
    place = {"workers": ["a", "b"], "min_replicas": 1}
    deployment = deploy(place)
    deployment.advance_time(0.5)
    assert deployment.started_workers() == ["b"]
    for failed_starts in (1, 2):
        fail_start(deployment, "b", failed_starts)
    assert deployment.sent_of_kind(m.RolloutFailed) == [m.RolloutFailed(1, 0, "b", "exited with status 1")]
    assert deployment.sent_of_kind(m.StopWorker) == [m.StopWorker(m.Peer("b", 1))]
    deployment.advance_time(30.0)
    assert deployment.sent_of_kind(m.StartWorker | m.StopWorker) == []
    assert deployment.workers.keys() == {"a"}


def test_without_successors_the_rollout_stops_after_the_first_replica():
    deployment = deploy(["a", "b"], limits=LIMITS)
    deployment.advance_time(1.5)
    (name,) = deployment.launcher.stop_workers()
    deployment.advance_time(0.5)
    assert deployment.started_workers() == [name]
    for failed_starts in (1, 2):
        fail_start(deployment, name, failed_starts)
    (failed,) = deployment.sent_of_kind(m.RolloutFailed)
    assert (failed.worker, failed.serving_version) == (name, 0)
    deployment.advance_time(60.0)
    assert deployment.sent_of_kind(m.StopWorker) == []
    (other,) = deployment.workers
    deployment.submit("r")
    assert deployment.started_walks()["r"].name == other


def test_a_rollout_ends_although_a_worker_is_in_a_crash_loop():
    deployment = Deployment({"talk": {"lm": ["a"]}}, SINGLE_HOST)
    deployment.launcher.start_incarnation("a")
    deployment.advance_time(3.0)
    deployment.exit_process(m.Peer("a", 0))
    for failed_starts in range(1, 6):
        fail_start(deployment, "a", failed_starts)
    deployment.deliver(LAUNCHER, m.RollWeights(1))
    deployment.advance_time(3.0)
    assert len(deployment.sent_of_kind(m.WeightsRolled)) == 1


def test_a_worker_that_is_lost_before_its_turn_makes_the_other_groups_of_its_model_go_first():
    places = {"talk": {"lm": ["x"]}, "sing": {"lm": ["a"], "voice": ["b"]}}
    deployment = Deployment(places, SINGLE_HOST).start_all()
    deployment.model = "sing"
    deployment.advance_time(3.0)
    deployment.deliver(LAUNCHER, m.RollWeights(1))
    deployment.advance_time(SETTLE_S)
    assert list(successors(deployment)) == ["x"]
    deployment.exit_process(m.Peer("b", 0))
    assert list(successors(deployment)) == ["a"], "`b` restarts with the new weights, which `a` lacks"
    deployment.submit("r")
    deployment.worker_up("b", 1, weights_version=1)
    assert deployment.started_walks() == {}
    deployment.worker_up("a+", 0, weights_version=1)
    assert deployment.started_walks()["r"].name in ("a+", "b")


def test_a_worker_that_dies_while_its_successor_loads_does_not_stop_the_rollout():
    deployment = deploy(["a", "b"])
    ((name, beside),) = successors(deployment).items()
    deployment.exit_process(beside)
    deployment.worker_up(f"{name}+", 0, weights_version=1)
    ((other, _),) = successors(deployment).items()
    assert other != name


def test_after_a_surge_the_old_replicas_are_replaced_without_successors():
    deployment = deploy({"workers": ["a", "b"], "min_replicas": 1})
    deployment.advance_time(0.5)
    assert deployment.started_workers() == ["b"]
    deployment.worker_up("b", 0, weights_version=1)
    deployment.advance_time(2.0)
    assert deployment.started_workers() == []
    assert deployment.launcher.stop_workers() == ["a"]


def test_the_replicas_of_an_elastic_group_without_a_spare_worker_get_successors():
    deployment = deploy({"workers": ["a", "b"], "min_replicas": 1}, running="ab")
    assert deployment.core.autoscaler.groups[0].target == 2
    for _ in range(2):
        ((name, _),) = successors(deployment).items()
        assert all(worker.draining_since is None for worker in deployment.workers.values())
        replace_worker(deployment, name)
    deployment.advance_time(0.5)
    assert len(deployment.sent_of_kind(m.WeightsRolled)) == 1


def test_a_queued_request_keeps_no_worker_of_a_version_that_another_group_has_lost():
    limits = replace(LIMITS, max_running_requests=1)
    deployment = Deployment({"sing": {"lm": ["a"], "voice": ["b"]}}, limits).start_all()
    deployment.model = "sing"
    deployment.advance_time(3.0)
    deployment.submit("again")
    deployment.finish_walk("again")
    deployment.exit_process(m.Peer("b", 0))
    deployment.submit("waiting")
    deployment.submit("again", last_seen_attempt=0)
    deployment.deliver(LAUNCHER, m.RollWeights(1))
    deployment.worker_up("b", 1, weights_version=1)
    deployment.advance_time(SETTLE_S)
    assert deployment.requests["again"].weights_version == 0, "in the queue, behind the other one"
    deployment.advance_time(3.0)
    assert deployment.launcher.stop_workers() == ["a"]
