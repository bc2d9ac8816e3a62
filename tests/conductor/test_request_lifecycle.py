"""Request lifecycle: routes and their walks, client input, retries, poison requests, timeouts."""

from dataclasses import replace

import pytest

from mstar.wire import messages as m
from mstar.wire.frame import UnreadableValue
from mstar.wire.slo import DEFAULT_TTFT_S, Slo
from tests.conductor.deployment import FRONTEND, LIMITS, Deployment

A, A1, B = m.Peer("a", 0), m.Peer("a", 1), m.Peer("b", 0)


def deploy(model, *, limits=LIMITS):
    """A model on workers a and b; only a is up."""
    place = {"lm": ["a", "b"]}
    if model in ("reach", "chat"):
        place |= {{"reach": "arm", "chat": "voice"}[model]: ["a", "b"]}
    deployment = Deployment({model: place}, limits)
    deployment.worker_up("a")
    deployment.sent.clear()
    return deployment


def value(content):
    return {0: m.ValueInput(m.Value(content))}


def seat_done(deployment, rid):
    request = deployment.requests[rid]
    return m.SeatDone(rid, request.attempt, request.walk_run.number, 0, {}, {}, {})


def start_of(deployment):
    (start,) = deployment.sent_of_kind(m.StartWalk)
    return start


def end_of(deployment):
    (end,) = deployment.sent_of_kind(m.RequestFinished)
    return end


# ---------------------------------------------------------------- route
def test_a_request_runs_its_walks_in_order_and_returns_the_result():
    deployment = deploy("reach")
    deployment.submit("r")
    assert start_of(deployment).walk_name == "think"
    deployment.finish_walk("r", value(5))
    start = start_of(deployment)
    assert (start.walk_name, start.walk_index, start.emitted_counts) == ("act", 1, {"Text": 3})
    deployment.finish_walk("r")
    end = end_of(deployment)
    assert (end.status, end.result.content, end.totals) == ("ok", 5, {"Text": 6})
    assert deployment.sent_of_kind(m.ReleaseAttempt) == [m.ReleaseAttempt("r", 0, keep_states=False, can_wait=True)]


def test_a_state_stays_on_its_worker_and_its_old_version_is_freed():
    deployment = deploy("story")
    deployment.submit("r")
    deployment.finish_walk("r", value(7))
    new = [start.inputs for start in deployment.sent_of_kind(m.StartWalk)][-1]
    assert m.NewState("lm", "DigestState") in new.values()
    deployment.worker_up("b")
    deployment.finish_walk("r", value(1), states={1: 4})
    (fork,) = deployment.sent_of_kind(m.ForkState)
    assert fork.state == 4
    start = start_of(deployment)
    assert start.seats == (A,), "b is idle, but the state is on a"
    assert m.LocalState(4) in start.inputs.values()
    deployment.finish_walk("r", value(3), states={2: 5})
    assert m.FreeStates("r", 0, (4,)) in deployment.sent_of_kind(m.FreeStates)


def test_a_state_that_the_route_dropped_is_freed_before_the_next_walk():
    deployment = deploy("story")
    deployment.submit("r")
    deployment.finish_walk("r", value(7))
    deployment.finish_walk("r", value(1), states={1: 4})
    fork_of_memory = deployment.sent_of_kind(m.ForkState)[0].new_state
    deployment.finish_walk("r", value(2), states={2: 5})  # two times: write on a fork of the fork, and compare
    first_fork = deployment.sent_of_kind(m.ForkState)[0].new_state
    deployment.finish_walk("r", value(3), states={2: 6})
    deployment.finish_walk("r", value(4), states={0: 7, 1: 8})
    assert deployment.sent_of_kind(m.ForkState)[0].state == fork_of_memory
    deployment.sent_of_kind(m.FreeStates)
    deployment.finish_walk("r", value(5), states={2: 9})
    freed = [number for order in deployment.sent_of_kind(m.FreeStates) for number in order.states]
    assert first_fork not in freed, "its later versions replaced it"
    assert 8 in freed
    assert fork_of_memory not in freed


