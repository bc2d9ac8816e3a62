"""Least-slack-first policy, on calls with known costs and deadlines."""

from types import SimpleNamespace as Thing

import pytest

from mstar.plan.tables import Call, PathToOutput
from mstar.wire.messages import Peer, StartWalk
from mstar.wire.slo import PlaybackClock, Slo
from mstar.worker.requests import WalkRun, WorkerRequest
from mstar.worker.scheduling.cost_model import CostModel
from mstar.worker.scheduling.fair_share import FairShare
from mstar.worker.scheduling.policy import LeastSlackFirst
from mstar.worker.scheduling.ready_call import ReadyCall
from mstar.worker.scheduling.tuning import DEFAULT_TUNING

STEP, CODEC, PAINT = ("m", 0), ("m", 1), ("m", 2)
PATHS = {
    STEP: (PathToOutput("Audio", ((1, 1),)),),  # a codec call between the step and the audio
    CODEC: (PathToOutput("Audio", ()),),
    PAINT: (PathToOutput("Image", ()),),
}
NUMBERS = iter(range(10_000))


def costs(step=0.1, codec=0.1, paint=0.5, slope=0.0):
    """Cost model of batches of 1 to 8 calls; each further call costs `slope` of the first."""
    model = CostModel()
    for key, seconds in ((STEP, step), (CODEC, codec), (PAINT, paint)):
        for size in range(1, 9):
            model.learn(key, size, seconds * (1 + slope * (size - 1)))
        model._typical_s[key] = seconds
    return model


def ready_call(key, *, left=None, first_in=1.0, since=0.0, slo=None, name=""):
    """A call of a request whose client has `left` seconds to play; None if it has received nothing."""
    slo = slo or Slo()
    start = StartWalk(name, 0, 0, "m", "w", (), {}, {}, Peer("f", 0), slo=slo, first_due_in_s=first_in)
    walk_run = WalkRun(None, WorkerRequest(name, 0, None), start, None, next(NUMBERS))
    walk_run.start_playback_clocks(0.0)
    if left is not None:
        walk_run.playback_clocks["Audio"] = PlaybackClock(left, is_started=True)
    instruction = Thing(detail=Call(key[1], (), (), PATHS[key]))
    return ReadyCall(walk_run, Thing(instruction=None, parent=None), instruction, since)


def choose_next(runnable, *, now=0.0, known=None, most=8):
    key, batch = LeastSlackFirst(FairShare()).choose(now, runnable, known or costs(), lambda _: most)
    return key, batch


def test_the_least_slack_goes_first():
    soon, later = ready_call(CODEC, left=0.3), ready_call(STEP, left=5.0)
    assert choose_next({STEP: [later], CODEC: [soon]}) == (CODEC, [soon])


def test_the_critical_path_counts():
    near, far = (
        ready_call(CODEC, left=0.45),
        ready_call(STEP, left=0.5),
    )  # a step and a codec call are needed for this one
    key, _ = choose_next({CODEC: [near], STEP: [far]}, known=costs(step=0.2, codec=0.15))
    assert key == STEP


def test_among_overdue_calls_the_shortest_goes_first():
    far, near = ready_call(STEP, left=-1.0), ready_call(CODEC, left=-0.1)
    assert choose_next({STEP: [far], CODEC: [near]}) == (CODEC, [near])


def test_if_many_are_overdue_the_oldest_goes_first():
    old, new = [ready_call(STEP, left=-1.0) for _ in range(3)], ready_call(CODEC, left=-0.1)
    assert choose_next({STEP: old[::-1], CODEC: [new]}, known=costs(step=0.1, codec=0.3), most=1) == (STEP, [old[0]])
    calm = [ready_call(STEP, left=60.0) for _ in range(20)]
    assert choose_next({STEP: [*old, *calm], CODEC: [new]}, known=costs(step=0.1, codec=0.05))[0] == CODEC


def test_a_negligible_call_goes_first():
    late, check = ready_call(CODEC, left=-0.1), ready_call(PAINT, left=30.0)
    assert choose_next({CODEC: [late], PAINT: [check]}, known=costs(paint=0.001)) == (PAINT, [check])
    assert choose_next({CODEC: [late], PAINT: [check]}, known=costs(paint=0.05)) == (CODEC, [late])


