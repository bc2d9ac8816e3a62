"""The scheduler: batch sizes, waiting for a fuller batch, queueing behind the running batch."""

from mstar.worker.requests import WalkRun
from mstar.worker.scheduling.scheduler import BatchLimits, Scheduler
from mstar.worker.scheduling.tuning import DEFAULT_TUNING
from tests.worker.test_policy import CODEC, PAINT, STEP, ready_call


def make_scheduler(*calls, slope=0.1, unbatched=()):
    scheduler = Scheduler(BatchLimits(unbatched_keys={"m": frozenset(unbatched)}))
    for size in (*range(1, 10), *[1] * 8):
        scheduler.cost_model.learn(CODEC, size, 0.1 * (1 + slope * (size - 1)))
    scheduler.cost_model._typical_s[CODEC] = 0.1
    scheduler._by_key[CODEC] = list(calls)
    return scheduler


def test_a_call_with_slack_waits_briefly_for_calls_at_other_workers():
    call = ready_call(CODEC, left=30.0)
    scheduler = make_scheduler(call)
    assert scheduler.choose(0.0, None, distributed_count=4) is None
    assert scheduler.fill_wait_s == DEFAULT_TUNING.batch_fill_wait_s, "the worker must choose again by then"
    assert scheduler.choose(DEFAULT_TUNING.batch_fill_wait_s, None, distributed_count=4) == (CODEC, [call])
    assert scheduler.fill_wait_s is None


def test_the_wait_counts_from_when_the_call_became_ready():
    call = ready_call(CODEC, left=130.0, since=100.0)
    scheduler = make_scheduler(call)
    assert scheduler.choose(100.0 + DEFAULT_TUNING.batch_fill_wait_s / 2, None, distributed_count=4) is None
    assert scheduler.choose(100.1, None, distributed_count=4) == (CODEC, [call])


def test_an_absent_call_is_not_waited_for():
    call = ready_call(CODEC, left=30.0)
    assert make_scheduler(call).choose(0.0, None, distributed_count=1) == (CODEC, [call])


def test_an_unstarted_request_does_not_wait():
    call = ready_call(CODEC, first_in=30.0)
    assert make_scheduler(call).choose(0.0, None, distributed_count=4) == (CODEC, [call])


def test_no_call_waits_longer_than_it_gains():
    call, scheduler = ready_call(CODEC, left=30.0), Scheduler(BatchLimits())
    for size in (1, 2):
        scheduler.cost_model.learn(CODEC, size, 0.001)
    scheduler._by_key[CODEC] = [call]
    assert scheduler.choose(0.0, None, distributed_count=4) == (CODEC, [call])


def test_a_call_with_little_slack_does_not_wait():
    call = ready_call(CODEC, left=0.9)
    assert make_scheduler(call).choose(0.0, None, distributed_count=4) == (CODEC, [call])


def test_an_op_without_gain_runs_one_by_one_and_is_probed_periodically():
    scheduler = make_scheduler(slope=1.0)
    sizes = []
    for _ in range(DEFAULT_TUNING.batch_probe_interval_batches):
        scheduler._by_key[CODEC] = [ready_call(CODEC, left=-1.0) for _ in range(4)]
        sizes.append(len(scheduler.choose(0.0, None)[1]))
    assert sizes == [1] * (DEFAULT_TUNING.batch_probe_interval_batches - 1) + [2]


def test_an_unbatched_op_gets_one_call():
    scheduler = make_scheduler(*[ready_call(CODEC, left=-1.0) for _ in range(4)], unbatched=[CODEC[1]])
    assert len(scheduler.choose(0.0, None)[1]) == 1


def test_no_call_waits_if_batching_saves_nothing():
    call = ready_call(CODEC, left=30.0)
    assert make_scheduler(call, slope=1.0).choose(0.0, None, distributed_count=4) == (CODEC, [call])