def test_a_worker_learns_where_its_state_moves_next_and_the_next_walk_goes_there():
    deployment = Deployment({"story": {"lm": "a", "lm.tell": ["b", "c"]}}).start_all()
    deployment.sent.clear()
    for rid in ("r", "s"):
        deployment.submit(rid)
        deployment.finish_walk(rid, value(7))
    starts = {start.rid: start for start in deployment.sent_of_kind(m.StartWalk) if start.walk_name == "begin"}
    assert [start.seats for start in starts.values()] == [(A,), (A,)]
    assert [start.next_workers for start in starts.values()] == [{1: B}, {1: B}]
    deployment.finish_walk("r", value(1), states={1: 4})
    assert start_of(deployment).seats == (B,)
    deployment.finish_walk("s", value(1), states={1: 5})
    assert start_of(deployment).seats == (B,), "c has fewer walks, but b was sent parts of the state"
    assert [(order.to, order.state) for order in deployment.sent_of_kind(m.SendState)] == [(B, 4), (B, 5)]


def test_a_state_that_was_sent_to_a_lost_worker_moves_to_another_one():
    deployment = Deployment({"story": {"lm": "a", "lm.tell": ["b", "c"]}}).start_all()
    deployment.submit("r")
    deployment.finish_walk("r", value(7))
    deployment.exit_process(B)
    deployment.sent.clear()
    deployment.finish_walk("r", value(1), states={1: 4})
    assert start_of(deployment).seats == (m.Peer("c", 0),)


def test_a_state_that_was_sent_to_an_unresponsive_worker_moves_to_another_one():
    deployment = Deployment({"story": {"lm": "a", "lm.tell": ["b", "c"]}}).start_all()
    deployment.submit("r")
    deployment.finish_walk("r", value(7))
    deployment.core.membership.set_responsive(deployment.workers["b"], is_responsive=False)
    deployment.sent.clear()
    deployment.finish_walk("r", value(1), states={1: 4})
    assert start_of(deployment).seats == (m.Peer("c", 0),)


def test_a_walk_ends_when_its_seats_are_done_in_any_order():
    deployment = Deployment({"sing": {"lm": "a", "voice": "b"}})
    deployment.worker_up("a")
    deployment.worker_up("b")
    deployment.submit("r")
    run = deployment.requests["r"].walk_run
    assert run.seats == (A, B)
    for seat in (1, 0):
        assert deployment.sent_of_kind(m.RequestFinished) == []
        deployment.deliver(run.seats[seat], m.SeatDone("r", 0, run.number, seat, {}, {}, {}))
    assert end_of(deployment).status == "ok"


def test_emissions_of_a_worker_with_two_seats_count_once():
    deployment = Deployment({"sing": {"lm": "a", "voice": ["a", "b"]}})
    deployment.worker_up("a")
    deployment.submit("r")
    assert deployment.requests["r"].walk_run.seats == (A, A)
    deployment.finish_walk("r")
    assert end_of(deployment).totals == {"Text": 3}


def test_a_failure_on_a_worker_fails_the_request():
    deployment = deploy("talk")
    deployment.submit("r")
    deployment.deliver(A, m.AttemptFailed("r", 0, "TrapError", "it failed"))
    end = end_of(deployment)
    assert (end.status, end.error_type, end.error_message) == ("failed", "TrapError", "it failed")


def test_an_unreadable_request_fails():
    deployment = deploy("talk")
    deployment.deliver(FRONTEND, m.Submit("r", "talk", m.Value(UnreadableValue("bad frame"))))
    assert (end_of(deployment).error_type, deployment.requests) == ("Unreadable", {})


def test_a_cancelled_request_is_released():
    deployment = deploy("talk")
    deployment.submit("r")
    deployment.deliver(FRONTEND, m.Cancel("r"))
    assert end_of(deployment).status == "cancelled"
    assert deployment.workers["a"].running_walks == 0


def test_an_exception_in_the_route_fails_the_request():
    deployment = deploy("story")
    deployment.submit("r")
    deployment.finish_walk("r", value("not a number"))
    deployment.finish_walk("r", value(1), states={1: 4})
    end = end_of(deployment)
    assert (end.status, end.error_type) == ("failed", "TypeError")


# ---------------------------------------------------------------- stale messages
def test_reports_of_earlier_attempts_are_ignored():
    deployment = deploy("talk")
    deployment.worker_up("b")
    deployment.submit("r")
    old = seat_done(deployment, "r")
    deployment.deliver(A, m.RetryNeeded("r", 0, "a value could not be read"))
    deployment.deliver(A, old)
    assert deployment.core.walk_reports.stale_messages == 1
    assert deployment.requests["r"].attempt == 1


