"""The real cores under random faults: no invariant is violated, and a broken core is detected."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from mstar.conductor.dispatch.assignment import assign_workers
from mstar.conductor.dispatch.eligible_workers import Candidates
from mstar.conductor.liveness.watch import ConductorWatch
from mstar.conductor.recovery.crash_history import CrashHistory, WorkerDeath
from mstar.conductor.scaling.weights_versions import WeightsVersions
from mstar.frontend.core import FrontendCore
from mstar.sim.faults import FaultInjector
from mstar.sim.history import Violation
from mstar.sim.oracle import digest
from mstar.sim.processes import SimWorker
from mstar.sim.runner import Summary, run_in_process, run_scenario
from mstar.sim.scenario import (
    FAULT_KINDS,
    FIRST_AHEAD_SEED,
    FIRST_FOCUSED_SEED,
    FIRST_KILL_SEED,
    FIRST_LOOKAHEAD_SEED,
    FIRST_OVERLAP_SEED,
    FIRST_PAUSE_SEED,
    FIRST_ROLLOUT_SEED,
    FIRST_SCALING_SEED,
    FIRST_SHARDED_SEED,
    FOCUSES,
    HANG_S,
    MAX_REPLACE_S,
    OVERLAP_FAULTS,
    PAUSES,
    Fault,
)
from mstar.sim.scenario_generator import make_scenario
from mstar.sim.simulation import Simulation
from mstar.wire import messages as m
from mstar.wire.link import Link
from mstar.wire.messages import ExitCause, Peer
from mstar.worker.scheduling.lookahead_calls import LookaheadCalls

record_death = CrashHistory.record

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
    FIRST_FOCUSED_SEED + 972: "a request was repeated although its last outputs were only late, and diverged",
    FIRST_OVERLAP_SEED + 94: "a rollback left a successor running that an earlier conductor had started",
    FIRST_OVERLAP_SEED + 250: "a rejection while the only worker was in a crash loop was taken for a mistake",
    FIRST_OVERLAP_SEED + 101: "a successor that was rolled back replaced its worker, and no version was in all groups",
    FIRST_SCALING_SEED + 700_591: "a queued request kept the last worker of a version that other groups had lost",
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


def test_80_scenarios_with_a_focus():
    summary = run_in_process(range(FIRST_FOCUSED_SEED, FIRST_FOCUSED_SEED + 80))
    assert summary.violations == {}
    assert summary.scenarios == 80
    assert summary.statuses["failed"] > 5, "nondeterministic requests diverge"


def test_60_scenarios_with_long_pauses_lose_no_healthy_process():
    simulations = []
    for seed in range(FIRST_PAUSE_SEED, FIRST_PAUSE_SEED + 60):
        simulation, violation = run_scenario(seed)
        assert not violation, f"seed {seed}: {violation}"
        simulations.append(simulation)
    statuses = {view.status for simulation in simulations for view in simulation.history.requests.values()}
    assert statuses == {"ok"}
    faults = {fault.kind for simulation in simulations for fault in simulation.scenario.faults}
    assert faults == set(PAUSES)
    deaths = {name for simulation in simulations for name in simulation.deaths}
    assert any(name.startswith("conductor") for name in deaths), "a conductor that hangs is replaced"
    assert any(name.startswith("w") for name in deaths), "a worker that hangs is replaced"


def test_9_scenarios_with_states_that_are_sent_ahead_to_workers_that_pause(monkeypatch):
    placed = []

    def assign(run, eligible):
        handles = run.handles.values()
        placed.extend(handle.next_worker in eligible.unresponsive for handle in handles if handle.next_worker)
        return assign_workers(run, eligible)

    monkeypatch.setattr("mstar.conductor.dispatch.walk_dispatch.assign_workers", assign)
    summary = run_in_process(range(FIRST_AHEAD_SEED, FIRST_AHEAD_SEED + 9))
    assert summary.violations == {}
    assert summary.statuses.keys() == {"ok"}
    assert any(placed), "a state was sent ahead to a worker that does not respond when its next walk starts"
    assert not all(placed)


def test_100_scenarios_with_lookaheads():
    """Results are those of eager runs, in which a walk runs at its commit, and nothing is left at the end."""
    outcomes, statuses = Counter(), Counter()
    for seed in range(FIRST_LOOKAHEAD_SEED, FIRST_LOOKAHEAD_SEED + 100):
        simulation, violation = run_scenario(seed)
        assert not violation, f"seed {seed}: {violation}"
        statuses.update(view.status for view in simulation.history.requests.values())
        for process in simulation.processes.values():
            for totals in process.core.op_stats.ops() if isinstance(process, SimWorker) else ():
                outcomes.update(totals.lookahead_s)
    assert statuses["ok"] > 100
    assert min(outcomes[outcome] for outcome in ("committed", "dropped", "lost")) > 0


def test_a_lookahead_that_delays_an_ordinary_call_is_detected(monkeypatch):
    class Eager(LookaheadCalls):
        def add(self, key, call):
            self._others.setdefault(key, []).append(call)

    monkeypatch.setattr("mstar.worker.scheduling.scheduler.LookaheadCalls", Eager)
    (violation,) = run_in_process(range(FIRST_LOOKAHEAD_SEED, FIRST_LOOKAHEAD_SEED + 20)).violations.values()
    assert violation.startswith("I24")


def test_a_walk_on_an_unresponsive_worker_that_was_sent_its_state_is_detected(monkeypatch):
    def trust_all(worker_set_names, peers, _, load):
        return Candidates(worker_set_names, peers, frozenset(), load)

    monkeypatch.setattr("mstar.conductor.dispatch.eligible_workers.Candidates", trust_all)
    (violation,) = run_in_process(range(FIRST_AHEAD_SEED, FIRST_AHEAD_SEED + 12)).violations.values()
    assert violation.startswith("I23")


def test_a_conductor_that_hangs_and_is_not_replaced_is_detected(monkeypatch):
    def simulate():
        fault = Fault(1.0, "pause", 0.0, 0.0, 20.0)
        return Simulation(replace(make_scenario(FIRST_PAUSE_SEED), faults=[fault]))

    monkeypatch.setattr(FaultInjector, "_possible_targets", lambda *_: ["conductor"])
    simulation = simulate()
    simulation.run()
    assert simulation.deaths == {"conductor": 1}
    monkeypatch.setattr(ConductorWatch, "find_hung", lambda *_: None)
    with pytest.raises(Violation, match=r"I10 conductor.0 did not respond for 5\.5 s and was not replaced"):
        simulate().run()


@pytest.mark.parametrize("number", range(8))
def test_a_worker_that_hangs_while_its_conductor_is_replaced_is_killed(number):
    """Requests after the kill end ok. Without it each would wait for its worker in vain."""
    scenario = make_scenario(FIRST_PAUSE_SEED + number)
    hang, loss = Fault(1.0, "hang", number / 8, 0.0, HANG_S), Fault(2.0, "conductor", 0.0, 0.0, 0.0)
    delay_s = 2.0 + MAX_REPLACE_S
    for client in scenario.clients:
        client.inputs = [(at + delay_s, value) for at, value in client.inputs]
        client.submit_at += delay_s
    trace = []
    simulation = Simulation(replace(scenario, faults=[hang, loss], end=400.0), trace)
    simulation.run()
    assert {view.status for view in simulation.history.requests.values()} == {"ok"}
    assert sum("dies: no message to a new conductor for 12" in line for line in trace) == 1


def test_60_rolling_updates_with_successors_interrupt_no_request():
    for seed in range(FIRST_ROLLOUT_SEED, FIRST_ROLLOUT_SEED + 60):
        simulation, violation = run_scenario(seed)
        assert not violation, f"seed {seed}: {violation}"
        assert {view.status for view in simulation.history.requests.values()} == {"ok"}
        workers = [process.core for name, process in simulation.processes.items() if name in simulation.workers]
        assert {worker.weights_version for worker in workers} <= {simulation.weights_version}
        assert simulation.weights_version == len(simulation.scenario.weight_rolls) > 0


def test_60_rolling_updates_beside_long_requests_with_faults_let_no_new_request_wait():
    faults, overlaps, rollbacks = set(), 0, 0
    for seed in range(FIRST_OVERLAP_SEED, FIRST_OVERLAP_SEED + 60):
        trace = []
        simulation, violation = run_scenario(seed, trace)
        assert not violation, f"seed {seed}: {violation}"
        faults |= {fault.kind for fault in simulation.scenario.faults}
        overlaps += any("+.0 is up" in line for line in trace)
        rollbacks += any("rolled back to version" in line for line in trace)
        if not simulation.scenario.faults:
            assert {view.status for view in simulation.history.requests.values()} == {"ok"}
    assert faults == set(OVERLAP_FAULTS)
    assert overlaps > 30
    assert rollbacks > 0


def test_a_request_that_waits_for_a_drain_is_detected(monkeypatch):
    choose_version = WeightsVersions._starting_version

    def starting_version(versions, request):
        groups = [group for group in versions._groups if request.submit.model in group.models]
        processes = versions._membership.processes(name for group in groups for name in group.workers)
        is_draining = any(process.draining_since is not None for process in processes)
        return None if is_draining else choose_version(versions, request)

    monkeypatch.setattr(WeightsVersions, "_starting_version", starting_version)
    (violation,) = run_in_process(range(FIRST_OVERLAP_SEED, FIRST_OVERLAP_SEED + 40)).violations.values()
    assert violation.startswith("I22 ")


def test_a_request_waits_for_a_group_that_scales_from_zero_during_an_update_and_not_longer(monkeypatch):
    seed = FIRST_ROLLOUT_SEED + 153
    trace = []
    simulation, violation = run_scenario(seed, trace)
    assert not violation
    assert {view.status for view in simulation.history.requests.values()} == {"ok"}
    started = [line.split()[1] for line in trace if line.endswith("is requested")]
    assert started[:2] == ["w0", "w2+"], "the other group gets its successor at the same time"
    monkeypatch.setattr("mstar.sim.simulation.MAX_SUCCESSOR_START_S", 10.0)
    _, violation = run_scenario(seed)
    assert violation.startswith("I22 ")


def test_100_scenarios_with_kills_from_outside_make_only_crashing_requests_poison():
    summary, seeds = Summary(), range(FIRST_KILL_SEED, FIRST_KILL_SEED + 100)
    for has_oom_counters in (True, False):
        some = run_in_process([seed for seed in seeds if make_scenario(seed).has_oom_counters == has_oom_counters])
        assert some.statuses.keys() == {"ok", "poison"}
        summary.merge(some)
    assert summary.violations == {}
    assert summary.scenarios == 100


def test_a_non_idempotent_walk_that_starts_in_two_attempts_is_detected():
    simulation = Simulation(replace(make_scenario(0), models={"reach": 0}))
    simulation.history.submit(0.0, "r", {}, b"")
    core = SimpleNamespace(membership=None, lifecycle=SimpleNamespace(requests={}))
    conductor = SimpleNamespace(peer=Peer("conductor", 0), core=core)

    def start(walk_name, index, attempt):
        walk = m.StartWalk("r", attempt, index, "reach", walk_name, (), {}, {}, Peer("f0", 0))
        simulation.checker.on_start_walk(conductor, walk)

    for attempt in range(2):
        start("think", 0, attempt)
    for _ in range(2):  # it has two seats
        start("act", 1, 1)
    with pytest.raises(Violation, match="I7 r starts act in attempts 1 and 2"):
        start("act", 1, 2)


def test_an_attempt_that_ends_with_fewer_outputs_than_the_client_has_diverged():
    simulation = Simulation(make_scenario(FIRST_FOCUSED_SEED))
    executions = simulation.checker.focused.executions
    rid = next(client.rid for client in simulation.scenario.clients if client.request.is_nondeterministic)
    for index in range(2):
        executions.on_emit(m.Emit(rid, 0, "Text", index, m.Value(index)))
        executions.on_delivered(rid, "Text", index, digest(index))
    for status, count in (("ok", 2), ("failed", 0)):
        executions.on_finished(m.RequestFinished(rid, status, {"Text": count}, m.Value(None)))
        assert not executions.has_diverged(rid)
    executions.on_finished(m.RequestFinished(rid, "ok", {"Text": 1}, m.Value(None)))
    assert executions.has_diverged(rid)


def test_focused_scenarios_have_contention():
    scenarios = [make_scenario(seed) for seed in range(FIRST_FOCUSED_SEED, FIRST_FOCUSED_SEED + 40)]
    by_focus = {focus: scenarios[number :: len(FOCUSES)] for number, focus in enumerate(FOCUSES)}
    for scenario in by_focus["divergence"]:
        assert scenario.kinds & {"kill", "conductor"}
        assert scenario.models.keys() <= {"talk", "sing", "guide"}, "one walk each"
    assert all(len({client.tenant for client in scenario.clients}) > 1 for scenario in by_focus["fairness"])
    assert all(client.slo.tokens_per_s for scenario in by_focus["deadlines"] for client in scenario.clients)
    assert all(scenario.costs.pages < 100 for scenario in by_focus["preemption"])


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("first", "count"),
    [
        (100_000, 25_000),
        (125_000, 25_000),
        (FIRST_SCALING_SEED + 10_000, 2_000),
        (FIRST_SHARDED_SEED + 10_000, 2_000),
        (FIRST_FOCUSED_SEED + 10_000, 2_000),
        (FIRST_PAUSE_SEED + 10_000, 2_000),
        (FIRST_ROLLOUT_SEED + 10_000, 2_000),
        (FIRST_KILL_SEED + 10_000, 2_000),
        (FIRST_AHEAD_SEED + 10_000, 1_000),
        (FIRST_LOOKAHEAD_SEED + 10_000, 2_000),
    ],
)
def test_all_scenarios(first, count):
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


def blames_every_death(history: CrashHistory, worker: Peer, death: WorkerDeath) -> bool:
    """Counts a kill from outside as a crash."""
    return record_death(history, worker, replace(death, cause=ExitCause.CRASH))


@pytest.mark.parametrize(
    ("owner", "method", "broken", "first"),
    [
        (FrontendCore, "_resubmit", does_not_resubmit, 0),
        (Link, "tick", does_not_retransmit, 0),
        (CrashHistory, "record", blames_every_death, FIRST_KILL_SEED),
    ],
    ids=["front", "link", "poison"],
)
def test_a_broken_core_is_detected(monkeypatch, owner, method, broken, first):
    monkeypatch.setattr(owner, method, broken)
    assert run_in_process(range(first, first + 60)).violations
