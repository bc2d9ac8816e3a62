"""Lookaheads at a worker: when their calls run, and what commit, drop, failure and eviction do."""

import pytest

from mstar.engine.jobs import UNFINISHED, JobFailed
from mstar.wire import messages as m
from mstar.wire.slo import DEFAULT_TTFT_S, Slo
from mstar.worker.commands import Batch, EvictFirst, Free
from mstar.worker.early_messages import EARLY_MESSAGE_TTL_S
from mstar.worker.scheduling.tuning import DEFAULT_TUNING
from tests.worker.worker_harness import CONDUCTOR, W1, WorkerHarness

COMMIT, DROP = m.CommitLookahead("r", 0, -1), m.DropLookahead("r", 0, -1)
NEW_STATE = {0: m.ValueInput(m.Value(1)), 1: m.NewState("a", "Memory")}
SINGLE_COST_S = 0.01


def offer(worker, walk_name="given", rid="r", walk_index=-1, inputs=None, **fields):
    """Start a lookahead."""
    return worker.start(walk_name, rid, walk_index=walk_index, inputs=inputs or NEW_STATE, **fields)


def rids(worker):
    """The requests of the batches that the engine was given."""
    batches = [command for command in worker.commands if isinstance(command, Batch)]
    return [[suspect.rid for suspect in batch.suspects] for batch in batches]


def learn_cost(worker, seconds=SINGLE_COST_S):
    """Let the worker measure the op of `single` and `counted`."""
    worker.start(rid="measured")
    worker.finish_batch(2, seconds=seconds)
    worker.receive(m.ReleaseAttempt("measured", 0))
    worker.sent.clear()


def lookahead_s(worker):
    return {totals.op: totals.lookahead_s for totals in worker.core.op_stats.ops() if totals.lookahead_s}


def assert_idle(worker):
    worker.receive(m.ReleaseAttempt("r", 0))
    assert set(worker.core.stats().values()) == {0}


# ---------------------------------------------------------------- when it runs
def test_it_runs_on_an_idle_worker_and_reports_its_result():
    worker = offer(WorkerHarness())
    assert rids(worker) == [["r"]]
    worker.finish_batch(2)
    ((to, done),) = worker.take_sent(m.SeatDone)
    assert (to, done.walk_index, done.outputs[0].value.content) == (CONDUCTOR, -1, 2)
    assert [*done.states] == [1]
    assert_idle(worker)


def test_it_runs_after_all_ordinary_calls_and_alone():
    worker = WorkerHarness()
    learn_cost(worker)
    worker.start("counted", rid="first")
    offer(worker, "counted", inputs={0: m.ValueInput(m.Value(1))})
    offer(worker, "counted", walk_index=-2, inputs={0: m.ValueInput(m.Value(1))})
    worker.start("counted", rid="second")
    assert rids(worker) == [["first"]]
    worker.finish_batch(2)
    assert rids(worker) == [["second", "first"]], "calls of one op share a batch, and no lookahead joins them"
    worker.receive(m.ReleaseAttempt("first", 0), m.ReleaseAttempt("second", 0))
    worker.finish_batch(2, 2)
    assert rids(worker) == [["r"]], "two lookaheads share no batch"


def test_an_ordinary_call_that_arrives_waits_for_one_op_only():
    worker = WorkerHarness()
    learn_cost(worker)
    offer(worker, "counted", inputs={0: m.ValueInput(m.Value(1))})
    worker.start("counted", rid="ordinary")
    worker.finish_batch(2)
    assert rids(worker) == [["ordinary"]]


@pytest.mark.parametrize(("slack_s", "runs"), [(2 * SINGLE_COST_S, True), (SINGLE_COST_S / 2, False)])
def test_it_runs_only_if_no_stream_can_become_late(slack_s, runs):
    """The stream is at another worker: it has no ready call here."""
    worker = WorkerHarness(W1)
    learn_cost_of_double(worker)
    worker.start("played", rid="stream", first_due_in_s=DEFAULT_TTFT_S)
    worker.now = DEFAULT_TTFT_S - DEFAULT_TUNING.delivery_margin_s - slack_s
    offer_double(worker)
    assert rids(worker) == ([["r"]] if runs else [])


