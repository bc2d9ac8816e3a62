"""Admission control: rejection, running limit, queueing, and expiry of TTFT targets."""

from collections import Counter

import pytest

from mstar.conductor.limits import ConductorLimits
from mstar.sim.models import SimRequest
from mstar.wire import messages as m
from mstar.wire.slo import Slo
from mstar.wire.stats import StreamDemand, WorkerLoad
from tests.conductor.deployment import FRONTEND, LAUNCHER, Deployment


def talk(running=1024, queued=256):
    limits = ConductorLimits(running, queued, heartbeat_timeout_s=1e9)
    return Deployment({"talk": {"lm": "a"}}, limits).start_all()


def statuses(deployment):
    return {rejected.rid: rejected.status for rejected in deployment.sent_of_kind(m.RequestRejected)}


def test_requests_start_up_to_the_running_limit_then_queue_then_get_429():
    deployment = talk(running=2, queued=1)
    for rid in ("r0", "r1", "r2", "r3"):
        deployment.submit(rid)
    assert deployment.started_walks().keys() == {"r0", "r1"}
    assert deployment.core.stats()["queue"] == 1
    assert statuses(deployment) == {"r3": 429}


def test_a_429_has_a_retry_after_and_names_the_limit():
    deployment = talk(running=1, queued=1)
    for rid in ("r0", "r1", "r2"):
        deployment.submit(rid)
    (rejected,) = deployment.sent_of_kind(m.RequestRejected)
    assert rejected.retry_after_s == 1.0  # one request, no completions yet
    assert rejected.reason == "the queue is full (1 requests)"


def test_a_tenant_without_its_share_of_a_full_queue_is_queued():
    deployment = talk(running=1, queued=4)
    for number in range(5):
        deployment.submit(f"a{number}", tenant="alice")
    for number in range(3):
        deployment.submit(f"b{number}", tenant="bob")
    deployment.submit("c0", tenant="carol")
    deployment.submit("a5", tenant="alice")
    assert statuses(deployment) == {"b2": 429, "a5": 429}, "half of four requests for bob, a third for carol"
    assert deployment.core.stats()["queue"] == 7


def test_best_effort_requests_are_no_share_of_their_own():
    deployment = talk(running=1, queued=1)
    for rid in ("r0", "r1"):
        deployment.submit(rid)
    deployment.submit("r2", slo=Slo(best_effort=True))
    assert statuses(deployment) == {"r2": 429}


def test_no_tenant_is_queued_without_a_queue():
    deployment = talk(running=1, queued=0)
    deployment.submit("r0", tenant="alice")
    deployment.submit("r1", tenant="bob")
    assert statuses(deployment) == {"r1": 429}


def started_by(deployment):
    """Number of started requests by the first letter of their id."""
    return Counter(rid[0] for rid in deployment.started_walks())


def test_one_tenant_cannot_take_all_running_slots():
    deployment = talk(running=36, queued=100)
    for number in range(60):
        deployment.submit(f"a{number}", tenant="alice")
    for number in range(3):
        deployment.submit(f"b{number}", tenant="bob")
    assert started_by(deployment) == {"a": 32, "b": 3}, "alice leaves an eighth of what it has"
    assert deployment.core.stats()["queue"] == 28
    assert statuses(deployment) == {}


def test_tenants_share_the_running_slots():
    deployment = talk(running=34, queued=100)
    for number in range(60):
        deployment.submit(f"a{number}", tenant="alice")
        deployment.submit(f"b{number}", tenant="bob")
    deployment.submit("c0", tenant="carol")
    assert started_by(deployment) == {"a": 16, "b": 16, "c": 1}


def test_requests_without_a_key_take_all_running_slots():
    deployment = talk(running=36, queued=100)
    for number in range(40):
        deployment.submit(f"r{number}")
    assert started_by(deployment) == {"r": 36}


