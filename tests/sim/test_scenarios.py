"""The real cores under drawn trouble: nothing may go wrong, and what goes wrong must be seen."""

import os
import subprocess
import sys

import pytest

from mstar.frontend.core import FrontendCore
from mstar.sim.runner import run_in_process, run_scenario
from mstar.sim.scenario import FAULT_KINDS, FIRST_SCALING_SEED, FIRST_SHARDED_SEED, make_scenario
from mstar.wire.link import Link

FOUND = {
    2: "what a client took was forgotten between two walks, and the second one waited for ever",
    63: "a call that acts on the world was run again under a new conductor",
    279: "a request that was taken on was refused when it came again while the server drained",
    339: "a suspect shared batches again as soon as an earlier walk of it was replayed",
    383: "a state was not sent to the attempt that followed",
    1332: "workers kept frames for lives that had ended under an older conductor",
    3511: "a request that came again after its end got the number of an attempt that it had before",
    119_468: "more waited than may wait, because there was no room although there were few requests",
    131_952: "a worker was forgotten by all when its conductor gave it up, and lived on under the next conductor",
    142_837: "credit went to who had made emissions earlier, because those came late",
    FIRST_SCALING_SEED + 14_975: "two renewals at a time left nobody with the weights that a request had begun with",
    1_049_609: "a front end that a new conductor met late kept frames for a worker that was gone",
}
"""Seeds of bugs that were found, and what they did."""


def test_300_scenarios():
    summary = run_in_process(range(10_000, 10_300))
    assert summary.violations == {}
    assert summary.scenarios == 300
    assert {"ok", "failed", "poison", "deadline", "refused", "not_retryable", "left"} <= summary.statuses.keys()
    assert "open" not in summary.statuses


def test_150_scenarios_with_workers_that_come_and_go():
    summary = run_in_process(range(FIRST_SCALING_SEED, FIRST_SCALING_SEED + 150))
    assert summary.violations == {}
    assert summary.scenarios == 150
    assert {"ok", "not_retryable"} <= summary.statuses.keys()
    assert "open" not in summary.statuses


def test_workers_come_and_go_in_them():
    worlds = [run_scenario(seed)[0] for seed in range(FIRST_SCALING_SEED, FIRST_SCALING_SEED + 30)]
    assert any(world.inactive for world in worlds)
    assert any(world.launcher.rolled_version for world in worlds)
    assert all(world.launcher.rolled_version == len(world.scenario.weight_rolls) for world in worlds)
    assert any(
        world.deaths for world in worlds if not world.scenario.kinds & {"kill", "conductor", "trap", "pause", "cut"}
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_500_scenarios_with_workers_that_come_and_go():
    summary = run_in_process(range(FIRST_SCALING_SEED + 10_000, FIRST_SCALING_SEED + 10_500))
    assert summary.violations == {}


def test_conductors_share_the_models_in_further_ones():
    summary = run_in_process(range(FIRST_SHARDED_SEED, FIRST_SHARDED_SEED + 150))
    assert summary.violations == {}
    worlds = [run_scenario(seed)[0] for seed in range(FIRST_SHARDED_SEED, FIRST_SHARDED_SEED + 30)]
    assert all(len(world.shards.models) == 2 for world in worlds)
    alone = [world for world in worlds if sum(world.deaths[name] > 0 for name in world.shards.models) == 1]
    assert alone, "in some of them one conductor dies and the other does not"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_500_scenarios_with_several_conductors():
    summary = run_in_process(range(FIRST_SHARDED_SEED + 10_000, FIRST_SHARDED_SEED + 10_500))
    assert summary.violations == {}


@pytest.mark.parametrize(
    ("first", "count"),
    [
        pytest.param(100_000, 1_500, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param(100_000, 25_000, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)]),
        pytest.param(125_000, 25_000, marks=[pytest.mark.nightly, pytest.mark.timeout(3600)]),
    ],
)
def test_many_scenarios(first, count):
    summary = run_in_process(range(first, first + count))
    assert summary.violations == {}


@pytest.mark.parametrize("seed", FOUND)
def test_fixed_seeds_stay_fixed(seed):
    assert run_scenario(seed)[1] == "", FOUND[seed]


@pytest.mark.parametrize("seed", range(20_000, 20_020))
def test_a_seed_gives_one_run(seed):
    (one, _), (other, _) = run_scenario(seed), run_scenario(seed, [])
    assert (one.hash, one.events, one.now) == (other.hash, other.events, other.now)


def test_a_seed_gives_one_run_in_another_process():
    command = [sys.executable, "-m", "mstar.cli", "sim", "replay", "20003"]
    said = {
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_every_kind_of_fault_is_injected():
    assert {kind for seed in range(100) for kind in make_scenario(seed).kinds} == {*FAULT_KINDS}


def forgets(core: FrontendCore, stream: object) -> None:
    """Does not submit again what a new conductor does not know."""


def loses(link: Link, now: float) -> list[object]:
    """Sends nothing again."""
    return []


@pytest.mark.parametrize(
    ("owner", "method", "broken"),
    [(FrontendCore, "_submit_again", forgets), (Link, "tick", loses)],
    ids=["front", "link"],
)
def test_a_broken_core_is_noticed(monkeypatch, owner, method, broken):
    monkeypatch.setattr(owner, method, broken)
    assert run_in_process(range(60)).violations
