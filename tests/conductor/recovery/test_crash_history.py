"""Crash history of a request: which deaths of workers make it poison."""

import pytest

from mstar.conductor.recovery.crash_history import MAX_LONE_DEATHS, CrashHistory, WorkerDeath
from mstar.wire.messages import ExitCause, Peer

CRASH, UNEXPLAINED, EXTERNAL = ExitCause.CRASH, ExitCause.UNEXPLAINED, ExitCause.EXTERNAL


def verdicts(*deaths):
    """Record deaths of as many workers; return whether each makes the request poison."""
    history = CrashHistory()
    return [history.record(Peer("a", number), WorkerDeath(*death)) for number, death in enumerate(deaths)]


def test_a_second_crash_at_the_same_call_alone_is_poison():
    assert verdicts((3, False, CRASH), (4, True, CRASH)) == [False, True]
    assert verdicts((3, True, CRASH), (2, True, CRASH)) == [False, True]


@pytest.mark.parametrize("second", [(5, True, CRASH), (3, False, CRASH), (3, True, UNEXPLAINED), (3, True, EXTERNAL)])
def test_another_call_company_or_another_cause_is_not_poison(second):
    assert verdicts((3, True, CRASH), second) == [False, False]


def test_external_deaths_never_count():
    assert verdicts(*[(3, True, EXTERNAL)] * 100, (3, True, CRASH)) == [False] * 101


def test_unexplained_deaths_alone_at_one_call_are_poison_in_the_end():
    deaths = [(3, False, UNEXPLAINED), *[(3, True, UNEXPLAINED)] * MAX_LONE_DEATHS]
    assert verdicts(*deaths) == [False] * MAX_LONE_DEATHS + [True]


def test_unexplained_deaths_at_different_calls_are_not_poison():
    assert not any(verdicts(*((2 * number, True, UNEXPLAINED) for number in range(20))))


def test_unexplained_deaths_in_company_are_not_poison():
    assert not any(verdicts(*[(3, False, UNEXPLAINED)] * 20))


def test_a_death_counts_once_for_each_worker():
    history, death = CrashHistory(), WorkerDeath(3, was_alone=True, cause=CRASH)
    assert not history.record(Peer("a", 0), death)
    assert not history.record(Peer("a", 0), death), "the loss of a worker and its exit can both be reported"
    assert history.record(Peer("a", 1), death)
    assert history.count_at(3) == 2


def test_the_request_runs_alone_around_the_last_death_that_it_can_have_caused():
    history = CrashHistory()
    for incarnation, (calls, cause) in enumerate([(3, CRASH), (9, EXTERNAL)]):
        history.record(Peer("a", incarnation), WorkerDeath(calls, was_alone=False, cause=cause))
    assert history.isolate_at_call == 5