def test_the_queue_of_a_tenant_without_a_share_delays_no_ttft_target():
    deployment = talk(running=36, queued=100)
    for number in range(60):
        deployment.submit(f"a{number}", tenant="alice")
    load = WorkerLoad(0.1, {"talk": StreamDemand(0.01, 0.01, 0.1, 0.01)})
    deployment.deliver(m.Peer("a", 0), m.Heartbeat(0.0, load))
    deployment.submit("b0", tenant="bob", slo=Slo(ttft_s=0.5))
    assert statuses(deployment) == {}
    assert "b0" in deployment.started_walks()


def test_a_slot_is_free_only_when_workers_have_released_the_attempt():
    deployment = talk(running=1)
    deployment.submit("r0")
    deployment.submit("r1")
    attempt = deployment.requests["r0"].attempt
    deployment.finish_walk("r0")
    assert deployment.started_walks().keys() == {"r0"}
    deployment.deliver(m.Peer("a", 0), m.AttemptReleased("r0", attempt))
    assert deployment.started_walks().keys() == {"r1"}


def test_the_slot_of_an_attempt_on_a_lost_worker_is_free():
    deployment = talk(running=1)
    deployment.submit("r0")
    deployment.submit("r1")
    deployment.deliver(FRONTEND, m.Cancel("r0"))
    deployment.started_walks()
    deployment.exit_process(m.Peer("a", 0))
    deployment.worker_up("a", 1)
    assert deployment.started_walks() == {"r1": m.Peer("a", 1)}


def test_a_resubmitted_request_is_never_rejected():
    deployment = talk(running=1, queued=0)
    deployment.submit("r0")
    deployment.deliver(LAUNCHER, m.Drain())
    deployment.submit("new")
    deployment.submit("old", last_seen_attempt=0)
    assert statuses(deployment) == {"new": 503}
    assert deployment.core.stats()["queue"] == 1


def test_an_unknown_model_is_404():
    deployment = talk()
    deployment.deliver(FRONTEND, m.Submit("r", "other", m.Value(SimRequest(1, 3))))
    assert statuses(deployment) == {"r": 404}


def test_a_request_that_would_miss_its_ttft_target_is_rejected():
    deployment = talk()
    demand = StreamDemand(solo_utilization=0.2, added_utilization=0.2, first_output_s=0.5, per_concurrent_s=0.1)
    deployment.deliver(m.Peer("a", 0), m.Heartbeat(0.0, WorkerLoad(0.0, {"talk": demand})))
    deployment.submit("fast", slo=Slo(ttft_s=0.3))
    deployment.submit("slow", slo=Slo(ttft_s=0.6))
    (rejected,) = deployment.sent_of_kind(m.RequestRejected)
    assert (rejected.rid, rejected.status, rejected.retry_after_s) == ("fast", 429, pytest.approx(0.2))
    assert deployment.started_walks().keys() == {"slow"}


def test_a_queued_request_is_rejected_when_its_ttft_target_passes():
    deployment = talk(running=1)
    deployment.submit("r0")
    deployment.submit("r1", slo=Slo(ttft_s=2.0))
    deployment.tick(1.9)
    assert statuses(deployment) == {}
    deployment.tick(0.2)
    assert statuses(deployment) == {"r1": 429}
    assert deployment.requests.keys() == {"r0"}


@pytest.mark.parametrize(("running", "can_wait"), [(1, True), (3, False)])
def test_a_confirmation_can_wait_while_many_requests_can_start(running, can_wait):
    deployment = talk(running=4)
    for number in range(running):
        deployment.submit(str(number))
    deployment.finish_walk("0")
    (release,) = deployment.sent_of_kind(m.ReleaseAttempt)
    assert (release.rid, release.can_wait) == ("0", can_wait)


def test_a_confirmation_cannot_wait_while_requests_are_queued():
    deployment = talk(running=1)
    for rid in ("first", "queued"):
        deployment.submit(rid)
    deployment.finish_walk("first")
    (release,) = deployment.sent_of_kind(m.ReleaseAttempt)
    assert not release.can_wait
