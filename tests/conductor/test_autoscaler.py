"""Autoscaler: scale-up, scale-down and draining, rolling updates, and that no request mixes weights versions."""

from dataclasses import replace

import pytest

from mstar.wire import messages as m
from tests.conductor.deployment import LAUNCHER, LIMITS, Deployment, worker_load


def fixed_deployment(workers, **options):
    return Deployment({"talk": {"lm": workers}}, **options)


def elastic_deployment(min_replicas, names="abc", **options):
    return fixed_deployment({"workers": list(names), "min_replicas": min_replicas}, **options)


def test_a_placement_without_min_replicas_sends_nothing():
    deployment = fixed_deployment(["a", "b"])
    deployment.worker_up("a")
    deployment.worker_up("b")
    deployment.advance_time(60.0, {"a": worker_load(queued_batches=9)})
    assert deployment.sent_of_kind(m.StartWorker | m.StopWorker) == []


def test_a_lost_worker_without_autoscaling_is_requested_only_if_the_launcher_does_not_restart_it():
    deployment = fixed_deployment(["a", "b"])
    deployment.start_all()
    for name in ("a", "b"):
        deployment.exit_process(m.Peer(name, 0))
    deployment.advance_time(4.5)
    assert deployment.sent_of_kind(m.StartWorker) == []
    deployment.worker_up("a", incarnation=1)
    deployment.advance_time(1.0)
    assert deployment.started_workers() == ["b"]


def test_a_lost_worker_is_requested_at_once_with_autoscaling():
    deployment = elastic_deployment(min_replicas=1)
    deployment.worker_up("a")
    deployment.advance_time(10.0)
    deployment.exit_process(m.Peer("a", 0))
    deployment.advance_time(0.5)
    assert deployment.started_workers() == ["a"], "an earlier conductor can have stopped it"


def test_it_is_ready_when_min_replicas_are_up():
    deployment = elastic_deployment(min_replicas=1)
    assert deployment.sent_of_kind(m.Ready) == []
    deployment.worker_up("a")
    assert len(deployment.sent_of_kind(m.Ready)) == 1
    none = elastic_deployment(min_replicas=0)
    none.advance_time(0.1)
    assert len(none.sent_of_kind(m.Ready)) == 1


@pytest.mark.parametrize(
    "load", [worker_load(queued_batches=4), worker_load(utilization=1.2)], ids=["calls wait", "streams need more"]
)
def test_overload_scales_up_to_the_maximum(load):
    deployment = elastic_deployment(min_replicas=1)
    deployment.worker_up("a")
    deployment.submit("r")
    deployment.advance_time(4.0, {"a": load})
    assert deployment.started_workers() == ["b"]
    deployment.worker_up("b")
    deployment.advance_time(4.0, {"a": load, "b": load})
    assert deployment.started_workers() == ["c"]
    deployment.worker_up("c")
    deployment.advance_time(10.0, {"a": load, "b": load, "c": load})
    assert deployment.sent_of_kind(m.StartWorker) == []


def test_missed_deadlines_scale_up_only_if_they_increase():
    deployment = elastic_deployment(min_replicas=1)
    deployment.worker_up("a")
    deployment.submit("r")
    deployment.advance_time(4.0, {"a": worker_load(deadline_misses=1)})
    assert deployment.sent_of_kind(m.StartWorker) == []
    for late in range(2, 30):
        deployment.advance_time(0.2, {"a": worker_load(deadline_misses=late)})
    assert set(deployment.started_workers()) == {"b"}


def test_a_short_overload_does_not_scale_up():
    deployment = elastic_deployment(min_replicas=1)
    deployment.worker_up("a")
    deployment.advance_time(4.0, {"a": worker_load()})
    deployment.advance_time(0.5, {"a": worker_load(queued_batches=9)})
    deployment.advance_time(4.0, {"a": worker_load()})
    assert deployment.sent_of_kind(m.StartWorker) == []


def test_it_scales_down_after_a_delay_and_never_below_min_replicas():
    deployment = elastic_deployment(min_replicas=1)
    for name in "abc":
        deployment.worker_up(name)
    deployment.advance_time(4.9)
    assert deployment.sent_of_kind(m.StopWorker) == []
    stopped = []
    for _ in range(60):
        deployment.advance_time(1.0)
        stopped += deployment.launcher.stop_workers()
    assert len(stopped) == 2
    assert len(deployment.workers) == 1


