"""Which calls may run: what waits for company, and what does not."""

from mstar.worker.batches import HELD, TRY, Limits, Waiting
from tests.worker.test_order import CODEC, PAINT, STEP, waiter


def waiting(*waiters, slope=0.1, alone=()):
    found = Waiting(Limits(alone={"m": frozenset(alone)}))
    for size in (*range(1, 10), *[1] * 8):
        found.costs.learn(CODEC, size, 0.1 * (1 + slope * (size - 1)))
    found.costs._usual[CODEC] = 0.1
    found._by_key[CODEC] = list(waiters)
    return found


def test_who_has_plenty_waits_a_moment_for_those_at_other_workers():
    one = waiter(CODEC, left=30.0)
    some = waiting(one)
    assert some.choose(0.0, None, elsewhere=4) is None
    assert some.choose(HELD, None, elsewhere=4) == (CODEC, [one])


def test_nobody_is_waited_for_who_is_not_there():
    one = waiter(CODEC, left=30.0)
    assert waiting(one).choose(0.0, None, elsewhere=1) == (CODEC, [one])


def test_whose_client_has_nothing_yet_does_not_wait():
    one = waiter(CODEC, first_in=30.0)
    assert waiting(one).choose(0.0, None, elsewhere=4) == (CODEC, [one])


def test_nobody_waits_longer_than_it_is_worth():
    one, some = waiter(CODEC, left=30.0), Waiting(Limits())
    for size in (1, 2):
        some.costs.learn(CODEC, size, 0.001)
    some._by_key[CODEC] = [one]
    assert some.choose(0.0, None, elsewhere=4) == (CODEC, [one])


def test_who_has_little_left_does_not_wait():
    one = waiter(CODEC, left=0.9)
    assert waiting(one).choose(0.0, None, elsewhere=4) == (CODEC, [one])


def test_what_gains_nothing_is_run_one_by_one_and_tried_again_now_and_then():
    some = waiting(slope=1.0)
    sizes = []
    for _ in range(TRY):
        some._by_key[CODEC] = [waiter(CODEC, left=-1.0) for _ in range(4)]
        sizes.append(len(some.choose(0.0, None)[1]))
    assert sizes == [1] * (TRY - 1) + [2]


def test_an_op_that_runs_each_call_by_itself_is_given_one():
    some = waiting(*[waiter(CODEC, left=-1.0) for _ in range(4)], alone=[CODEC[1]])
    assert len(some.choose(0.0, None)[1]) == 1


def test_nobody_waits_if_company_saves_nothing():
    one = waiter(CODEC, left=30.0)
    assert waiting(one, slope=1.0).choose(0.0, None, elsewhere=4) == (CODEC, [one])


def test_short_ones_do_not_pass_by_a_long_one_whose_turn_it_is():
    late, calm, some = waiter(CODEC, left=-1.0), waiter(STEP, left=30.0), waiting()
    for key, seconds in ((STEP, 0.01), (PAINT, 0.02)):
        some.costs.learn(key, 1, seconds)
        some.costs._usual[key] = seconds
    some._by_key |= {CODEC: [late], STEP: [calm]}
    assert some.choose(0.0, PAINT) is None, "behind what runs, nothing long is queued, nor what would pass it by"
    assert some.choose(0.0, None) == (CODEC, [late])
    assert some.choose(0.0, PAINT) == (STEP, [calm])
