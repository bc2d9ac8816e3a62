"""FrontendCore, driven with events: exactly-once delivery across attempts, fencing, credits, disconnects, restarts."""

import pytest

from bench.cost.ticks import count_bytecodes
from mstar.frontend.core import (
    CHECK_INTERVAL_S,
    CREDIT_INTERVAL,
    DEADLINE_GRACE_S,
    MAX_UNREADABLE,
    AwaitingInput,
    ClientLeft,
    Deliver,
    FrontendCore,
    InputSent,
    MessageReceived,
    OutputsConsumed,
    RequestEnded,
    RequestOpened,
    SendMessage,
    Tick,
)
from mstar.walk.client_input import NEVER_INTERRUPTS
from mstar.wire import messages as m
from mstar.wire.active_clock import MAX_STEP_S
from mstar.wire.frame import UnreadableValue

FRONTEND = m.Peer("front", 0)
CONDUCTOR = m.Peer("conductor", 0)
WORKER = m.Peer("gpu0", 0)
OTHER_WORKER = m.Peer("gpu1", 0)
RID = "r"
TIMEOUT_S = 10.0


class Harness:
    """A core with one open request, and a clock that tests advance."""

    def __init__(self):
        self.core = FrontendCore(FRONTEND, {"chat": CONDUCTOR}, lambda value: repr(value).encode())
        self.now = 0.0
        self.opened = self.step(RequestOpened(m.Submit(RID, "chat", m.Value("hi"), timeout_s=TIMEOUT_S)))

    def step(self, event):
        return self.core.step(self.now, event)

    def receive(self, message, sender=CONDUCTOR):
        return self.step(MessageReceived(sender, message))

    def emit(self, index, value=None, attempt=1, kind="Text", sender=WORKER):
        content = f"{kind}{index}" if value is None else value
        return self.receive(m.Emit(RID, attempt, kind, index, m.Value(content)), sender)

    def finish(self, status="ok", **totals):
        return self.receive(m.RequestFinished(RID, status, totals, m.Value("result")))

    def tick(self, seconds=CHECK_INTERVAL_S):
        """Let time pass in ticks; a jump would be a pause of the front end. Returns the actions of all of them."""
        until, actions = self.now + seconds, []
        while self.now < until:
            self.now = min(until, self.now + MAX_STEP_S)
            actions += self.step(Tick())
        return actions


@pytest.fixture
def harness():
    return Harness()


def deliveries(actions):
    """Kind, index and value of each delivery."""
    return [(action.kind, action.index, action.value) for action in actions if isinstance(action, Deliver)]


def sent(actions, kind):
    """Messages of one type, with their receivers."""
    sends = [action for action in actions if isinstance(action, SendMessage)]
    return [(send.to, send.message) for send in sends if isinstance(send.message, kind)]


def ends(actions):
    return [action.end for action in actions if isinstance(action, RequestEnded)]


# ---------------------------------------------------------------- in order
def test_a_request_is_submitted_to_the_conductor_of_its_model(harness):
    ((to, submit),) = sent(harness.opened, m.Submit)
    assert (to, submit.rid, submit.last_seen_attempt) == (CONDUCTOR, RID, -1)


def test_emissions_are_delivered_in_index_order(harness):
    assert deliveries(harness.emit(1)) == []
    assert harness.core.stats()["out_of_order"] == 1
    assert deliveries(harness.emit(0)) == [("Text", 0, "Text0"), ("Text", 1, "Text1")]
    assert harness.core.stats()["out_of_order"] == 0


def test_kinds_have_independent_indices(harness):
    assert deliveries(harness.emit(0, kind="Audio")) == [("Audio", 0, "Audio0")]
    assert deliveries(harness.emit(0)) == [("Text", 0, "Text0")]


def test_a_delivery_carries_the_clock_of_its_emission(harness):
    clock = (("rate", 24_000),)
    actions = harness.receive(m.Emit(RID, 1, "Audio", 0, m.Value("sound"), clock), WORKER)
    assert actions == [Deliver(RID, "Audio", 0, "sound", clock)]


def test_the_end_waits_for_missing_emissions(harness):
    harness.emit(0)
    assert ends(harness.finish(Text=2)) == []
    actions = harness.emit(1)
    assert deliveries(actions) == [("Text", 1, "Text1")]
    (end,) = ends(actions)
    assert (end.status, end.result.content) == ("ok", "result")
    assert harness.core.stats() == {"streams": 0, "out_of_order": 0}


def test_a_failure_does_not_wait_for_missing_emissions(harness):
    (end,) = ends(harness.finish("failed", Text=5))
    assert end.status == "failed"