def test_a_finished_stream_and_one_without_deadlines_do_not_hold_it_back():
    worker = WorkerHarness(W1)
    learn_cost_of_double(worker)
    worker.start("played", rid="stream", slo=Slo(best_effort=True))
    worker.now = 10.0
    worker.receive(m.Heartbeat())
    offer_double(worker)
    assert rids(worker) == [["r"]]


def test_an_op_without_an_estimate_waits_until_the_worker_has_no_stream():
    worker = WorkerHarness(W1).start("played", rid="stream", slo=Slo(best_effort=True))
    offer_double(worker)
    assert rids(worker) == []
    worker.receive(m.ReleaseAttempt("stream", 0))
    assert rids(worker) == [["r"]]


def offer_double(worker):
    """A lookahead whose second partition runs here."""
    worker.start("split", walk_index=-1, inputs={})
    worker.receive(partition_input("r", -1), sender=m.Peer("w0", 0))


def learn_cost_of_double(worker):
    worker.start("split", rid="measured", inputs={})
    worker.receive(partition_input("measured", 0), sender=m.Peer("w0", 0))
    worker.finish_batch(4, seconds=SINGLE_COST_S)
    worker.receive(m.ReleaseAttempt("measured", 0))


def partition_input(rid, walk_index):
    """What the partition of `split` at w0 sends to the one at w1."""
    first = WorkerHarness().start("split", rid=rid, walk_index=walk_index)
    first.finish_batch(2)
    ((_, data),) = first.take_sent(m.DataBatch)
    return data


# ---------------------------------------------------------------- commit and drop
def test_a_finished_one_that_is_committed_leaves_its_states_to_the_route():
    worker = offer(WorkerHarness())
    worker.finish_batch(2)
    ((_, done),) = worker.take_sent(m.SeatDone)
    worker.receive(COMMIT)
    worker.start("given", inputs={0: m.ValueInput(m.Value(1)), 1: m.LocalState(done.states[1])})
    assert rids(worker) == [["r"]]
    assert lookahead_s(worker) == {"tell": {"committed": 0.01}}
    worker.finish_batch(2)
    assert_idle(worker)


def test_an_unfinished_one_that_is_committed_becomes_an_ordinary_walk():
    worker = WorkerHarness().start("counted", rid="other")
    offer(worker)
    worker.receive(COMMIT)
    worker.finish_batch(2)
    assert ["r"] in rids(worker), "it does not wait for an idle worker any more"
    while not worker.take_sent(m.SeatDone):
        worker.finish_batch(2)
    assert lookahead_s(worker) == {}, "nothing of it ran early"
    worker.receive(m.ReleaseAttempt("other", 0))
    worker.finish_batch(2)
    assert_idle(worker)


def test_a_dropped_one_frees_everything():
    worker = offer(WorkerHarness())
    worker.finish_batch(2)
    worker.commands.clear()
    worker.receive(DROP)
    assert worker.names() == ["Free"]
    assert worker.core.stats() == {"requests": 1} | dict.fromkeys(
        ("waiting", "running", "states", "exports", "early"), 0
    )
    assert lookahead_s(worker) == {"tell": {"dropped": 0.01}}
    worker.receive(COMMIT)
    assert_idle(worker)


def test_the_result_of_a_call_in_flight_is_discarded_after_a_drop():
    worker = offer(WorkerHarness()).receive(DROP)
    worker.finish_batch(2)
    assert worker.take_sent(m.SeatDone) == []
    assert lookahead_s(worker) == {"tell": {"dropped": 0.01}}
    assert_idle(worker)


def test_a_release_is_confirmed_after_the_calls_of_lookaheads():
    worker = WorkerHarness()
    offer(worker).receive(DROP)
    worker.start()
    worker.receive(m.ReleaseAttempt("r", 0))
    worker.finish_batch(2)
    assert worker.take_sent(m.AttemptReleased) == [], "the ordinary call waits behind it"
    worker.finish_batch(2)
    assert worker.take_sent(m.AttemptReleased) == [(CONDUCTOR, m.AttemptReleased("r", 0))]
    assert set(worker.core.stats().values()) == {0}