def test_a_report_of_a_worker_without_a_seat_is_ignored():
    deployment = deploy("talk")
    deployment.worker_up("b")
    deployment.submit("r")
    deployment.deliver(B, seat_done(deployment, "r"))
    assert deployment.core.walk_reports.stale_messages == 1


# ---------------------------------------------------------------- retry
def test_a_pure_walk_is_replayed_from_the_record():
    deployment = deploy("story")
    deployment.submit("r")
    assert start_of(deployment).walk_name == "theme"
    deployment.finish_walk("r", value(7))
    assert start_of(deployment).walk_name == "begin"
    deployment.exit_process(A)
    deployment.worker_up("b")
    start = start_of(deployment)
    assert (start.walk_name, start.walk_index, start.attempt, start.seats) == ("begin", 1, 1, (B,))


def test_a_walk_that_changed_a_lost_state_runs_again():
    deployment = deploy("story")
    deployment.submit("r")
    deployment.finish_walk("r", value(7))
    deployment.finish_walk("r", value(1), states={1: 4})
    assert [start.walk_name for start in deployment.sent_of_kind(m.StartWalk)] == ["theme", "begin", "write"]
    deployment.exit_process(A)
    deployment.worker_up("b")
    assert start_of(deployment).walk_name == "begin"


def test_only_the_running_walk_restarts_while_all_states_are_alive():
    deployment = deploy("story")
    deployment.submit("r")
    deployment.finish_walk("r", value(7))
    deployment.finish_walk("r", value(1), states={1: 4})
    deployment.sent.clear()
    deployment.deliver(A, m.RetryNeeded("r", 0, "a value could not be read"))
    assert deployment.sent_of_kind(m.ReleaseAttempt) == [m.ReleaseAttempt("r", 0, True)]
    start = start_of(deployment)
    assert (start.walk_name, start.attempt) == ("write", 1)


def test_a_client_that_misses_output_gets_everything_again():
    deployment = deploy("story")
    deployment.submit("r")
    deployment.finish_walk("r", value(7))
    deployment.sent.clear()
    deployment.submit("r", last_seen_attempt=0)
    start = start_of(deployment)
    assert (start.walk_name, start.walk_index) == ("theme", 0)


def test_a_non_idempotent_walk_is_not_retried():
    deployment = deploy("reach")
    deployment.submit("r")
    deployment.finish_walk("r", value(5))
    deployment.exit_process(A)
    end = end_of(deployment)
    assert (end.status, end.error_message) == ("not_retryable", "a worker was lost, and walk `act` is not idempotent")


def test_a_non_idempotent_walk_does_not_start_under_a_new_conductor():
    deployment = deploy("reach")
    deployment.submit("r", last_seen_attempt=0)
    deployment.finish_walk("r", value(5))
    assert end_of(deployment).status == "not_retryable"


def test_retries_are_limited():
    deployment = deploy("talk", limits=replace(LIMITS, max_retries=2))
    deployment.submit("r")
    for attempt in range(3):
        deployment.deliver(A, m.RetryNeeded("r", attempt, "bad frame"))
    end = end_of(deployment)
    assert end.status == "unavailable"
    assert end.error_message.startswith("failed after 2 retries (max_retries); last reason: bad frame\n  fix: ")


# ---------------------------------------------------------------- poison
def die_with(deployment, peer, *rids, calls=3, cause=m.ExitCause.CRASH):
    suspects = [m.Suspect(rid, deployment.requests[rid].attempt, calls) for rid in rids]
    deployment.exit_process(peer, suspects=suspects, cause=cause)


def test_a_suspect_runs_in_isolation_around_the_call_that_killed_a_worker():
    deployment = deploy("talk")
    deployment.submit("r")
    assert start_of(deployment).isolate_at_call == 0
    die_with(deployment, A, "r")
    deployment.worker_up("a", 1)
    assert start_of(deployment).isolate_at_call == 5