# ---------------------------------------------------------------- exactly once, across attempts
def test_a_later_attempt_repeats_nothing(harness):
    harness.emit(0)
    harness.emit(1)
    assert deliveries(harness.emit(0, attempt=2, sender=OTHER_WORKER)) == []
    assert deliveries(harness.emit(1, attempt=2, sender=OTHER_WORKER)) == []
    assert deliveries(harness.emit(2, attempt=2, sender=OTHER_WORKER)) == [("Text", 2, "Text2")]


def test_a_duplicate_of_the_same_attempt_is_dropped(harness):
    harness.emit(0)
    assert deliveries(harness.emit(0)) == []


def test_a_later_attempt_with_other_values_fails_the_request(harness):
    harness.emit(0)
    actions = harness.emit(0, "other", attempt=2)
    (end,) = ends(actions)
    assert (end.status, end.error_type) == ("failed", "Diverged")
    assert sent(actions, m.Cancel) == [(CONDUCTOR, m.Cancel(RID))]


def test_nothing_is_delivered_after_a_difference(harness):
    harness.emit(0)
    harness.emit(1)
    harness.emit(3, "waits", attempt=2)  # from another worker, before what it follows
    actions = harness.emit(0, "other", attempt=2)
    for index in (1, 2, 3):
        actions += harness.emit(index, "other", attempt=2)
    actions += harness.emit(2)
    actions += harness.finish(Text=4)
    assert deliveries(actions) == []
    assert [(end.status, end.error_type) for end in ends(actions)] == [("failed", "Diverged")]
    assert harness.core.stats() == {"streams": 0, "out_of_order": 0}


@pytest.mark.parametrize("differs_at", range(4))
def test_a_difference_at_any_place_fails_the_request(differs_at):
    harness = Harness()
    delivered = [delivery for index in range(4) for delivery in deliveries(harness.emit(index))]
    actions = []
    for index in range(6):
        value = f"Text{index}" if index < differs_at else "other"
        actions += harness.emit(index, value, attempt=2, sender=OTHER_WORKER)
    assert delivered == [("Text", index, f"Text{index}") for index in range(4)]
    assert deliveries(actions) == []
    assert [end.error_type for end in ends(actions)] == ["Diverged"]


def test_kinds_are_compared_separately(harness):
    harness.emit(0)
    harness.emit(0, kind="Audio")
    assert ends(harness.emit(0, attempt=2)) == []
    (end,) = ends(harness.emit(0, "other", attempt=2, kind="Audio"))
    assert end.error_type == "Diverged"


def test_a_retry_that_computes_fewer_outputs_fails_the_request(harness):
    for index in range(3):
        harness.emit(index)
    harness.emit(0, attempt=2)
    harness.emit(1, attempt=2)
    actions = harness.finish(Text=2)
    (end,) = ends(actions)
    assert (end.status, end.error_type) == ("failed", "Diverged")
    assert sent(actions, m.Cancel) == [(CONDUCTOR, m.Cancel(RID))]


def test_a_failure_with_surplus_emissions_stays_that_failure(harness):
    harness.emit(0)
    (end,) = ends(harness.finish("deadline"))
    assert end.status == "deadline"


def test_an_old_attempt_is_fenced_off_by_a_newer_one(harness):
    harness.emit(0)
    harness.emit(0, attempt=2)
    assert harness.emit(1, "stale") == []
    assert harness.core.stale_messages == 1
    assert deliveries(harness.emit(1, "fresh", attempt=2)) == [("Text", 1, "fresh")]


def test_a_newer_attempt_drops_waiting_emissions_of_an_old_one(harness):
    harness.emit(0)
    harness.emit(2, "stale")
    harness.emit(0, attempt=2)
    assert deliveries(harness.emit(1, attempt=2)) == [("Text", 1, "Text1")]
    assert deliveries(harness.emit(2, "fresh", attempt=2)) == [("Text", 2, "fresh")]


def test_every_interleaving_of_two_attempts_delivers_each_emission_once():
    count = 6
    for lost_after in range(1, count):
        harness = Harness()
        actions = [action for index in range(lost_after) for action in harness.emit(index)]
        for index in range(count):
            actions += harness.emit(index, attempt=2, sender=OTHER_WORKER)
            actions += harness.emit(index)  # the old worker is still sending
        actions += harness.finish(Text=count)
        assert deliveries(actions) == [("Text", index, f"Text{index}") for index in range(count)]
        assert [end.status for end in ends(actions)] == ["ok"]


def test_messages_for_an_unknown_request_are_dropped(harness):
    assert harness.receive(m.Emit("other", 1, "Text", 0, m.Value("x")), WORKER) == []
    assert harness.core.stale_messages == 1
    assert harness.receive(m.RequestFinished("other", "ok", {}, m.Value(None))) == []


