"""500 simulated scenarios give clients the answers that were recorded before the cores were redesigned.

Seeds below 1,000,000,000 have fixed workers, seeds above autoscaled ones, seeds above 2,000,000,000 several conductors.
Do not regenerate `recorded_answers.json` after a refactoring: a difference is a change of behavior.

Six changes were intended. A tenant can queue its share of a full queue (`Admission`): in 16 scenarios with two
tenants other requests are rejected. A silent worker is not killed after 1.1 s (`FailureDetector`): in 9 scenarios with
pauses requests wait or move. A worker that is killed from outside accuses no request (`CrashHistory`): in 11 scenarios
with kills requests do not run alone afterwards. Heartbeats are not acknowledged (`Link.send_unreliable`), so the
simulated network, which draws for every frame, loses and delays other frames: in 112 scenarios. A lost worker counts as
starting also without autoscaling (`Autoscaler.on_worker_lost`), so the autoscaler has settled when a rolling update
comes later, and it begins sooner: in 2 of these scenarios. Parts of states are sent ahead (`StateAhead`), so the
network loses and delays other frames: in 5. The first digests of all 131 are kept under `superseded`.
"""

import hashlib
import json
from pathlib import Path

import pytest

from mstar.sim.runner import run_scenario
from tests.tiers import ci_cases

FILE = json.loads(Path(__file__).with_name("recorded_answers.json").read_text("utf-8"))
RECORDED = FILE["answers"]
SEEDS = sorted(map(int, RECORDED))
GROUPS = 10


def digest_of_answers(seed: int) -> str:
    """Hash what each client received: final status, number of emissions by kind, result."""
    simulation, violation = run_scenario(seed)
    assert not violation, f"seed {seed}: {violation}"
    rows = []
    for request_id, view in sorted(simulation.history.requests.items()):
        status = view.status or ("left" if view.has_disconnected else "open")
        result = view.expected_result.decode() if status == "ok" else ""
        rows.append([request_id, status, dict(sorted(view.delivered.items())), result])
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def test_there_are_500_of_all_three_kinds():
    assert len(SEEDS) == 500
    assert {seed // 1_000_000_000 for seed in SEEDS} == {0, 1, 2}


def test_only_131_answers_were_superseded():
    superseded = FILE["superseded"]
    assert len(superseded) == 131
    assert all(RECORDED[seed] != digest for seed, digest in superseded.items())


@pytest.mark.slow
@pytest.mark.parametrize("group", ci_cases(range(GROUPS), 0))
def test_answers_are_those_recorded_before_the_redesign(group):
    seeds = SEEDS[group::GROUPS]
    assert {seed: digest_of_answers(seed) for seed in seeds} == {seed: RECORDED[str(seed)] for seed in seeds}
