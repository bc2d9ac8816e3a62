"""The worker core: dispatch of events, lease and heartbeat, state commands of the conductor, batches in flight."""

import sys

import pytest

from mstar.engine.jobs import JobDone
from mstar.wire import messages as m
from mstar.wire.active_clock import MAX_STEP_S
from mstar.worker.commands import Batch, BatchFinished, Export, ExportedState, ExportFinished, Fork, Free
from mstar.worker.core import CONDUCTOR_LEASE_S, HEARTBEAT_INTERVAL_S
from mstar.worker.early_messages import EARLY_MESSAGE_TTL_S
from mstar.worker.inflight_batches import MAX_INFLIGHT_BATCHES
from tests.worker.worker_harness import CONDUCTOR, W0, W1, WorkerHarness


def test_a_worker_registers_with_its_components_and_their_devices_on_request():
    worker = WorkerHarness()
    worker.core.devices, worker.core.nondeterminism = {"m.a": "cuda:0"}, {"m.a": "it is on a GPU"}
    worker.receive(m.Register())
    registration = m.Register(("m.a",), 0, {"m.a": "cuda:0"}, {"m.a": "it is on a GPU"})
    assert worker.take_sent(m.Register) == [(CONDUCTOR, registration)]


def test_heartbeats_have_an_interval_and_the_age_of_the_running_batch():
    worker = WorkerHarness()
    worker.tick(0.0)
    worker.tick(HEARTBEAT_INTERVAL_S / 2)
    assert [beat.batch_running_s for _, beat in worker.take_sent(m.Heartbeat)] == [0.0]
    worker.start()
    worker.tick(0.3)
    assert [beat.batch_running_s for _, beat in worker.take_sent(m.Heartbeat)] == [
        pytest.approx(0.3 - HEARTBEAT_INTERVAL_S / 2)
    ]


def test_a_pause_of_the_worker_does_not_count_in_the_age_of_its_batch():
    worker = WorkerHarness().start()
    worker.tick(3600.0)
    assert [beat.batch_running_s for _, beat in worker.take_sent(m.Heartbeat)] == [MAX_STEP_S]


def test_the_wait_behind_another_batch_does_not_count_in_the_age_of_a_batch():
    worker = WorkerHarness().start(rid="r0").start("stateful", rid="r1")
    assert worker.core.stats()["running"] == MAX_INFLIGHT_BATCHES
    worker.now = 0.2
    worker.finish_batch(2)
    worker.tick(0.3)
    assert [beat.batch_running_s for _, beat in worker.take_sent(m.Heartbeat)] == [pytest.approx(0.1)]
    assert worker.core.running_batch().seconds == pytest.approx(0.1)


def test_the_cost_of_a_batch_on_a_device_is_learned_when_it_is_known():
    worker = WorkerHarness().start(rid="r0")
    known = worker.core.scheduler.cost_model._typical_s
    worker.finish_batch(2, seconds=0.001, costs=())
    assert not known
    worker.start(rid="r1").finish_batch(2, seconds=0.001, costs=((1, 0.5), (2, 0.5)))
    assert [*known.values()] == [0.5]
    worker.start(rid="r2").finish_batch(2, seconds=0.5)
    assert [*known.values()] == [0.5]


def test_without_a_message_of_the_conductor_no_batch_starts():
    worker = WorkerHarness().start()
    worker.now = CONDUCTOR_LEASE_S + 0.1
    worker.receive(m.Heartbeat(), sender=W1)
    worker.finish_batch(2)
    data = m.DataBatch("none", 0, 0, [])
    worker.receive(data, sender=W1)
    worker.core._walks.start_walk(worker.now, _start("late"))
    worker.tick(worker.now)
    assert worker.names() == []
    worker.receive(m.Heartbeat())
    assert worker.names() == ["Batch"]


def _start(rid):
    return m.StartWalk(rid, 0, 0, "m", "single", (W0,), {0: m.ValueInput(m.Value(1))}, {}, m.Peer("frontend", 0))


def test_calls_of_one_op_wait_for_the_running_batch_and_then_share_one():
    worker = WorkerHarness().start(rid="r0").start(rid="r1").start(rid="r2")
    assert [len(batch.jobs) for batch in worker.commands] == [1]
    worker.finish_batch(2)
    assert [len(batch.jobs) for batch in worker.commands] == [2]


def test_at_most_two_batches_are_in_flight():
    worker = WorkerHarness()
    for number in range(4):
        worker.start(rid=f"r{number}").start("moved", rid=f"s{number}")
    assert sum(isinstance(command, Batch) for command in worker.commands) <= MAX_INFLIGHT_BATCHES
    assert worker.core.stats()["running"] <= MAX_INFLIGHT_BATCHES


def test_suspects_of_a_batch_are_its_requests():
    worker = WorkerHarness().start(rid="r", attempt=4)
    (batch,) = worker.commands
    assert batch.suspects == [m.Suspect("r", 4, 0)]


