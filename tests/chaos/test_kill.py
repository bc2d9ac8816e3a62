"""kill -9 of any process, at any time: every stream is served whole, and no client waits long."""

import os
import random
import signal
import time

import pytest

from mstar.launch.local_launcher import LocalLauncher
from tests.chaos.deployment import (
    TRAPS,
    TRAPS_FILE,
    WORKERS,
    RequestRound,
    TrapRequest,
    build_oracles,
    child_peers,
    is_fully_up,
    launch_deployment,
    percentile,
    wait_until,
    wait_until_idle,
)
from tests.integration.deployment_clients import Client, Oracle, add_frontend

pytestmark = pytest.mark.slow
SEED = 1
DETECTION_S, STALL_S = 0.2, 2.0
IDLE_ROUND_S = 0.7
"""So long a round takes when the machine has nothing else to do. On one that has, all takes longer, and may."""
SLOWDOWN_FACTOR = 3.0
"""The bars are for a machine at peace. Tests share theirs with each other: what they print is the figure."""
NIGHTLY = [pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("trials", [30, pytest.param(105, marks=NIGHTLY)])
def test_a_kill_is_not_noticed(trials, report):
    chosen, known = random.Random(SEED), build_oracles()
    seen, silences, lengths = [], [], []
    with launch_deployment() as (local, front_end):
        for _ in range(3):
            calm = RequestRound(front_end, known)
            calm.wait_and_check()
        life = max(client.duration_s for client in calm.clients)
        for trial in range(trials):
            wait_until(lambda: is_fully_up(local))
            victim, after = chosen.choice((*WORKERS, "conductor")), chosen.random() * life * 0.8
            what = RequestRound(front_end, known)
            time.sleep(after)
            hurt, killed = what.unfinished, time.monotonic()
            os.kill(local.pid(victim), signal.SIGKILL)
            try:
                what.wait_and_check()
            except Exception as error:
                error.add_note(f"seed {SEED}, trial {trial}: {victim} was killed after {after:.3f} s")
                raise
            wait_until(lambda trial=trial: len(local.recent_exits) == trial + 1)
            seen.append(local.recent_exits[trial][0] - killed)
            silences += [client.max_gap_s for client in hurt]
            lengths.append(time.monotonic() - what.start)
        wait_until(lambda: is_fully_up(local))
        wait_until_idle(front_end, child_peers(local))
        assert len(local.recent_exits) == trials, "nobody died of itself"
    stall = " ".join(f"p{100 * part:.0f} {percentile(silences, part):.2f}" for part in (0.5, 0.9, 0.99, 1.0))
    report(
        f"kill, seed {SEED}: {trials} kills hit {len(silences)} of {16 * trials} streams; a round takes {life:.2f} s "
        f"in peace, {max(lengths):.2f} s at most; seen within {1000 * max(seen):.0f} ms; longest silence in s: {stall}"
    )
    assert percentile(seen, 0.99) <= DETECTION_S * SLOWDOWN_FACTOR
    assert percentile(silences, 0.99) <= STALL_S * max(SLOWDOWN_FACTOR, life / IDLE_ROUND_S)


def test_a_late_kill_costs_no_more_than_what_is_computed_again(report):
    """All were in the batch that a worker died with; only around that call each is run alone."""
    oracle = Oracle(TRAPS, [TrapRequest(key, steps=300) for key in range(16)])
    with LocalLauncher({"traps": TRAPS_FILE}, {"traps": '[place]\npart = ["a", "b"]'}, standby=False) as local:
        front_end = add_frontend(local)
        clients = [Client(front_end, "traps", ask) for ask in oracle.requests]
        wait_until(lambda: all(len(client.log) > 200 for client in clients))
        os.kill(local.pid("a"), signal.SIGKILL)
        for number, client in enumerate(clients):
            oracle.check(client.wait(), number)
    silence = max(client.max_gap_s for client in clients)
    report(f"a kill after 200 of 300 steps: longest silence {silence:.2f} s")
    assert silence <= STALL_S * SLOWDOWN_FACTOR