def test_isolation_ends_with_the_walk_that_killed_a_worker():
    deployment = deploy("reach")
    deployment.submit("r")
    die_with(deployment, A, "r")
    deployment.worker_up("a", 1)
    assert [start.isolate_at_call for start in deployment.sent_of_kind(m.StartWalk)] == [0, 5]
    deployment.finish_walk("r", value(5))
    start = start_of(deployment)
    assert (start.walk_name, start.isolate_at_call) == ("act", 0)


def test_a_request_that_kills_two_workers_at_the_same_call_alone_is_poison():
    deployment = deploy("talk")
    deployment.submit("r")
    deployment.submit("s")
    die_with(deployment, A, "r", "s")
    deployment.worker_up("a", 1)
    die_with(deployment, A1, "r", calls=4)
    assert (end_of(deployment).status, deployment.requests.keys()) == ("poison", {"s"})


def test_a_request_whose_worker_is_killed_from_outside_again_and_again_is_not_poison():
    deployment = deploy("talk")
    deployment.submit("r")
    for incarnation in range(10):
        die_with(deployment, m.Peer("a", incarnation), "r", cause=m.ExitCause.EXTERNAL)
        deployment.worker_up("a", incarnation + 1)
    assert deployment.sent_of_kind(m.RequestFinished) == []
    starts = deployment.sent_of_kind(m.StartWalk)
    assert {start.isolate_at_call for start in starts} == {0}, "it runs in batches as before"


def test_a_worker_that_was_killed_without_progress_accuses_its_requests():
    deployment = deploy("talk")
    deployment.submit("r")
    for incarnation in range(2):
        peer = m.Peer("a", incarnation)
        deployment.core.membership.kill(deployment.now, peer, "its batch has run for 121 s")
        die_with(deployment, peer, "r")
        deployment.worker_up("a", incarnation + 1)
    assert end_of(deployment).status == "poison"


def test_deaths_at_different_calls_are_not_poison():
    deployment = deploy("talk")
    deployment.submit("r")
    die_with(deployment, A, "r", calls=3)
    deployment.worker_up("a", 1)
    die_with(deployment, A1, "r", calls=9)
    assert deployment.sent_of_kind(m.RequestFinished) == []


# ---------------------------------------------------------------- client input
def reach_answer(deployment):
    """Start a chat and its interruptible walk."""
    deployment.submit("r")
    deployment.finish_walk("r", value(1), states={2: 4})
    starts = deployment.sent_of_kind(m.StartWalk)
    assert [start.walk_name for start in starts] == ["listen", "answer"]


def client_input(index, content, **received):
    return m.ClientInput("r", index, m.Value(content), received)


def test_input_interrupts_a_walk_and_keeps_what_the_client_received():
    deployment = deploy("chat")
    reach_answer(deployment)
    deployment.sent.clear()
    deployment.deliver(FRONTEND, client_input(0, 9, Text=5))
    assert deployment.sent_of_kind(m.ReleaseAttempt) == [m.ReleaseAttempt("r", 0, True)]
    (accepted,) = deployment.sent_of_kind(m.InputAccepted)
    assert (accepted.index, accepted.walk_index, accepted.attempt, accepted.totals) == (0, 1, 1, {"Text": 5})
    assert start_of(deployment).walk_name == "listen"


def test_a_duplicate_input_is_ignored():
    deployment = deploy("chat")
    reach_answer(deployment)
    for _ in range(2):
        deployment.deliver(FRONTEND, client_input(0, 9))
    assert len(deployment.sent_of_kind(m.InputAccepted)) == 1


def test_a_route_waits_for_input_and_ends_with_the_inputs():
    deployment = deploy("chat")
    reach_answer(deployment)
    deployment.finish_walk("r", value(2), states={2: 5})
    (turn,) = deployment.sent_of_kind(m.TurnFinished)
    assert (turn.inputs_consumed, deployment.requests["r"].is_awaiting_input) == (0, True)
    deployment.deliver(FRONTEND, client_input(0, None))
    assert end_of(deployment).result.content == 1


def test_shutdown_ends_a_route_that_waits_for_input():
    deployment = deploy("chat")
    reach_answer(deployment)
    deployment.finish_walk("r", value(2), states={2: 5})
    deployment.deliver(m.Peer("launcher", 0), m.Drain())
    assert end_of(deployment).status == "ok"