def test_a_draining_worker_gets_no_walks_and_stops_when_idle():
    deployment = elastic_deployment(min_replicas=1, names="ab")
    deployment.worker_up("a")
    deployment.worker_up("b")
    deployment.submit("r0")
    deployment.submit("r1")
    seats = deployment.started_walks()
    assert {peer.name for peer in seats.values()} == {"a", "b"}
    deployment.workers["b"].draining_since = deployment.now
    deployment.core.autoscaler.groups[0].target = 1
    deployment.advance_time(3.0)
    deployment.submit("r2")
    assert deployment.started_walks()["r2"].name == "a"
    assert deployment.sent_of_kind(m.StopWorker) == []
    deployment.finish_walk(next(rid for rid, peer in seats.items() if peer.name == "b"))
    deployment.advance_time(0.5)
    assert deployment.sent_of_kind(m.StopWorker) == []  # its last messages can still be in transit
    deployment.advance_time(1.5)
    assert deployment.launcher.stop_workers() == ["b"]


def test_the_idle_time_of_a_crashed_worker_does_not_count_for_its_successor():
    deployment = elastic_deployment(min_replicas=1, names="ab")
    deployment.worker_up("a")
    deployment.worker_up("b")
    deployment.advance_time(3.0)
    deployment.core.autoscaler.groups[0].target = 1
    deployment.workers["b"].draining_since = deployment.now
    deployment.advance_time(0.7)
    deployment.exit_process(m.Peer("b", 0))
    deployment.worker_up("b", 1)
    deployment.workers["b"].draining_since = deployment.now
    deployment.advance_time(0.7)
    assert deployment.sent_of_kind(m.StopWorker) == []
    deployment.advance_time(1.0)
    assert deployment.launcher.stop_workers() == ["b"]


def test_a_walk_that_exceeds_the_drain_timeout_is_retried_elsewhere():
    deployment = elastic_deployment(min_replicas=1, names="ab", limits=replace(LIMITS, drain_timeout_s=3.0))
    deployment.worker_up("a")
    deployment.worker_up("b")
    deployment.submit("r0")
    deployment.submit("r1")
    rid = next(rid for rid, peer in deployment.started_walks().items() if peer.name == "b")
    deployment.workers["b"].draining_since = deployment.now
    deployment.core.autoscaler.groups[0].target = 1
    deployment.advance_time(2.5)
    assert deployment.started_walks() == {}
    deployment.advance_time(1.0)
    assert deployment.launcher.stop_workers() == ["b"]
    assert deployment.started_walks()[rid].name == "a"


def test_a_draining_worker_stays_when_it_is_needed_again():
    deployment = elastic_deployment(min_replicas=2, names="abc")
    for name in "abc":
        deployment.worker_up(name)
    deployment.advance_time(5.0)
    deployment.workers["c"].draining_since = deployment.now
    deployment.core.autoscaler.groups[0].target = 2
    deployment.exit_process(m.Peer("a", 0))
    deployment.advance_time(20.0)
    assert deployment.workers["c"].draining_since is None or deployment.core.stats()["starting"]
    assert deployment.sent_of_kind(m.StopWorker) == []


def test_the_first_request_at_zero_replicas_starts_a_worker():
    deployment = elastic_deployment(min_replicas=0, names="ab")
    deployment.submit("r")
    deployment.advance_time(0.5)
    assert deployment.started_workers() == ["a"]
    deployment.advance_time(100.0)  # large weights load
    assert deployment.sent_of_kind(m.RequestFinished) == []
    deployment.worker_up("a")
    assert deployment.started_walks() == {"r": m.Peer("a", 0)}
    deployment.finish_walk("r")
    assert [end.status for end in deployment.sent_of_kind(m.RequestFinished)] == ["ok"]


def test_a_worker_that_dies_at_every_start_is_given_up():
    deployment = elastic_deployment(min_replicas=0, names="ab")
    deployment.submit("r")
    deployment.advance_time(1.0)
    for incarnation in range(3):
        deployment.deliver(LAUNCHER, m.ProcessExited(m.Peer("a", incarnation), "it raised"))
    deployment.advance_time(1.0)
    assert deployment.started_workers() == ["a", "b"]
    deployment.advance_time(301.0)
    assert [end.status for end in deployment.sent_of_kind(m.RequestFinished)] == ["unavailable"]


