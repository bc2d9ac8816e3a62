"""The fault schedule follows from the seed, fits into the load and covers every fault."""

from itertools import pairwise

import pytest

from bench.game_day.faults import FAULTS, fault_specs
from bench.game_day.promises import PROMISES
from bench.game_day.schedule import MAX_JITTER, MIN_SLOT_S, FaultSpec, plan_faults

SPECS = fault_specs(())
MINUTE_S = 45.0
"""Seconds of load in which the short form injects its faults."""


def test_a_seed_gives_the_same_schedule_again():
    assert plan_faults(3, 300, SPECS) == plan_faults(3, 300, SPECS)


def test_seeds_give_different_schedules():
    orders = {tuple(fault.name for fault in plan_faults(seed, 300, SPECS)) for seed in range(20)}
    assert len(orders) > 15


@pytest.mark.parametrize("load_s", [MINUTE_S, 285.0, 1785.0])
def test_a_fault_ends_before_the_next_one_starts(load_s):
    for seed in range(50):
        faults = plan_faults(seed, load_s, SPECS)
        assert faults[-1].at + faults[-1].seconds <= load_s
        for one, following in pairwise(faults):
            assert one.at + one.seconds < following.at


def test_a_long_load_has_every_fault_in_each_round():
    faults = [fault.name for fault in plan_faults(5, 1785, SPECS)]
    for start in range(0, len(faults) - len(SPECS) + 1, len(SPECS)):
        assert {*faults[start : start + len(SPECS)]} == FAULTS.keys()
    assert len(faults) >= 5 * len(SPECS)


def test_the_seeds_of_the_short_form_cover_every_fault():
    drawn = [{fault.name for fault in plan_faults(seed, MINUTE_S, SPECS)} for seed in range(10)]
    assert all(len(names) == int(MINUTE_S / MIN_SLOT_S) for names in drawn)
    assert set().union(*drawn) == FAULTS.keys()


def test_targets_are_drawn_from_those_of_the_fault():
    spec = FaultSpec("kill", ("a", "b"), (0.0, 0.0), 1.0)
    assert {fault.target for fault in plan_faults(1, 400, [spec])} == {"a", "b"}


def test_starts_are_in_the_first_part_of_their_slot():
    for at, fault in enumerate(plan_faults(1, MINUTE_S, SPECS)):
        assert 0 <= fault.at - at * MIN_SLOT_S <= MAX_JITTER * MIN_SLOT_S + 0.01


def test_workers_with_published_weights_are_killed_only_if_they_can_be_reloaded():
    targets = {spec.name: {*spec.targets} for spec in fault_specs(())}
    assert targets["kill-worker"] == {"t1", "p1", "p2"}
    assert {*next(spec for spec in fault_specs(("chat",)) if spec.name == "kill-worker").targets} == {
        *("t1", "p1", "p2", "lm")
    }


def test_every_fault_names_promises_of_the_judge():
    names = {promise.name for promise in PROMISES}
    assert {name for fault in FAULTS.values() for name in fault.tests} <= names
    assert all(fault.tests and fault.what for fault in FAULTS.values())