def test_inputs_of_a_resubmitted_request_are_replayed():
    deployment = deploy("chat")
    inputs = (m.ClientInput("r", 0, m.Value(9), {"Text": 2}, walk_index=1),)
    deployment.submit("r", last_seen_attempt=0, inputs=inputs)
    deployment.finish_walk("r", value(1), states={2: 4})
    assert [start.walk_name for start in deployment.sent_of_kind(m.StartWalk)] == ["listen", "listen"], (
        "answer is skipped"
    )


# ---------------------------------------------------------------- timeouts
def test_a_request_ends_at_its_deadline():
    deployment = deploy("talk")
    deployment.submit("r", timeout_s=2.0)
    deployment.tick(1.9)
    assert deployment.requests.keys() == {"r"}
    deployment.tick(0.2)
    end = end_of(deployment)
    assert (end.status, end.error_message) == ("deadline", "the request took longer than its timeout of 2 s")


@pytest.mark.parametrize(
    ("has_fixed_workers", "wait_s"),
    [pytest.param(False, 30, id="restarted by the launcher"), pytest.param(True, 3, id="not restarted")],
)
def test_a_walk_without_a_worker_fails_after_a_while(has_fixed_workers, wait_s):
    deployment = deploy("talk", limits=replace(LIMITS, worker_wait_s=3.0, has_fixed_workers=has_fixed_workers))
    deployment.exit_process(A)
    deployment.submit("r")
    deployment.tick(wait_s - 0.1)
    assert deployment.requests.keys() == {"r"}
    deployment.tick(0.2)
    end = end_of(deployment)
    assert (end.status, end.error_message) == ("unavailable", f"no worker became available within {wait_s} s")


def test_input_restarts_the_time_to_first_output():
    deployment = deploy("chat")
    deployment.submit("r")
    deployment.now = 4.0
    deployment.deliver(FRONTEND, client_input(0, 9))
    assert deployment.requests["r"].last_input_at == 4.0


def test_time_in_the_queue_counts_in_the_deadline_of_the_first_output():
    deployment = deploy("talk", limits=replace(LIMITS, max_running_requests=1))
    deployment.submit("first")
    deployment.submit("second", slo=Slo(ttft_s=2.0))
    (start,) = deployment.sent_of_kind(m.StartWalk)
    assert (start.rid, start.first_due_in_s) == ("first", DEFAULT_TTFT_S)
    deployment.now += 1.5
    deployment.finish_walk("first")
    deployment.deliver(A, m.AttemptReleased("first", start.attempt))
    (start,) = deployment.sent_of_kind(m.StartWalk)
    assert (start.rid, start.first_due_in_s) == ("second", pytest.approx(0.5))


def test_time_in_the_queue_counts_in_the_timeout():
    deployment = deploy("talk", limits=replace(LIMITS, max_running_requests=1))
    deployment.submit("first")
    deployment.submit("queued", timeout_s=2.0)
    deployment.submit("started", timeout_s=3.0)
    (start,) = deployment.sent_of_kind(m.StartWalk)
    deployment.tick(1.9)
    assert deployment.requests.keys() == {"first", "queued", "started"}
    deployment.tick(0.2)
    assert (end := end_of(deployment)).rid == "queued"
    assert end.status == "deadline"
    deployment.finish_walk("first")
    deployment.deliver(A, m.AttemptReleased("first", start.attempt))
    assert start_of(deployment).rid == "started"
    end_of(deployment)
    deployment.tick(0.8)
    assert deployment.requests.keys() == {"started"}
    deployment.tick(0.2)
    assert (end := end_of(deployment)).rid == "started"
    assert end.status == "deadline"


def test_the_next_walk_starts_with_the_remaining_audio_of_the_client():
    deployment = deploy("story")
    deployment.submit("r")
    request, start = deployment.requests["r"], start_of(deployment)
    assert start.due_in_s == {}
    deployment.now += 1.0
    done = m.SeatDone("r", request.attempt, 0, 0, value(7), {}, {"Audio": 1}, {"Audio": 0.75, "Text": -0.5})
    deployment.deliver(A, done)
    start = start_of(deployment)
    assert start.due_in_s == {"Audio": pytest.approx(0.75), "Text": pytest.approx(-0.5)}
    assert start.first_due_in_s == pytest.approx(DEFAULT_TTFT_S - 1.0)