# ---------------------------------------------------------------- multi-turn input and fences
def test_emissions_wait_until_an_interruption_is_accepted(harness):
    harness.emit(0)
    ((to, client_input),) = sent(harness.step(InputSent(RID, "stop")), m.ClientInput)
    assert (to, client_input.index, client_input.received_counts) == (CONDUCTOR, 0, {"Text": 1})
    assert harness.emit(1) == []
    assert harness.emit(2) == []
    accepted = harness.receive(m.InputAccepted(RID, 0, walk_index=1, attempt=2, totals={"Text": 2}))
    assert deliveries(accepted) == [("Text", 1, "Text1")]  # index 2 is beyond the fence
    assert harness.core.stale_messages == 1
    assert deliveries(harness.emit(2, "after", attempt=2)) == [("Text", 2, "after")]


def test_a_fence_holds_for_late_emissions_of_the_interrupted_attempt(harness):
    harness.step(InputSent(RID, "stop"))
    harness.receive(m.InputAccepted(RID, 0, walk_index=0, attempt=2, totals={}))
    assert harness.emit(0, "interrupted") == []
    assert deliveries(harness.emit(0, "valid", attempt=2)) == [("Text", 0, "valid")]


def test_a_turn_ends_once_all_its_emissions_are_delivered(harness):
    turn = m.TurnFinished(RID, 0, {"Text": 1}, m.Value("turn"))
    assert harness.receive(turn) == []
    assert harness.emit(0)[-1] == AwaitingInput(RID, 0, "turn")
    assert harness.receive(turn) == []  # a repeated message is idempotent


def test_input_at_the_end_of_a_turn_interrupts_nothing(harness):
    harness.receive(m.TurnFinished(RID, 0, {}, m.Value(None)))
    ((_, client_input),) = sent(harness.step(InputSent(RID, "more")), m.ClientInput)
    assert client_input.walk_index == NEVER_INTERRUPTS
    assert deliveries(harness.emit(0)) == [("Text", 0, "Text0")]  # not deferred


# ---------------------------------------------------------------- backpressure
def test_credit_is_sent_every_interval(harness):
    harness.emit(0)
    assert harness.step(OutputsConsumed(RID, "Text", CREDIT_INTERVAL - 1)) == []
    actions = harness.step(OutputsConsumed(RID, "Text", CREDIT_INTERVAL))
    assert sent(actions, m.Credit) == [(WORKER, m.Credit(RID, 1, "Text", CREDIT_INTERVAL))]
    assert harness.step(OutputsConsumed(RID, "Text", CREDIT_INTERVAL + 1)) == []


def test_no_credit_without_consumption(harness):
    actions = [action for index in range(3 * CREDIT_INTERVAL) for action in harness.emit(index)]
    assert sent(actions, m.Credit) == []


def test_a_new_worker_gets_the_credit_of_the_old_one(harness):
    harness.emit(0)
    harness.step(OutputsConsumed(RID, "Text", 1))  # below the interval: not sent yet
    actions = harness.emit(1, attempt=2, sender=OTHER_WORKER)
    assert sent(actions, m.Credit) == [(OTHER_WORKER, m.Credit(RID, 2, "Text", 1))]


def test_credit_goes_to_the_sender_of_the_newest_emission(harness):
    harness.emit(0)
    harness.emit(1, sender=OTHER_WORKER)
    harness.emit(0)  # a duplicate from the first worker changes nothing
    actions = harness.step(OutputsConsumed(RID, "Text", CREDIT_INTERVAL))
    assert [to for to, _ in sent(actions, m.Credit)] == [OTHER_WORKER]


# ---------------------------------------------------------------- disconnects, deadlines, rejections
def test_a_disconnect_cancels_the_request(harness):
    actions = harness.step(ClientLeft(RID))
    assert sent(actions, m.Cancel) == [(CONDUCTOR, m.Cancel(RID))]
    assert ends(actions) == []
    assert harness.core.stats()["streams"] == 0
    assert harness.emit(0) == []
    assert harness.step(ClientLeft(RID)) == []


def test_a_rejection_ends_the_request(harness):
    rejection = m.RequestRejected(RID, 429, "too many requests", 2.0)
    actions = harness.receive(rejection)
    assert actions == [RequestEnded(RID, rejection)]


def test_a_silent_conductor_ends_the_request_after_the_grace_period(harness):
    assert harness.tick(TIMEOUT_S + DEADLINE_GRACE_S) == []
    actions = harness.tick()
    assert sent(actions, m.Cancel) == [(CONDUCTOR, m.Cancel(RID))]
    assert [end.status for end in ends(actions)] == ["deadline"]


# ---------------------------------------------------------------- lost processes
def test_a_restarted_conductor_gets_the_request_again(harness):
    harness.emit(0, attempt=3)
    again = m.Peer("conductor", 1)
    actions = harness.receive(m.Register(), again)
    assert [to for to, _ in sent(actions, m.Register)] == [again]
    ((to, submit),) = sent(actions, m.Submit)
    assert (to, submit.rid, submit.last_seen_attempt) == (again, RID, 3)
    assert harness.core.conductors == {"chat": again}


