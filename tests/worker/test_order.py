"""Whose calls run next: the rule by itself, on calls whose costs and deadlines are given."""

from types import SimpleNamespace as Thing

import pytest

from mstar.plan.tables import Call, Lead
from mstar.wire.messages import Peer, Start
from mstar.wire.pace import Pace, Playing
from mstar.worker.costs import Costs
from mstar.worker.order import COMPANY, MARGIN, STARVED, BySlack, Waiter
from mstar.worker.shares import Shares
from mstar.worker.tours import Guest, Tour

STEP, CODEC, PAINT = ("m", 0), ("m", 1), ("m", 2)
LEADS = {
    STEP: (Lead("Audio", ((1, 1),)),),  # a codec call between the step and the sound
    CODEC: (Lead("Audio", ()),),
    PAINT: (Lead("Image", ()),),
}
NUMBERS = iter(range(10_000))


def costs(step=0.1, codec=0.1, paint=0.5, slope=0.0):
    """For batches of 1 to 8: each further call costs `slope` of the first."""
    found = Costs()
    for key, seconds in ((STEP, step), (CODEC, codec), (PAINT, paint)):
        for size in range(1, 9):
            found.learn(key, size, seconds * (1 + slope * (size - 1)))
        found._usual[key] = seconds
    return found


def waiter(key, *, left=None, first_in=1.0, since=0.0, pace=None, name=""):
    """A call of a request whose client has so many seconds left to play; None: it has nothing yet."""
    pace = pace or Pace()
    start = Start(name, 0, 0, "m", "w", (), {}, {}, Peer("f", 0), pace=pace, first_in=first_in)
    tour = Tour(None, Guest(name, 0, None), start, None, next(NUMBERS))
    tour.begin_clock(0.0)
    if left is not None:
        tour.players["Audio"] = Playing(left, is_begun=True)
    instruction = Thing(detail=Call(key[1], (), (), LEADS[key]))
    return Waiter(tour, Thing(instruction=None, parent=None), instruction, since)


def chosen(able, *, now=0.0, known=None, most=8):
    key, batch = BySlack(Shares()).choose(now, able, known or costs(), lambda _: most)
    return key, batch


def test_who_runs_dry_first_goes_first():
    soon, later = waiter(CODEC, left=0.3), waiter(STEP, left=5.0)
    assert chosen({STEP: [later], CODEC: [soon]}) == (CODEC, [soon])


def test_what_lies_between_counts():
    near, far = waiter(CODEC, left=0.45), waiter(STEP, left=0.5)  # a step and a codec call are needed for this one
    key, _ = chosen({CODEC: [near], STEP: [far]}, known=costs(step=0.2, codec=0.15))
    assert key == STEP


def test_among_the_late_the_one_that_is_soonest_done():
    far, near = waiter(STEP, left=-1.0), waiter(CODEC, left=-0.1)
    assert chosen({STEP: [far], CODEC: [near]}) == (CODEC, [near])


def test_if_many_are_late_who_came_first_goes_first():
    old, new = [waiter(STEP, left=-1.0) for _ in range(3)], waiter(CODEC, left=-0.1)
    assert chosen({STEP: old[::-1], CODEC: [new]}, known=costs(step=0.1, codec=0.3), most=1) == (STEP, [old[0]])
    calm = [waiter(STEP, left=60.0) for _ in range(20)]
    assert chosen({STEP: [*old, *calm], CODEC: [new]}, known=costs(step=0.1, codec=0.05))[0] == CODEC


def test_what_takes_next_to_no_time_goes_before():
    late, check = waiter(CODEC, left=-0.1), waiter(PAINT, left=30.0)
    assert chosen({CODEC: [late], PAINT: [check]}, known=costs(paint=0.001)) == (PAINT, [check])
    assert chosen({CODEC: [late], PAINT: [check]}, known=costs(paint=0.05)) == (CODEC, [late])


