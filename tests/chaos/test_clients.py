"""Misbehaving clients: a storm of disconnects, and a client that reads nothing."""

import random
import time

import pytest

from mstar.config import RuntimeConfig
from mstar.launch.local_launcher import LocalLauncher
from tests.chaos.deployment import (
    REQUEST_MIX,
    TRAPS,
    TRAPS_FILE,
    RequestRound,
    TrapRequest,
    build_oracles,
    collect_stats,
    launch_deployment,
    wait_until,
    wait_until_idle,
)
from tests.integration.deployment_clients import Client, Oracle, add_frontend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
STORM, STAYING, LASTS_S = 500, 50, 3.0
WINDOW = 32


def process_resources(front_end, local):
    """Resources that do not depend on requests: open files and threads of every process, and the processes."""
    counts = {
        what: n for what, n in collect_stats(front_end, local.peers()).items() if what.endswith((".fds", ".threads"))
    }
    return counts | {"launcher.fds": local.stats()["fds"]} | local.stats()["processes"]


def test_a_storm_of_disconnects_leaves_nothing(report):
    rng, oracles = random.Random(6), build_oracles()
    with launch_deployment(options=RuntimeConfig(max_queued_requests=STORM), standby=False) as (local, front_end):
        for _ in range(2):
            RequestRound(front_end, oracles).wait_and_check()
        wait_until_idle(front_end, local.peers())
        before = process_resources(front_end, local)
        requests = [REQUEST_MIX[number % len(REQUEST_MIX)] for number in range(STORM)]
        start = time.monotonic()
        clients = [Client(front_end, name, oracles[name].requests[number], timeout_s=90) for name, number in requests]
        staying = set(rng.sample(range(STORM), STAYING))
        disconnects = sorted((rng.random() * LASTS_S, number) for number in range(STORM) if number not in staying)
        for moment, number in disconnects:
            time.sleep(max(0.0, start + moment - time.monotonic()))
            clients[number].close()
        disconnected = sum(clients[number].end is None for _, number in disconnects)
        for number in staying:
            name, index = requests[number]
            oracles[name].check(clients[number].wait(60), index)
        cleanup_s = wait_until_idle(front_end, local.peers())
        assert process_resources(front_end, local) == before
        assert not local.recent_exits
    report(
        f"storm: {disconnected} of {STORM} streams disconnected, {STAYING} served; nothing left after {cleanup_s:.2f} s"
    )


def test_a_client_that_reads_nothing_does_not_block_others(report):
    oracle = Oracle(TRAPS, [TrapRequest(key, steps=60) for key in range(8)])
    idle_oracle = Oracle(TRAPS, [TrapRequest(99, steps=400)])
    with LocalLauncher(
        {"traps": TRAPS_FILE}, options=RuntimeConfig(max_undelivered_outputs=WINDOW), standby=False
    ) as local:
        front_end = add_frontend(local)

        def serve():
            clients = [Client(front_end, "traps", request) for request in oracle.requests]
            for number, client in enumerate(clients):
                oracle.check(client.wait(), number)
            return max(client.duration_s for client in clients)

        alone = min(serve() for _ in range(3))
        idle = Client(front_end, "traps", idle_oracle.requests[0], is_idle=True)
        wait_until(lambda: idle.output_counts.get("Text", 0) >= WINDOW)
        beside = min(serve() for _ in range(3))
        behind = idle.output_counts["Text"]
        report(f"slow client: others take {beside:.2f} s beside it, {alone:.2f} s without; it is {behind} behind")
        assert behind == WINDOW
        assert idle.end is None
        assert beside < 2 * alone
        idle.resume_reading()
        idle_oracle.check(idle.wait(), 0)
        wait_until_idle(front_end, local.peers())
