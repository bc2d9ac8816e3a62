"""`python -m bench sim` with few scenarios and bugs: it can be met, and each part of it can be missed."""

import json

import pytest

from bench.simulator import SEEDS, SimulatorMutant, find_violation, load_mutants, simulate
from mstar.sim.runner import run_in_subprocesses
from mstar.sim.scenario_generator import make_scenario

FEW = tuple(seeds[:2] for seeds in SEEDS)
FOUND = next(mutant for mutant in load_mutants() if mutant.what == "a replay with other values is not noticed")
HARMLESS = SimulatorMutant("frontend/core.py", "nothing changes", "CREDIT_INTERVAL = 16\n", "CREDIT_INTERVAL = 8 + 8\n")


def test_the_claim_is_met_without_a_violation_and_with_all_bugs_found():
    claim = simulate(FEW, [FOUND], jobs=1)
    assert claim.is_met, claim
    assert (claim.value, claim.details["scenarios"], claim.details["violations"]) == (1.0, 16, 0)
    assert json.loads(str(claim))["holds"]


def test_the_claim_is_missed_with_a_bug_that_survives(monkeypatch):
    monkeypatch.setattr("bench.simulator.SCENARIOS_PER_MUTANT", 40)
    claim = simulate(FEW, [FOUND, HARMLESS], jobs=1)
    assert (claim.value, claim.is_met) == (0.5, False)


def test_a_bug_that_makes_scenarios_endless_is_not_noticed(monkeypatch):
    monkeypatch.setattr("bench.simulator.RUN_TIMEOUT_S", 0.01)
    assert find_violation(FOUND) == (0, "")


def test_a_bug_that_prevents_the_start_is_an_error_in_the_list():
    broken = SimulatorMutant("frontend/core.py", "it is no Python", "CREDIT_INTERVAL = 16\n", "CREDIT_INTERVAL =\n")
    with pytest.raises(ValueError, match="it is no Python: the simulator does not start"):
        find_violation(broken)


@pytest.mark.parametrize("loss", ["violation", "missing"])
def test_the_claim_is_missed_with_a_violation_or_a_missing_scenario(monkeypatch, loss):
    def run(seeds, jobs):
        summary = run_in_subprocesses(seeds, jobs)
        if loss == "violation":
            summary.violations[seeds.start] = "I1"
        else:
            summary.scenarios -= 1
        return summary

    monkeypatch.setattr("bench.simulator.run_in_subprocesses", run)
    monkeypatch.setattr("bench.simulator.find_violation", lambda _: (1, "found"))
    claim = simulate(FEW[:1], [FOUND], jobs=1)
    assert (claim.value, claim.is_met) == (1.0, False)


def test_all_groups_of_seeds_are_run():
    scenarios = [make_scenario(seeds.start) for seeds in SEEDS]
    assert [scenario.is_elastic for scenario in scenarios] == [False, True, True, *[False] * 5]
    assert [scenario.is_sharded for scenario in scenarios] == [False, False, True, *[False] * 5]
