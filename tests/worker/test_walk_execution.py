"""Walk runs at a worker: start, data from other workers, results, failures and release."""

import pytest

from mstar.engine.jobs import UNFINISHED, JobFailed
from mstar.plan.runtime.messages import MessageKind, value_sent
from mstar.wire import messages as m
from mstar.wire.frame import UnreadableValue
from mstar.worker.commands import (
    Batch,
    CreateState,
    Export,
    ExportedState,
    ExportFinished,
    Fork,
    Free,
    LoadAhead,
    LoadState,
)
from tests.worker.worker_harness import CONDUCTOR, FRONTEND, PLANS, W1, WorkerHarness

EXPORTED = ExportedState("a", "Memory", "content")


def idle(worker):
    return not any(worker.core.stats().values())


def test_a_walk_runs_emits_and_reports_its_outputs():
    worker = WorkerHarness().start()
    worker.finish_batch(5)
    ((to, emission),) = worker.take_sent(m.Emit)
    assert (to, emission.rid, emission.kind, emission.index, emission.value.content) == (
        FRONTEND,
        "r",
        "Latents",
        0,
        5,
    )
    ((to, done),) = worker.take_sent(m.SeatDone)
    assert (to, done.seat, done.outputs[0].value.content, done.emission_counts) == (CONDUCTOR, 0, 5, {"Latents": 1})


def test_emissions_are_numbered_after_those_of_earlier_walks():
    worker = WorkerHarness()
    inputs = {0: m.ValueInput(m.Value(1))}
    worker.receive(m.StartWalk("r", 0, 1, "m", "single", (worker.core.peer,), inputs, {"Latents": 7}, FRONTEND))
    worker.finish_batch(5)
    ((_, emission),) = worker.take_sent(m.Emit)
    assert emission.index == 7


def test_a_value_for_another_partition_is_sent_to_its_worker():
    worker = WorkerHarness().start("split")
    worker.finish_batch(2)
    ((to, batch),) = worker.take_sent(m.DataBatch)
    (event,) = batch.events
    assert (to, batch.rid, batch.attempt, batch.walk_index) == (W1, "r", 0, 0)
    assert (event.kind, event.seat, event.payload.content) == (MessageKind.VALUE, 1, 2)


def data_for_split(attempt=0, content=2, walk_index=0):
    plan = PLANS["m"].walks["split"]
    (value,) = plan.programs[1].bodies[0].remote_inputs
    return m.DataBatch("r", attempt, walk_index, [value_sent(1, value, (), m.Value(content))])


def test_data_that_arrives_before_the_walk_is_buffered():
    worker = WorkerHarness(W1).receive(data_for_split(), sender=m.Peer("w0", 0))
    assert worker.core.stats()["early"] == 1
    worker.start("split", inputs={})
    batch = worker.finish_batch(4)
    assert [job.arguments for job in batch.jobs] == [{"x": 2}]
    ((_, done),) = worker.take_sent(m.SeatDone)
    assert done.outputs[0].value.content == 4


def test_data_of_the_next_walk_is_buffered_while_a_walk_runs():
    worker = WorkerHarness(W1).start("split", inputs={})
    worker.receive(data_for_split(walk_index=1), sender=m.Peer("w0", 0))
    assert worker.core.stats()["early"] == 1
    assert worker.names() == []


def test_data_of_an_earlier_attempt_is_ignored():
    worker = WorkerHarness(W1).start("split", attempt=3, inputs={})
    worker.receive(data_for_split(attempt=2))
    assert worker.core.stats()["early"] == 0
    assert worker.names() == []


def test_received_messages_are_not_changed():
    worker = WorkerHarness(W1).start("split", inputs={})
    message = data_for_split()
    payload = message.events[0].payload
    worker.receive(message)
    assert payload.content == 2
    assert message == m.DataBatch("r", 0, 0, [value_sent(1, message.events[0].target, (), payload)])


def test_data_that_cannot_be_read_asks_the_conductor_to_retry():
    worker = WorkerHarness(W1).start("split", inputs={})
    worker.receive(data_for_split(content=UnreadableValue("lost")))
    assert worker.take_sent(m.RetryNeeded) == [(CONDUCTOR, m.RetryNeeded("r", 0, "lost"))]
    worker.receive(data_for_split())
    assert worker.names() == [], "the walk run is over"