def test_a_restarted_conductor_gets_the_request_once(harness):
    again = m.Peer("conductor", 1)
    harness.receive(m.Register(), again)
    assert harness.receive(m.Heartbeat(), again) == []


def test_the_end_of_a_resubmitted_request_is_cancelled_at_the_conductor(harness):
    harness.receive(m.Register(), m.Peer("conductor", 1))
    actions = harness.receive(m.RequestFinished(RID, "ok", {}, m.Value(None)), m.Peer("conductor", 1))
    assert len(sent(actions, m.Cancel)) == 1
    assert [end.status for end in ends(actions)] == ["ok"]


def test_a_lost_worker_causes_a_resubmission_only_if_an_emission_is_missing(harness):
    harness.receive(m.PeerDead(WORKER))
    assert harness.tick() == []
    harness.emit(1)  # index 0 was lost with the worker
    assert [submit.last_seen_attempt for _, submit in sent(harness.tick(), m.Submit)] == [1]
    assert harness.tick() == []  # once per lost process


def test_an_emission_that_was_late_and_not_lost_ends_a_resubmitted_request(harness):
    harness.receive(m.PeerDead(m.Peer("other", 0)))
    harness.emit(0)
    finished = m.RequestFinished(RID, "ok", {"Text": 2}, m.Value("result"))
    assert ends(harness.receive(finished)) == []
    assert len(sent(harness.tick(), m.Submit)) == 1
    actions = harness.emit(1)
    assert ends(actions) == [finished]
    assert len(sent(actions, m.Cancel)) == 1, "the new attempt is not needed"


def test_after_an_emission_of_a_later_attempt_the_earlier_end_does_not_count(harness):
    harness.receive(m.PeerDead(WORKER))
    harness.emit(0)
    harness.receive(m.RequestFinished(RID, "ok", {"Text": 2}, m.Value("first")))
    assert len(sent(harness.tick(), m.Submit)) == 1
    assert harness.emit(0, attempt=2) == []
    assert deliveries(harness.emit(1)) == [], "it is of the first attempt"
    assert ends(harness.emit(1, attempt=2)) == []
    second = m.RequestFinished(RID, "ok", {"Text": 2}, m.Value("second"))
    assert ends(harness.receive(second)) == [second]


def test_an_unreadable_emission_is_computed_again_a_limited_number_of_times(harness):
    unreadable = UnreadableValue("no such slot")
    for attempt in range(1, MAX_UNREADABLE + 1):
        actions = harness.emit(0, unreadable, attempt=attempt)
        assert len(sent(actions, m.Submit)) == 1
        assert deliveries(actions) == []
    (end,) = ends(harness.emit(0, unreadable, attempt=MAX_UNREADABLE + 1))
    assert (end.error_type, end.error_message) == ("Unreadable", "no such slot")


def test_a_readable_retry_after_an_unreadable_emission_is_delivered(harness):
    harness.emit(0, UnreadableValue("no such slot"))
    assert deliveries(harness.emit(0, "good", attempt=2)) == [("Text", 0, "good")]


def test_missing_emissions_are_requested_again_in_the_order_of_the_requests(harness):
    for rid in ("s", "t"):
        harness.step(RequestOpened(m.Submit(rid, "chat", m.Value("hi"), timeout_s=TIMEOUT_S)))
    harness.receive(m.PeerDead(WORKER))
    for rid in ("t", RID):
        harness.receive(m.Emit(rid, 1, "Text", 1, m.Value("later")), WORKER)
    assert [submit.rid for _, submit in sent(harness.tick(), m.Submit)] == [RID, "t"]
    assert harness.core.stats() == {"streams": 3, "out_of_order": 2}


def test_nothing_is_kept_of_requests_that_have_ended(harness):
    for number in range(200):
        harness.step(RequestOpened(m.Submit(f"r{number}", "chat", m.Value("hi"), timeout_s=1e6)))
        harness.receive(m.Emit(f"r{number}", 1, "Text", 1, m.Value("later")), WORKER)
    for number in range(200):
        harness.step(ClientLeft(f"r{number}"))
    harness.finish()
    harness.tick()
    assert (harness.core._streams, harness.core._deadlines, harness.core._incomplete) == ({}, [], {})


def test_the_death_of_a_process_costs_the_same_beside_many_requests(harness):
    def cost_of_death():
        return count_bytecodes(lambda: harness.receive(m.PeerDead(m.Peer("other", 0))))

    few = cost_of_death()
    for number in range(1_000):
        harness.step(RequestOpened(m.Submit(f"r{number}", "chat", m.Value("hi"), timeout_s=TIMEOUT_S)))
    assert cost_of_death() == few