def test_a_span_has_the_time_of_its_batch():
    worker = WorkerHarness()
    worker.tick(5.0)
    worker.receive(m.Heartbeat())
    worker.start()
    worker.now = 6.0
    worker.finish_batch(2, seconds=0.5)
    (span,) = worker.core.op_stats.snapshot(6.0, "r")
    assert (span.start, span.end) == (5.5, 6.0)


def test_a_client_that_plays_output_of_an_earlier_walk_has_started():
    worker = WorkerHarness()
    worker.now = 5.0
    worker.start(due_in_s={"Audio": 2.0})
    assert worker.core._requests.get("r").walk_run.next_due("Audio") == (7.0, True)


def test_a_restarted_conductor_starts_with_an_empty_worker():
    worker = WorkerHarness().start()
    worker.receive(m.Heartbeat(), sender=m.Peer("conductor", 1))
    assert worker.core.conductor == m.Peer("conductor", 1)
    assert worker.core.stats()["requests"] == 0
    worker.finish_batch(2)
    assert worker.take_sent(m.SeatDone) == []
    assert not any(worker.core.stats().values())


def test_a_client_that_does_not_consume_pauses_its_request():
    worker = WorkerHarness(max_undelivered_outputs=1).start()
    worker.finish_batch(2)
    worker.receive(m.StartWalk("r", 0, 1, "m", "single", (W0,), {0: m.ValueInput(m.Value(1))}, {"Latents": 1}, W1))
    worker.finish_batch(3)
    walk_run = worker.core._requests.get("r").walk_run
    assert walk_run.is_backpressured(1)
    worker.receive(m.Credit("r", 0, "Latents", 2), m.Credit("r", 0, "Latents", 1), m.Credit("r", 9, "Latents", 9))
    assert walk_run.request.consumed == {"Latents": 2}, "late and stale credits do not count"
    assert not walk_run.is_backpressured(1)


def test_data_for_a_walk_that_never_starts_is_reported_for_retry():
    worker = WorkerHarness().receive(m.DataBatch("r", 2, 0, []), sender=W1)
    worker.tick(EARLY_MESSAGE_TTL_S + 0.1)
    ((_, retry),) = worker.take_sent(m.RetryNeeded)
    assert (retry.rid, retry.attempt) == ("r", 2)
    assert worker.core.stats()["early"] == 0


# ---------------------------------------------------------------- states that a route holds
def with_route_state():
    """A worker whose request holds state 1 for its route."""
    worker = WorkerHarness().start()
    worker.finish_batch(2)
    request = worker.core._requests.get("r")
    request.route_states[1] = worker.core._states.fork(None, _Ref(0))
    worker.core._outbox.take()
    worker.commands.clear()
    return worker


class _Ref:
    def __init__(self, number):
        self.number = number


def test_a_route_state_is_forked_and_freed():
    worker = with_route_state().receive(m.ForkState("r", 0, 1, -1))
    fork = worker.take_command(Fork)
    worker.receive(m.FreeStates("r", 0, (-1, 1)))
    (freed,) = worker.commands
    assert isinstance(freed, Free)
    assert fork.copy in freed.states


def test_a_route_state_is_exported_and_sent():
    worker = with_route_state().receive(m.SendState("r", 0, 1, W1, 3, 2))
    exported = ExportedState("a", "Memory", None)
    worker.step(ExportFinished(worker.take_command(Export).ticket, exported))
    ((to, message),) = worker.take_sent(m.StateInput)
    assert (to, message.walk_index, message.input_index, message.payload.content) == (W1, 3, 2, exported)


def test_an_unknown_route_state_needs_a_retry():
    worker = with_route_state().receive(m.ForkState("r", 0, 5, -1))
    assert worker.take_sent(m.RetryNeeded) == [(CONDUCTOR, m.RetryNeeded("r", 0, "w0.0 does not hold state 5"))]


def test_a_state_command_of_an_unknown_request_or_earlier_attempt_is_ignored():
    worker = WorkerHarness().start(attempt=2)
    worker.receive(m.ForkState("other", 0, 5, -1), m.ForkState("r", 1, 5, -1))
    assert worker.take_sent(m.RetryNeeded) == []


MAX_CALLS_PER_RESULT = 55
"""Function calls of the core for one result of a large batch, up to the emission and the next batch (measured: 50)."""


def test_a_result_of_a_large_batch_costs_few_calls():
    worker, count, calls = WorkerHarness(), 64, [0]
    for n in range(count):
        worker.start("counted", rid=f"r{n}")
    worker.finish_batch(0)  # the first request was alone
    batch = worker.take_command(Batch)
    assert len(batch.jobs) == count
    event = BatchFinished(batch.number, [JobDone((1,))] * count, 0.01)

    def on_call(_frame, kind, _argument):
        calls[0] += kind in ("call", "c_call")

    sys.setprofile(on_call)
    try:
        worker.step(event)
    finally:
        sys.setprofile(None)
    assert len(worker.take_sent(m.Emit)) >= count
    assert calls[0] / count <= MAX_CALLS_PER_RESULT, calls