def test_a_negligible_call_waits_if_it_unblocks_nothing():
    late, check = ready_call(CODEC, left=-0.1), ready_call(PAINT, left=30.0)
    check.walk_run = late.walk_run
    assert choose_next({CODEC: [late], PAINT: [check]}, known=costs(paint=0.001)) == (CODEC, [late])


def test_unstarted_requests_batch_before_they_continue():
    ahead, behind = ready_call(CODEC, first_in=10.0), ready_call(STEP, first_in=10.0)
    assert choose_next({CODEC: [ahead], STEP: [behind]}, known=costs(step=0.01, codec=0.01))[0] == STEP
    assert choose_next({CODEC: [ahead], STEP: [behind]}, known=costs(step=0.06, codec=0.01))[0] == CODEC, (
        "it takes long"
    )
    apart = costs(step=0.01, codec=0.01, slope=1.0)
    for size in (1, 2) * 20:
        apart.learn(STEP, size, 0.01 * size)
    assert choose_next({CODEC: [ahead], STEP: [behind]}, known=apart)[0] == CODEC, "batching saves nothing"


def test_an_unstarted_request_goes_before_those_with_slack():
    newcomer, ahead = ready_call(STEP, first_in=10.0), ready_call(CODEC, left=20.0)
    assert choose_next({CODEC: [ahead], STEP: [newcomer]}) == (STEP, [newcomer])


def test_others_join_the_batch_if_no_deadline_is_missed():
    hurried, calm = ready_call(STEP, first_in=10.0), [ready_call(STEP, left=20.0 + n) for n in range(7)]
    assert len(choose_next({STEP: [*calm, hurried]})[1]) == 8  # they add no cost
    key, batch = choose_next({STEP: [*calm, hurried]}, known=costs(slope=1.0))
    assert batch[0] is hurried
    assert key == STEP
    assert len(batch) == 8  # its deadline is far away


def test_others_do_not_join_if_a_deadline_would_be_missed():
    late, calm = ready_call(STEP, left=-0.1), [ready_call(STEP, left=20.0 + n) for n in range(7)]
    _, batch = choose_next({STEP: [*calm, late]}, known=costs(slope=0.1))
    assert batch == [late, *calm[:2]]  # two of them make the batch 1.2 times as long, three exceed the growth factor
    assert DEFAULT_TUNING.urgent_batch_growth_factor == 1.25


def test_no_batch_starts_that_would_miss_a_deadline():
    job, stream = ready_call(PAINT, slo=Slo(best_effort=True)), ready_call(STEP, left=2.0)
    known = costs(paint=0.8)
    # The image takes 0.8 s, and the stream has 1.75 s of slack, which is urgent: the stream runs first.
    assert choose_next({PAINT: [job], STEP: [stream]}, known=known)[0] == STEP
    job, stream = ready_call(PAINT, slo=Slo(best_effort=True), since=-1.0), ready_call(STEP, left=9.0)
    assert choose_next({PAINT: [job], STEP: [stream]}, known=known)[0] == PAINT


def test_best_effort_requests_get_the_remaining_time():
    job, chat = ready_call(PAINT, slo=Slo(best_effort=True)), ready_call(PAINT)
    step = ready_call(STEP, slo=Slo(best_effort=True), since=-1.0)
    assert choose_next({STEP: [step], PAINT: [job, chat]})[0] == PAINT
    assert choose_next({STEP: [step], PAINT: [job]})[0] == STEP


def test_best_effort_requests_are_not_starved_by_new_requests():
    job = ready_call(PAINT, slo=Slo(best_effort=True), since=-DEFAULT_TUNING.starvation_s - 0.1)
    runnable = {PAINT: [job], STEP: [ready_call(STEP, first_in=10.0)]}
    assert choose_next(runnable)[0] == PAINT
    runnable[STEP] = [ready_call(STEP, left=0.1)]  # but this stream is about to run out
    assert choose_next(runnable)[0] == STEP


@pytest.mark.parametrize("first_in", [0.05, 3.0])
def test_an_emission_is_due_with_a_margin(first_in):
    call = ready_call(CODEC, first_in=first_in)
    call.update_slack(0.0, costs())
    assert call.slack == pytest.approx(first_in - 0.1 - DEFAULT_TUNING.delivery_margin_s)
    assert call.is_unstarted


def test_text_without_a_reader_has_no_clock():
    call = ready_call(PAINT)
    call.update_slack(0.0, costs())
    assert call.slack == float("inf")