def test_short_batches_do_not_overtake_a_long_batch_that_is_next():
    late, calm, scheduler = ready_call(CODEC, left=-1.0), ready_call(STEP, left=30.0), make_scheduler()
    for key, seconds in ((STEP, 0.01), (PAINT, 0.02)):
        scheduler.cost_model.learn(key, 1, seconds)
        scheduler.cost_model._typical_s[key] = seconds
    scheduler._by_key |= {CODEC: [late], STEP: [calm]}
    assert scheduler.choose(0.0, PAINT) is None, (
        "no long batch is queued behind a running one, and no short one overtakes it"
    )
    assert scheduler.choose(0.0, None) == (CODEC, [late])
    assert scheduler.choose(0.0, PAINT) == (STEP, [calm])


def test_a_choice_while_a_batch_runs_looks_at_no_call_of_its_op(monkeypatch):
    """A worker chooses at every message, and a tenant with many streams has a thousand calls of one op."""
    checked, calls = [], [ready_call(CODEC, left=30.0) for _ in range(1000)]
    for call in calls:
        call.walk_run.emission_counts["Audio"] = 1
    scheduler = make_scheduler(*calls)
    monkeypatch.setattr(WalkRun, "is_backpressured", lambda walk_run, _: bool(checked.append(walk_run)))
    assert scheduler.choose(0.0, CODEC) is None
    assert not checked
    assert scheduler.choose(0.0, None) is not None
    assert len(checked) == 1000


def with_lag(call, lag=64):
    """A call of a request whose client is this many outputs behind."""
    call.walk_run.emission_counts["Audio"] = lag
    return call


def consume(call, count):
    call.walk_run.request.on_credit("Audio", count)


def test_paused_calls_cost_a_choice_nothing(monkeypatch):
    slow, reader = [with_lag(ready_call(CODEC, left=30.0)) for _ in range(1000)], ready_call(CODEC, left=-1.0)
    scheduler, checked, is_backpressured = make_scheduler(*slow, reader), [], WalkRun.is_backpressured
    monkeypatch.setattr(
        WalkRun, "is_backpressured", lambda one, most: bool(checked.append(one)) or is_backpressured(one, most)
    )
    reader.walk_run.emission_counts["Audio"] = 1
    assert scheduler.choose(0.0, None) == (CODEC, [reader])
    assert len(checked) == 1001, "the first choice finds them"
    scheduler.requeue(CODEC, reader)
    assert scheduler.choose(0.0, None) == (CODEC, [reader])
    assert len(checked) == 1002
    assert len(scheduler) == len([*scheduler]) == 1000, "they wait all the same"


def test_a_paused_call_returns_to_its_place_once_its_client_has_consumed_enough():
    slow, before, after = (ready_call(CODEC, left=-1.0) for _ in range(3))
    before.number, slow.number, after.number = 1, 2, 3
    scheduler = make_scheduler(before, with_lag(slow), after)
    scheduler.cost_model.learn(STEP, 1, 0.001)
    assert scheduler._runnable(None)[0] == {CODEC: [before, after]}
    scheduler.resume(slow.walk_run)
    assert scheduler._runnable(None)[0] == {CODEC: [before, after]}, "it has consumed nothing"
    consume(slow, 16)
    scheduler.resume(slow.walk_run)
    assert scheduler._runnable(None)[0] == {CODEC: [before, slow, after]}


def test_the_paused_calls_of_a_request_that_ends_are_dropped():
    slow = with_lag(ready_call(CODEC, left=30.0))
    scheduler = make_scheduler(slow)
    assert scheduler.choose(0.0, None) is None
    assert scheduler, "it still waits"
    scheduler.drop(slow.walk_run)
    consume(slow, 16)
    scheduler.resume(slow.walk_run)
    assert not scheduler
    assert not len(scheduler)


def test_the_oldest_preempted_call_is_resumed_also_if_it_was_paused_before():
    old, young = ready_call(CODEC, left=30.0), ready_call(STEP, left=30.0)
    old.walk_run.number, young.walk_run.number = 1, 2
    scheduler = make_scheduler(with_lag(old))
    assert scheduler.choose(0.0, None) is None, "it is paused"
    young.number = 2
    scheduler._by_key[STEP] = [young]
    old.walk_run.is_preempted = young.walk_run.is_preempted = True
    assert scheduler.choose(0.0, None) == (CODEC, [old])
    assert young.walk_run.is_preempted
    assert len(scheduler) == 1
