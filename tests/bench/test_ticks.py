"""An idle stream costs no periodic work: a tick executes as many bytecodes beside few streams as beside many."""

import pytest

from bench.cost.ticks import FLEETS, PROCESSES, IdleConductor, measure

MAX_RATIO = 1.02


def ratio(name, few, many, ticks):
    return measure(PROCESSES[name](many), ticks).bytecodes / measure(PROCESSES[name](few), ticks).bytecodes


@pytest.mark.parametrize("name", PROCESSES)
def test_a_tick_costs_the_same_beside_twenty_times_as_many_idle_streams(name):
    assert ratio(name, few=100, many=2_000, ticks=200) <= MAX_RATIO


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", PROCESSES)
def test_a_tick_costs_the_same_beside_100_000_idle_streams(name):
    assert ratio(name, few=1_000, many=100_000, ticks=1_000) <= MAX_RATIO


def test_the_fleets_are_what_their_names_say():
    conductors = {name: IdleConductor(fleet, 100) for name, fleet in FLEETS.items()}
    for conductor in conductors.values():
        for _ in range(100):
            conductor.tick()
        requests = conductor.core.lifecycle.requests.values()
        states = ["queued" if each.route is None else "idle" if each.walk_run is None else "walk" for each in requests]
        assert [states.count(name) for name in ("idle", "walk", "queued")] == [50, 40, 10]
    workers = {name: conductor.core.membership.workers for name, conductor in conductors.items()}
    assert {name: [each.peer.name for each in live.values()] for name, live in workers.items()} == {
        "fixed": ["a", "b"],
        "autoscaled": ["a", "b"],
        "rolling update": ["a", "b"],
        "unresponsive worker": ["a"],
        "no worker": [],
    }
    assert conductors["autoscaled"].core.autoscaler.is_active
    assert len(conductors["rolling update"].core.membership.draining()) == 1
    assert not workers["unresponsive worker"]["a"].is_responsive
