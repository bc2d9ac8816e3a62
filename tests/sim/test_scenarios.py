"""The real cores under random faults: no invariant is violated, and a broken core is detected."""

import os
import subprocess
import sys

import pytest

from mstar.frontend.core import FrontendCore
from mstar.sim.runner import run_in_process, run_scenario
from mstar.sim.scenario import (
    FAULT_KINDS,
    FIRST_FOCUSED_SEED,
    FIRST_SCALING_SEED,
    FIRST_SHARDED_SEED,
    FOCUSES,
    make_scenario,
)
from mstar.wire.link import Link

REGRESSION_SEEDS = {
    2: "consumed outputs were forgotten between two walks, and the second walk waited forever",
    63: "a non-idempotent call ran again under a new conductor",
    279: "an admitted request was rejected when it was resubmitted during shutdown",
    339: "isolation of a crash suspect ended when an earlier walk was replayed",
    383: "a state was not sent to the next attempt",
    1332: "workers kept frames for incarnations that had died under an earlier conductor",
    3511: "a request resubmitted after its end got an attempt number that it had before",
    119_468: "the queue exceeded its limit when there was no capacity but few requests",
    131_952: "all peers dropped a worker that its conductor had killed and that lived on under the next conductor",
    142_837: "credit was sent to the worker of an earlier attempt, because its outputs arrived late",
    FIRST_SCALING_SEED + 14_975: "two concurrent rollouts left no worker with the weights of a running request",
    FIRST_FOCUSED_SEED + 2_628: "a request ended ok with more outputs than its last attempt had computed",
    1_049_609: "a front end that registered late with a new conductor kept frames for a dead worker",
}
"""Seeds that found a bug, and the bug."""


def test_300_scenarios():
    summary = run_in_process(range(10_000, 10_300))
    assert summary.violations == {}
    assert summary.scenarios == 300
    assert {"ok", "failed", "poison", "deadline", "refused", "not_retryable", "left"} <= summary.statuses.keys()
    assert "open" not in summary.statuses


def test_150_scenarios_with_autoscaling():
    summary = run_in_process(range(FIRST_SCALING_SEED, FIRST_SCALING_SEED + 150))
    assert summary.violations == {}
    assert summary.scenarios == 150
    assert {"ok", "not_retryable"} <= summary.statuses.keys()
    assert "open" not in summary.statuses


def test_they_include_scaling_and_rolling_updates():
    simulations = [run_scenario(seed)[0] for seed in range(FIRST_SCALING_SEED, FIRST_SCALING_SEED + 30)]
    assert any(simulation.inactive for simulation in simulations)
    assert any(simulation.launcher.rolled_version for simulation in simulations)
    assert all(
        simulation.launcher.rolled_version == len(simulation.scenario.weight_rolls) for simulation in simulations
    )
    assert any(
        simulation.deaths
        for simulation in simulations
        if not simulation.scenario.kinds & {"kill", "conductor", "trap", "pause", "cut"}
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_500_scenarios_with_autoscaling():
    summary = run_in_process(range(FIRST_SCALING_SEED + 10_000, FIRST_SCALING_SEED + 10_500))
    assert summary.violations == {}


def test_150_scenarios_with_several_conductors():
    summary = run_in_process(range(FIRST_SHARDED_SEED, FIRST_SHARDED_SEED + 150))
    assert summary.violations == {}
    simulations = [run_scenario(seed)[0] for seed in range(FIRST_SHARDED_SEED, FIRST_SHARDED_SEED + 30)]
    assert all(len(simulation.shards.models) == 2 for simulation in simulations)
    one_died = [
        simulation
        for simulation in simulations
        if sum(simulation.deaths[name] > 0 for name in simulation.shards.models) == 1
    ]
    assert one_died, "in some of them only one conductor dies"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_500_scenarios_with_several_conductors():
    summary = run_in_process(range(FIRST_SHARDED_SEED + 10_000, FIRST_SHARDED_SEED + 10_500))
    assert summary.violations == {}


def test_80_scenarios_with_a_focus():
    summary = run_in_process(range(FIRST_FOCUSED_SEED, FIRST_FOCUSED_SEED + 80))
    assert summary.violations == {}
    assert summary.scenarios == 80
    assert summary.statuses["failed"] > 5, "nondeterministic requests diverge"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_1000_scenarios_with_a_focus():
    summary = run_in_process(range(FIRST_FOCUSED_SEED + 10_000, FIRST_FOCUSED_SEED + 11_000))
    assert summary.violations == {}


def test_focused_scenarios_have_contention():
    scenarios = [make_scenario(seed) for seed in range(FIRST_FOCUSED_SEED, FIRST_FOCUSED_SEED + 40)]
    by_focus = {focus: scenarios[number :: len(FOCUSES)] for number, focus in enumerate(FOCUSES)}
    for scenario in by_focus["divergence"]:
        assert scenario.kinds & {"kill", "conductor"}
        assert scenario.models.keys() <= {"talk", "sing", "guide"}, "one walk each"
    assert all(len({client.tenant for client in scenario.clients}) > 1 for scenario in by_focus["fairness"])
    assert all(client.slo.tokens_per_s for scenario in by_focus["deadlines"] for client in scenario.clients)
    assert all(scenario.costs.pages < 100 for scenario in by_focus["preemption"])


@pytest.mark.parametrize(
    ("first", "count"),
    [
        pytest.param(100_000, 1_500, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param(100_000, 25_000, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)]),
        pytest.param(125_000, 25_000, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)]),
        pytest.param(FIRST_SCALING_SEED + 10_000, 2_000, marks=[pytest.mark.nightly, pytest.mark.timeout(1200)]),
        pytest.param(FIRST_SHARDED_SEED + 10_000, 2_000, marks=[pytest.mark.nightly, pytest.mark.timeout(1200)]),
    ],
)
def test_many_scenarios(first, count):
    summary = run_in_process(range(first, first + count))
    assert summary.violations == {}


@pytest.mark.parametrize("seed", REGRESSION_SEEDS)
def test_fixed_seeds_stay_fixed(seed):
    assert run_scenario(seed)[1] == "", REGRESSION_SEEDS[seed]


@pytest.mark.parametrize("seed", range(20_000, 20_020))
def test_a_seed_gives_one_run(seed):
    (one, _), (other, _) = run_scenario(seed), run_scenario(seed, [])
    assert (one.hash, one.events, one.now) == (other.hash, other.events, other.now)


def test_a_seed_gives_one_run_in_another_process():
    command = [sys.executable, "-m", "mstar.cli", "sim", "replay", "20003"]
    outputs = {
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_every_kind_of_fault_is_injected():
    assert {kind for seed in range(100) for kind in make_scenario(seed).kinds} == {*FAULT_KINDS}


def does_not_resubmit(core: FrontendCore, stream: object) -> None:
    """Does not resubmit requests to a new conductor."""


def does_not_retransmit(link: Link, now: float) -> list[object]:
    """Retransmits nothing."""
    return []


@pytest.mark.parametrize(
    ("owner", "method", "broken"),
    [(FrontendCore, "_resubmit", does_not_resubmit), (Link, "tick", does_not_retransmit)],
    ids=["front", "link"],
)
def test_a_broken_core_is_detected(monkeypatch, owner, method, broken):
    monkeypatch.setattr(owner, method, broken)
    assert run_in_process(range(60)).violations
