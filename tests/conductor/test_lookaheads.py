"""Lookaheads at the conductor: when they start, and what commit, drop and lost workers do."""

import pytest

from mstar.sim.models import LOOKAHEAD_MODEL
from mstar.wire import messages as m
from tests.conductor.deployment import FRONTEND, Deployment

A, B = m.Peer("a", 0), m.Peer("b", 0)
COMMITS_FIRST, COMMITS_NONE = 3, 1
"""Results of the first `write` after which the route of the model commits its first lookahead, or neither."""


def deploy(*names):
    """The model of the simulator with lookaheads, on these workers."""
    place = {"lm": ["a", "b"], "voice": ["a", "b"]}
    deployment = Deployment({LOOKAHEAD_MODEL: place})
    for name in names:
        deployment.worker_up(name)
    deployment.sent.clear()
    deployment.submit("r")
    (begin,) = deployment.sent_of_kind(m.StartWalk)
    assert begin.walk_name == "begin"
    finish(deployment, begin, 7, {1: 10})
    return deployment


def finish(deployment, start, token=None, states=None, peers=None):
    """All seats of a walk report that they are done."""
    outputs = {} if token is None else {0: m.ValueInput(m.Value(token))}
    for seat, peer in enumerate(start.seats):
        if peers is None or peer in peers:
            done = m.SeatDone("r", start.attempt, start.walk_index, seat, outputs, states or {}, {})
            deployment.deliver(peer, done)


def starts(deployment):
    """The walks that were started since the last call, by name."""
    return {start.walk_name: start for start in deployment.sent_of_kind(m.StartWalk)}


def numbers(deployment, kind):
    return [message.walk_index for message in deployment.sent_of_kind(kind)]


def at_first_turn(*names):
    """A deployment whose route awaits `write`, and the walks that have started: `foresee` and `rehearse` are early."""
    deployment = deploy(*names)
    return deployment, starts(deployment)


# ---------------------------------------------------------------- start
def test_what_a_route_offers_starts_after_the_walk_that_it_awaits():
    deployment = deploy("a")
    walks = [(start.walk_name, start.walk_index) for start in deployment.sent_of_kind(m.StartWalk)]
    assert walks == [("write", 1), ("foresee", -1), ("rehearse", -2)]
    assert deployment.workers["a"].running_walks == 1, "lookaheads are no load"


def test_its_forks_are_made_before_the_awaited_walk_changes_the_original():
    deployment = deploy("a")
    kinds = [type(message).__name__ for _, message in deployment.sent]
    assert kinds.index("ForkState") < kinds.index("StartWalk")
    foresee = starts(deployment)["foresee"]
    assert foresee.inputs[2] == m.LocalState(-1)
    assert foresee.emitted_counts == {}


def test_a_request_that_crashed_a_worker_starts_no_lookahead():
    deployment, walks = at_first_turn("a", "b")
    (holder,) = walks["write"].seats
    suspect = m.Suspect("r", walks["write"].attempt, 0)
    deployment.exit_process(holder, suspects=[suspect], cause=m.ExitCause.CRASH)
    (begin,) = deployment.sent_of_kind(m.StartWalk)
    finish(deployment, begin, 7, {1: 10})
    assert [*starts(deployment)] == ["write"]


# ---------------------------------------------------------------- commit
def test_a_finished_one_gives_its_result_at_once():
    deployment, walks = at_first_turn("a")
    finish(deployment, walks["foresee"], 5, {2: 20})
    assert starts(deployment) == {}, "the route does not know"
    finish(deployment, walks["write"], COMMITS_FIRST, {2: 11})
    assert numbers(deployment, m.CommitLookahead)[0] == -1
    assert deployment.requests["r"].walk_results[2].name == "foresee"
    assert 20 in {location.number for location in deployment.requests["r"].states.locations()}


