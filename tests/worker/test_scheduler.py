"""Which calls may run: what waits for company, and what does not."""

from mstar.worker.scheduling.scheduler import BatchLimits, Scheduler
from mstar.worker.scheduling.tuning import DEFAULT_TUNING
from tests.worker.test_policy import CODEC, PAINT, STEP, ready_call


def make_scheduler(*waiters, slope=0.1, single_s=()):
    found = Scheduler(BatchLimits(unbatched_keys={"m": frozenset(single_s)}))
    for size in (*range(1, 10), *[1] * 8):
        found.cost_model.learn(CODEC, size, 0.1 * (1 + slope * (size - 1)))
    found.cost_model._typical_s[CODEC] = 0.1
    found._by_key[CODEC] = list(waiters)
    return found


def test_a_call_with_slack_waits_briefly_for_calls_at_other_workers():
    one = ready_call(CODEC, left=30.0)
    some = make_scheduler(one)
    assert some.choose(0.0, None, remote_requests=4) is None
    assert some.choose(DEFAULT_TUNING.batch_fill_wait_s, None, remote_requests=4) == (CODEC, [one])


def test_an_absent_call_is_not_waited_for():
    one = ready_call(CODEC, left=30.0)
    assert make_scheduler(one).choose(0.0, None, remote_requests=1) == (CODEC, [one])


def test_an_unstarted_request_does_not_wait():
    one = ready_call(CODEC, first_in=30.0)
    assert make_scheduler(one).choose(0.0, None, remote_requests=4) == (CODEC, [one])


def test_no_call_waits_longer_than_it_gains():
    one, some = ready_call(CODEC, left=30.0), Scheduler(BatchLimits())
    for size in (1, 2):
        some.cost_model.learn(CODEC, size, 0.001)
    some._by_key[CODEC] = [one]
    assert some.choose(0.0, None, remote_requests=4) == (CODEC, [one])


def test_a_call_with_little_slack_does_not_wait():
    one = ready_call(CODEC, left=0.9)
    assert make_scheduler(one).choose(0.0, None, remote_requests=4) == (CODEC, [one])


def test_what_gains_nothing_is_run_one_by_one_and_tried_again_now_and_then():
    some = make_scheduler(slope=1.0)
    sizes = []
    for _ in range(DEFAULT_TUNING.batch_probe_interval_batches):
        some._by_key[CODEC] = [ready_call(CODEC, left=-1.0) for _ in range(4)]
        sizes.append(len(some.choose(0.0, None)[1]))
    assert sizes == [1] * (DEFAULT_TUNING.batch_probe_interval_batches - 1) + [2]


def test_an_op_that_runs_each_call_by_itself_is_given_one():
    some = make_scheduler(*[ready_call(CODEC, left=-1.0) for _ in range(4)], single_s=[CODEC[1]])
    assert len(some.choose(0.0, None)[1]) == 1


def test_no_call_waits_if_batching_saves_nothing():
    one = ready_call(CODEC, left=30.0)
    assert make_scheduler(one, slope=1.0).choose(0.0, None, remote_requests=4) == (CODEC, [one])


def test_short_ones_do_not_pass_by_a_long_one_whose_turn_it_is():
    late, calm, some = ready_call(CODEC, left=-1.0), ready_call(STEP, left=30.0), make_scheduler()
    for key, seconds in ((STEP, 0.01), (PAINT, 0.02)):
        some.cost_model.learn(key, 1, seconds)
        some.cost_model._typical_s[key] = seconds
    some._by_key |= {CODEC: [late], STEP: [calm]}
    assert some.choose(0.0, PAINT) is None, "behind what runs, nothing long is queued, nor what would pass it by"
    assert some.choose(0.0, None) == (CODEC, [late])
    assert some.choose(0.0, PAINT) == (STEP, [calm])