def test_a_chunked_call_continues_in_idle_time():
    worker = offer(WorkerHarness())
    worker.finish_batch(UNFINISHED)
    assert rids(worker) == [["r"]]
    worker.finish_batch(2)
    assert len(worker.take_sent(m.SeatDone)) == 1


# ---------------------------------------------------------------- lost
@pytest.mark.parametrize("keep_states", [False, True])
def test_the_end_of_the_attempt_drops_it(keep_states):
    worker = WorkerHarness()
    learn_cost(worker)
    offer(worker)
    worker.finish_batch(2)
    worker.receive(m.ReleaseAttempt("r", 0, keep_states))
    assert worker.core.stats()["states"] == 0
    assert lookahead_s(worker) == {"tell": {"lost" if keep_states else "dropped": 0.01}}


def test_a_failure_loses_it_and_fails_no_attempt():
    worker = offer(WorkerHarness())
    worker.finish_batch(JobFailed(ValueError("no")))
    assert worker.take_sent(m.AttemptFailed) == []
    assert worker.take_sent(m.LookaheadLost) == [(CONDUCTOR, m.LookaheadLost("r", 0, -1))]
    assert lookahead_s(worker) == {"tell": {"lost": 0.01}}
    assert_idle(worker)


def test_a_failure_after_the_commit_fails_the_attempt():
    worker = offer(WorkerHarness()).receive(COMMIT)
    worker.finish_batch(JobFailed(ValueError("no")))
    ((_, failed),) = worker.take_sent(m.AttemptFailed)
    assert (failed.rid, failed.error_message) == ("r", "no")
    assert worker.take_sent(m.LookaheadLost) == []
    assert_idle(worker)


def test_its_states_are_evicted_first_until_it_is_committed():
    worker = offer(WorkerHarness())
    marked = [command for command in worker.commands if isinstance(command, EvictFirst)]
    assert [command.is_first for command in marked] == [True, *[True] * (len(marked) - 1)]
    worker.commands = [command for command in worker.commands if isinstance(command, Batch)]
    worker.receive(COMMIT)
    (kept,) = [command for command in worker.commands if isinstance(command, EvictFirst)]
    assert not kept.is_first
    assert {number for command in marked for number in command.states} == {*kept.states}


def test_an_unfinished_one_whose_state_is_evicted_is_lost():
    worker = WorkerHarness()
    learn_cost(worker)
    offer(worker, "stateful", inputs={0: m.ValueInput(m.Value(1))})
    (marked,) = [command for command in worker.commands if isinstance(command, EvictFirst)]
    worker.start(rid="needy")
    worker.finish_batch(2)
    worker.finish_batch(2, evicted=marked.states)
    assert worker.take_sent(m.LookaheadLost) == [(CONDUCTOR, m.LookaheadLost("r", 0, -1))]
    assert [command.states for command in worker.commands if isinstance(command, Free)] == [marked.states]


def test_a_finished_one_keeps_a_state_that_is_evicted():
    worker = offer(WorkerHarness())
    worker.finish_batch(2)
    ((_, done),) = worker.take_sent(m.SeatDone)
    worker.start(rid="needy")
    worker.finish_batch(2, evicted=(done.states[1],))
    assert worker.take_sent(m.LookaheadLost) == []
    assert worker.core.stats()["states"] == 1


def test_data_for_one_that_never_starts_fails_no_attempt():
    worker = WorkerHarness(W1)
    worker.receive(partition_input("r", -1), sender=m.Peer("w0", 0))
    worker.tick(EARLY_MESSAGE_TTL_S + 0.1)
    assert worker.take_sent(m.RetryNeeded) == []
    assert worker.take_sent(m.LookaheadLost) == [(CONDUCTOR, m.LookaheadLost("r", 0, -1))]


def test_data_for_a_dropped_one_is_ignored():
    worker = WorkerHarness(W1).start("split", walk_index=-1, inputs={}).receive(DROP)
    worker.receive(partition_input("r", -1), sender=m.Peer("w0", 0))
    assert worker.core.stats()["early"] == 0
