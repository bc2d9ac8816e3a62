"""Kills at every failpoint: clients do not notice."""

import pytest

from mstar.config import RuntimeConfig
from tests.chaos.deployment import (
    RequestRound,
    build_oracles,
    child_peers,
    launch_deployment,
    wait_until,
    wait_until_idle,
)

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
"""Hit number at which a process is killed, by failpoint: about in the second round of requests."""


@pytest.mark.parametrize("half", [0, 1])
def test_a_death_at_a_named_point_is_not_noticed(half, report):
    oracles, lines = build_oracles(), []
    for name, when in list(POINTS.items())[half::2]:
        with launch_deployment(options=RuntimeConfig(failpoints={name: f"kill@{when}"}), standby=False) as (
            local,
            front_end,
        ):
            worst = 0.0
            for _ in range(3):
                requests = RequestRound(front_end, oracles)
                requests.wait_and_check()
                worst = max(worst, *requests.max_gaps_s)
            exits = [str(peer) for _, peer, _ in local.recent_exits]
            wait_until(lambda local=local: set(local.health().values()) == {"up"})
            wait_until_idle(front_end, child_peers(local))
            local.stop(drain_timeout_s=0)
        assert exits, f"{name} was not hit {when} times"
        assert all(peer.endswith(".0") for peer in exits), "restarted processes stay up"
        lines.append(f"{name} {len(exits)} exits, {worst:.2f} s")
    report(f"exits at failpoints, longest gap: {'; '.join(lines)}")
