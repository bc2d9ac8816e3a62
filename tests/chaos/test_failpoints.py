"""A process dies exactly where it matters: before a message is taken, between two steps, with a batch in the engine."""

import pytest

from mstar.config import Options
from tests.chaos.parts import Round, launched, oracles, peers, settle, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

POINTS = {
    "conductor.submit": 20,
    "conductor.place": 30,
    "conductor.arrive": 25,
    "conductor.conclude": 22,
    "conductor.finish": 18,
    "worker.begin": 12,
    "worker.go": 14,
    "worker.hear": 9,
    "worker.deliver": 11,
    "worker.emit": 7,
    "worker.arrive": 10,
    "worker.depart": 3,
    "worker.end": 8,
    "engine.batch": 150,
    "engine.export": 2,
    "engine.fork": 5,
}
"""Where a process dies, and at which time that it comes there: in the second round of requests, about."""


@pytest.mark.parametrize("half", [0, 1])
def test_a_death_at_a_named_point_is_not_noticed(half, report):
    known, figures = oracles(), []
    for name, when in list(POINTS.items())[half::2]:
        with launched(options=Options(failpoints={name: f"kill@{when}"}), spare=False) as (local, front_end):
            worst = 0.0
            for _ in range(3):
                what = Round(front_end, known)
                what.check()
                worst = max(worst, *what.silences)
            deaths = [str(peer) for _, peer, _ in local.deaths]
            wait_until(lambda local=local: set(local.health().values()) == {"up"})
            settle(front_end, peers(local))
            local.stop(grace_s=0)
        assert deaths, f"nobody came to {name} for the {when}th time"
        assert all(peer.endswith(".0") for peer in deaths), "who was started anew lives"
        figures.append(f"{name} {len(deaths)} dead, {worst:.2f} s")
    report(f"deaths at failpoints, longest silence: {'; '.join(figures)}")