def test_an_input_that_cannot_be_read_asks_the_conductor_to_retry():
    worker = WorkerHarness().start(inputs={0: m.ValueInput(m.Value(UnreadableValue("lost")))})
    assert worker.take_sent(m.RetryNeeded) == [(CONDUCTOR, m.RetryNeeded("r", 0, "lost"))]
    assert worker.names() == []


def test_a_failed_call_fails_its_attempt_and_no_other():
    worker = WorkerHarness().start(rid="good").start(rid="bad")
    worker.finish_batch(2)  # a batch runs as soon as the first call is ready
    worker.finish_batch(JobFailed(ValueError("no")))
    ((to, failed),) = worker.take_sent(m.AttemptFailed)
    assert (to, failed.rid, failed.error_type, failed.error_message) == (CONDUCTOR, "bad", "ValueError", "no")
    assert (failed.failure.op, failed.failure.traceback) == ("a.inc", "ValueError: no")
    assert [done.rid for _, done in worker.take_sent(m.SeatDone)] == ["good"]


def test_an_unfinished_call_is_submitted_again_with_the_same_job():
    worker = WorkerHarness().start()
    first = worker.finish_batch(UNFINISHED)
    again = worker.take_command(Batch)
    assert again.jobs[0] is first.jobs[0]


def test_a_new_attempt_replaces_the_old_one_whose_result_is_ignored():
    worker = WorkerHarness().start(attempt=0).start(attempt=1)
    worker.finish_batch(2)
    assert worker.take_sent(m.SeatDone) == []
    worker.start(attempt=0)
    worker.finish_batch(3)
    ((_, done),) = worker.take_sent(m.SeatDone)
    assert done.attempt == 1


def test_release_is_confirmed_after_the_last_call_in_flight():
    worker = WorkerHarness().start().receive(m.ReleaseAttempt("r", 0))
    assert worker.take_sent(m.AttemptReleased) == []
    worker.finish_batch(2)
    assert worker.take_sent(m.AttemptReleased) == [(CONDUCTOR, m.AttemptReleased("r", 0))]
    assert idle(worker)


def test_release_of_an_idle_attempt_is_confirmed_at_once():
    worker = WorkerHarness().start()
    worker.finish_batch(2)
    worker.receive(m.ReleaseAttempt("r", 0))
    assert worker.take_sent(m.AttemptReleased) == [(CONDUCTOR, m.AttemptReleased("r", 0))]
    assert idle(worker)


@pytest.mark.parametrize("can_wait", [False, True])
def test_a_confirmation_waits_if_the_conductor_allows_it(can_wait):
    worker = WorkerHarness().start()
    worker.finish_batch(2)
    worker.receive(m.ReleaseAttempt("r", 0, can_wait=can_wait))
    assert worker.take_sent(m.AttemptReleased) == [(CONDUCTOR, m.AttemptReleased("r", 0, can_wait))]


def test_release_of_a_later_attempt_drops_an_earlier_one():
    worker = WorkerHarness().start(attempt=0)
    worker.finish_batch(2)
    worker.receive(m.ReleaseAttempt("r", 1))
    assert worker.take_sent(m.AttemptReleased) == [(CONDUCTOR, m.AttemptReleased("r", 1))]
    assert idle(worker)


def test_a_new_state_belongs_to_the_tenant_of_its_request():
    worker = WorkerHarness().start("moved", tenant="acme")
    assert worker.take_command(CreateState).tenant == "acme"


def test_a_state_is_exported_before_it_is_sent_to_another_partition():
    worker = WorkerHarness().start("moved")
    worker.take_command(CreateState)
    worker.finish_batch(2)
    fork, export = worker.take_command(Fork), worker.take_command(Export)
    assert export.state == fork.copy
    worker.take_sent(m.DataBatch)  # the value of the first call
    worker.step(ExportFinished(export.ticket, EXPORTED))
    ((to, batch),) = worker.take_sent(m.DataBatch)
    assert (to, batch.events[0].payload.content) == (W1, EXPORTED)