def test_what_takes_next_to_no_time_waits_if_it_brings_nobody():
    late, check = waiter(CODEC, left=-0.1), waiter(PAINT, left=30.0)
    check.tour = late.tour
    assert chosen({CODEC: [late], PAINT: [check]}, known=costs(paint=0.001)) == (CODEC, [late])


def test_newcomers_meet_before_they_go_on():
    ahead, behind = waiter(CODEC, first_in=10.0), waiter(STEP, first_in=10.0)
    assert chosen({CODEC: [ahead], STEP: [behind]}, known=costs(step=0.01, codec=0.01))[0] == STEP
    assert chosen({CODEC: [ahead], STEP: [behind]}, known=costs(step=0.06, codec=0.01))[0] == CODEC, "it takes long"
    apart = costs(step=0.01, codec=0.01, slope=1.0)
    for size in (1, 2) * 20:
        apart.learn(STEP, size, 0.01 * size)
    assert chosen({CODEC: [ahead], STEP: [behind]}, known=apart)[0] == CODEC, "company saves nothing"


def test_a_newcomer_goes_before_those_who_have_time():
    newcomer, ahead = waiter(STEP, first_in=10.0), waiter(CODEC, left=20.0)
    assert chosen({CODEC: [ahead], STEP: [newcomer]}) == (STEP, [newcomer])


def test_others_come_along_if_that_makes_nobody_late():
    hurried, calm = waiter(STEP, first_in=10.0), [waiter(STEP, left=20.0 + n) for n in range(7)]
    assert len(chosen({STEP: [*calm, hurried]})[1]) == 8  # they cost nothing
    key, batch = chosen({STEP: [*calm, hurried]}, known=costs(slope=1.0))
    assert batch[0] is hurried
    assert key == STEP
    assert len(batch) == 8  # its first second is far away


def test_others_stay_away_if_they_would_make_somebody_late():
    late, calm = waiter(STEP, left=-0.1), [waiter(STEP, left=20.0 + n) for n in range(7)]
    _, batch = chosen({STEP: [*calm, late]}, known=costs(slope=0.1))
    assert batch == [late, *calm[:2]]  # two of them make it 1.2 times as long, three more than COMPANY
    assert COMPANY == 1.25


def test_nothing_is_begun_that_would_make_somebody_late():
    job, stream = waiter(PAINT, pace=Pace(is_batch=True)), waiter(STEP, left=2.0)
    known = costs(paint=0.8)
    # The painting takes 0.8 s, and the stream has 1.75 s: that is near, so the stream goes on first.
    assert chosen({PAINT: [job], STEP: [stream]}, known=known)[0] == STEP
    job, stream = waiter(PAINT, pace=Pace(is_batch=True), since=-1.0), waiter(STEP, left=9.0)
    assert chosen({PAINT: [job], STEP: [stream]}, known=known)[0] == PAINT


def test_jobs_get_what_those_leave_who_wait_for_words():
    job, chat = waiter(PAINT, pace=Pace(is_batch=True)), waiter(PAINT)
    step = waiter(STEP, pace=Pace(is_batch=True), since=-1.0)
    assert chosen({STEP: [step], PAINT: [job, chat]})[0] == PAINT
    assert chosen({STEP: [step], PAINT: [job]})[0] == STEP


def test_jobs_are_not_starved_by_newcomers():
    job = waiter(PAINT, pace=Pace(is_batch=True), since=-STARVED - 0.1)
    able = {PAINT: [job], STEP: [waiter(STEP, first_in=10.0)]}
    assert chosen(able)[0] == PAINT
    able[STEP] = [waiter(STEP, left=0.1)]  # but this one would run dry
    assert chosen(able)[0] == STEP


@pytest.mark.parametrize("first_in", [0.05, 3.0])
def test_an_emission_leaves_a_little_early(first_in):
    one = waiter(CODEC, first_in=first_in)
    one.look(0.0, costs())
    assert one.slack == pytest.approx(first_in - 0.1 - MARGIN)
    assert one.is_fresh


def test_text_without_a_reader_has_no_clock():
    one = waiter(PAINT)
    one.look(0.0, costs())
    assert one.slack == float("inf")