def test_an_unfinished_one_becomes_the_walk_that_the_route_awaits():
    deployment, walks = at_first_turn("a")
    finish(deployment, walks["write"], COMMITS_FIRST, {2: 11})
    assert deployment.sent_of_kind(m.CommitLookahead) == [m.CommitLookahead("r", 0, -1)]
    assert deployment.requests["r"].walk_run.call.name == "foresee"
    assert deployment.workers["a"].running_walks == 1
    assert starts(deployment) == {}
    finish(deployment, walks["foresee"], 5, {2: 20})
    assert deployment.requests["r"].walk_count >= 3


@pytest.mark.parametrize("is_reported_first", [False, True])
def test_a_lost_one_is_run_again_at_the_commit(is_reported_first):
    deployment, walks = at_first_turn("a")
    lost = m.LookaheadLost("r", 0, -1)
    if is_reported_first:
        deployment.deliver(A, lost)
        assert starts(deployment) == {}, "nothing is repeated before the commit"
    finish(deployment, walks["write"], COMMITS_FIRST, {2: 11})
    if not is_reported_first:
        deployment.deliver(A, lost)
    again = starts(deployment)["foresee"]
    assert again.walk_index == 2
    assert deployment.workers["a"].running_walks == 1
    finish(deployment, walks["foresee"], 6)
    assert deployment.core.walk_reports.stale_messages == 1, "its late result is ignored"
    finish(deployment, again, 5, {2: 20})
    assert deployment.requests["r"].walk_results[2].counts == {}


def test_an_unreadable_result_loses_it():
    from mstar.wire.frame import UnreadableValue

    deployment, walks = at_first_turn("a")
    finish(deployment, walks["foresee"], UnreadableValue("its arena is gone"))
    assert numbers(deployment, m.DropLookahead) == [-1]
    assert deployment.requests["r"].retries == 0


# ---------------------------------------------------------------- drop and the end of attempts
def test_what_the_route_drops_is_freed_while_it_waits_for_input():
    deployment, walks = at_first_turn("a")
    finish(deployment, walks["write"], COMMITS_NONE, {2: 11})
    request = deployment.requests["r"]
    assert request.is_awaiting_input
    deployment.deliver(FRONTEND, m.ClientInput("r", 0, m.Value(4), {}))
    assert sorted(numbers(deployment, m.DropLookahead)) == [-3, -1]
    freed = [number for message in deployment.sent_of_kind(m.FreeStates) for number in message.states]
    assert -1 in freed


def test_the_end_of_the_request_releases_all():
    deployment, walks = at_first_turn("a")
    finish(deployment, walks["write"], COMMITS_NONE, {2: 11})
    deployment.deliver(FRONTEND, m.ClientInput("r", 0, m.Value(None), {}))
    assert [end.status for end in deployment.sent_of_kind(m.RequestFinished)] == ["ok"]
    assert len(deployment.sent_of_kind(m.ReleaseAttempt)) == 1


def test_a_lost_worker_loses_its_lookaheads_and_no_request_that_needs_it_no_more():
    deployment, walks = at_first_turn("a", "b")
    seats = walks["rehearse"].seats
    (holder,) = walks["write"].seats
    other = B if holder == A else A
    deployment.exit_process(other)
    request = deployment.requests["r"]
    assert request.retries == 0
    assert (-2 in request.lookaheads) == (other not in seats)
    assert -1 in request.lookaheads


def test_a_retry_loses_all():
    deployment, walks = at_first_turn("a")
    deployment.deliver(A, m.RetryNeeded("r", 0, "an input could not be read"))
    assert deployment.requests["r"].lookaheads == {}
    assert [*starts(deployment)] == ["write"], "the walk that the route awaits is repeated, and nothing else"
    late = m.SeatDone("r", 0, walks["foresee"].walk_index, 0, {}, {}, {})
    deployment.deliver(A, late)
    assert deployment.core.walk_reports.stale_messages == 1