def test_a_chunk_sends_a_part_of_a_state_that_moves_to_another_partition():
    worker = WorkerHarness().start("moved")
    worker.take_command(CreateState)
    worker.finish_batch(UNFINISHED)
    part = worker.take_command(Export)
    assert (part.is_ahead, part.to) == (True, "w1.0")
    worker.step(ExportFinished(part.ticket, EXPORTED))
    ((to, ahead),) = worker.take_sent(m.StateAhead)
    assert (to, ahead.model, ahead.payload.content) == (W1, "m", EXPORTED)
    worker.finish_batch(2)
    whole = worker.take_command(Export)
    assert (whole.is_ahead, whole.to) == (False, "w1.0")
    assert worker.take_sent(m.StateAhead) == []


@pytest.mark.parametrize("result", [None, ValueError("no")])
def test_a_part_that_is_not_exported_is_not_sent(result):
    worker = WorkerHarness().start("moved")
    worker.finish_batch(UNFINISHED)
    worker.step(ExportFinished(worker.take_command(Export).ticket, result))
    worker.finish_batch(2)
    worker.step(ExportFinished(worker.take_command(Export).ticket, EXPORTED))
    assert worker.take_sent(m.StateAhead) == worker.take_sent(m.AttemptFailed) == []
    assert len(worker.take_sent(m.DataBatch)) == 2


def test_a_chunk_sends_a_part_of_an_input_state_to_the_worker_of_the_next_walk():
    inputs = {0: m.ValueInput(m.Value(1)), 1: m.NewState("a", "Memory")}
    worker = WorkerHarness().start("given", inputs=inputs, next_workers={1: W1})
    worker.finish_batch(UNFINISHED)
    part = worker.take_command(Export)
    assert (part.is_ahead, part.to) == (True, "w1.0")
    worker.step(ExportFinished(part.ticket, EXPORTED))
    ((to, ahead),) = worker.take_sent(m.StateAhead)
    assert (to, ahead.payload.content) == (W1, EXPORTED)


def test_a_part_of_a_state_is_kept_for_the_state():
    worker = WorkerHarness().receive(m.StateAhead("m", m.Value(EXPORTED)), sender=W1)
    assert worker.take_command(LoadAhead) == LoadAhead("m", EXPORTED)
    worker.receive(m.StateAhead("m", m.Value(UnreadableValue("lost"))), sender=W1)
    assert worker.names() == []


def test_a_failed_export_fails_the_attempt():
    worker = WorkerHarness().start("moved")
    worker.finish_batch(2)
    worker.step(ExportFinished(worker.take_command(Export).ticket, ValueError("no")))
    ((to, failed),) = worker.take_sent(m.AttemptFailed)
    assert (to, failed.rid, failed.error_type, failed.error_message) == (CONDUCTOR, "r", "ValueError", "no")
    assert failed.failure.traceback == "ValueError: no"


def test_an_export_of_a_released_attempt_is_discarded():
    worker = WorkerHarness().start("moved")
    worker.finish_batch(2)
    worker.receive(m.ReleaseAttempt("r", 0))
    worker.take_sent(m.DataBatch)
    worker.step(ExportFinished(worker.take_command(Export).ticket, EXPORTED))
    assert worker.take_sent(m.DataBatch) == []
    assert idle(worker)


def test_a_walk_waits_for_input_states_of_other_workers():
    worker = WorkerHarness().start("single", inputs={0: m.IncomingState()})
    assert worker.names() == []
    worker.receive(m.StateInput("r", 0, 0, 0, m.Value(EXPORTED)))
    assert worker.take_command(LoadState).exported is EXPORTED
    assert worker.names() == ["Fork", "Batch"], "the walk run works on a copy"


def test_states_of_a_walk_that_failed_are_freed():
    worker = WorkerHarness().start("moved")
    created = worker.take_command(CreateState).state
    worker.finish_batch(JobFailed(ValueError("no")))
    worker.tick(0.0)  # the batch itself held a reference until now
    freed = {number for command in worker.commands if isinstance(command, Free) for number in command.states}
    assert created in freed
    worker.receive(m.ReleaseAttempt("r", 0))
    assert idle(worker)