def test_an_idle_model_scales_to_zero():
    deployment = elastic_deployment(min_replicas=0, names="ab")
    deployment.submit("r")
    deployment.advance_time(1.0)
    deployment.worker_up("a")
    deployment.advance_time(60.0)
    assert deployment.sent_of_kind(m.StopWorker) == []  # it has something to do
    deployment.finish_walk("r")
    deployment.advance_time(9.0)
    assert deployment.sent_of_kind(m.StopWorker) == []
    deployment.advance_time(10.0)
    assert deployment.launcher.stop_workers() == ["a"]


def test_stats_count_starting_and_draining_workers():
    deployment = elastic_deployment(min_replicas=0, names="ab")
    deployment.submit("r")
    deployment.advance_time(0.5)
    stock = deployment.core.stats()
    assert (stock["starting"], stock["starting a"], stock["draining"]) == (1, 1, 0)


# ---------------------------------------------------------------- weights versions
def test_a_rolling_update_replaces_workers_one_by_one():
    deployment = elastic_deployment(min_replicas=2, names="abc")
    deployment.worker_up("a")
    deployment.worker_up("b")
    deployment.advance_time(3.0)
    deployment.deliver(LAUNCHER, m.RollWeights(1))
    incarnations, fewest = {"a": 0, "b": 0, "c": -1}, 2
    for _ in range(100):
        deployment.advance_time(0.5)
        deployment.launcher.stop_workers()
        for name in deployment.started_workers():
            incarnations[name] += 1
            deployment.worker_up(name, incarnations[name], weights_version=1)
        fewest = min(fewest, len(deployment.workers))
    assert [rolled.weights_version for rolled in deployment.sent_of_kind(m.WeightsRolled)] == [1]
    assert {worker.weights_version for worker in deployment.workers.values()} == {1}
    assert (len(deployment.workers), fewest) == (2, 2)


def test_a_rolling_update_of_one_worker_makes_requests_wait():
    deployment = fixed_deployment("a")
    deployment.worker_up("a")
    deployment.submit("r0")
    deployment.deliver(LAUNCHER, m.RollWeights(1))
    deployment.advance_time(60.0)
    assert deployment.sent_of_kind(m.StopWorker) == []  # no other worker can finish r0
    deployment.submit("r1")
    assert set(deployment.started_walks()) == {"r0"}
    deployment.finish_walk("r0")
    deployment.advance_time(2.0)
    assert deployment.launcher.stop_workers() == ["a"]
    deployment.advance_time(0.5)
    assert deployment.started_workers() == ["a"]
    deployment.worker_up("a", 1, weights_version=1)
    assert deployment.started_walks() == {"r1": m.Peer("a", 1)}


def test_a_request_is_retried_with_the_weights_it_started_with():
    deployment = fixed_deployment(["a", "b"])
    deployment.worker_up("a")
    deployment.worker_up("b", weights_version=1)
    deployment.submit("r")
    assert deployment.started_walks()["r"] == m.Peer("b", 0)  # the newest
    deployment.exit_process(m.Peer("b", 0))
    assert deployment.started_walks() == {}
    deployment.worker_up("b", 1, weights_version=1)
    assert deployment.started_walks() == {"r": m.Peer("b", 1)}


def test_a_request_whose_weights_are_gone_is_not_retryable():
    deployment = fixed_deployment(["a", "b"])
    deployment.worker_up("a")
    deployment.submit("r")
    deployment.worker_up("b", weights_version=1)
    deployment.exit_process(m.Peer("a", 0))
    deployment.advance_time(0.3)
    (end,) = deployment.sent_of_kind(m.RequestFinished)
    assert end.status == "not_retryable"
    assert "version 0 of the weights" in end.error_message


def test_an_unstarted_request_restarts_with_new_weights():
    deployment = Deployment({"story": {"lm": ["a", "b"]}})
    deployment.worker_up("a")
    deployment.submit("r")  # its first walk emits nothing
    assert deployment.started_walks()["r"] == m.Peer("a", 0)
    deployment.worker_up("b", weights_version=1)
    deployment.exit_process(m.Peer("a", 0))
    deployment.advance_time(0.3)
    assert deployment.sent_of_kind(m.RequestFinished) == []
    assert deployment.started_walks()["r"] == m.Peer("b", 0)
