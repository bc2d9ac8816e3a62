"""Kills at every failpoint: clients do not notice."""

import pytest

from mstar.config import RuntimeConfig
from tests.chaos.deployment import (
    RequestRound,
    build_oracles,
    launch_deployment,
    wait_until,
    wait_until_idle,
)
from tests.tiers import ci_cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

POINTS = {
    "conductor.submit": 20,
    "conductor.place": 30,
    "conductor.on_seat_done": 25,
    "conductor.finish_walk": 22,
    "conductor.finish": 18,
    "worker.start_walk": 12,
    "worker.start_runs": 14,
    "worker.on_message": 9,
    "worker.deliver": 11,
    "worker.emit": 7,
    "worker.finish_seat": 10,
    "worker.finish_export": 3,
    "worker.release_attempt": 8,
    "engine.batch": 150,
    "engine.export": 2,
    "engine.fork": 5,
}
"""Hit number at which a process is killed, by failpoint: about in the second round of requests.

The round depends on the sizes of batches, and so on the speed of the machine.
"""
IN_CI = ("conductor.on_seat_done", "conductor.finish", "worker.deliver", "worker.finish_export", "engine.batch")
MAX_ROUNDS = 10
"""Maximum rounds of requests until a process is killed."""
RECOVERY_TIMEOUT_S = 60.0
"""Seconds to wait for a restart, and for the release of requests. Neither ever happens after a mistake."""


@pytest.fixture(scope="module")
def oracles():
    return build_oracles()


@pytest.mark.parametrize("name", ci_cases(POINTS, *IN_CI))
def test_a_death_at_a_failpoint_is_not_noticed(name, oracles, report):
    failpoints = {name: f"kill@{POINTS[name]}"}
    rounds = []
    with launch_deployment(options=RuntimeConfig(failpoints=failpoints), standby=False) as (local, front_end):

        def run_round():
            rounds.append(RequestRound(front_end, oracles))
            rounds[-1].wait_and_check()

        while not local.recent_exits:
            assert len(rounds) < MAX_ROUNDS, f"{name} was not hit {POINTS[name]} times"
            run_round()
        run_round()  # also with restarted processes
        wait_until(lambda: set(local.health().values()) == {"up"}, RECOVERY_TIMEOUT_S)
        exits = [str(peer) for _, peer, _ in local.recent_exits]
        wait_until_idle(front_end, local.peers(), RECOVERY_TIMEOUT_S)
        local.stop(drain_timeout_s=0)
    assert all(peer.endswith(".0") for peer in exits), "restarted processes stay up"
    worst = max(gap_s for requests in rounds for gap_s in requests.max_gaps_s)
    report(f"{name}: {len(exits)} exits in {len(rounds)} rounds, longest gap {worst:.2f} s")
