"""Freezes (SIGSTOP) of single processes and of the whole server: streams are whole, no healthy process is killed."""

import os
import signal
import time

import pytest

from tests.chaos.deployment import wait_until
from tests.chaos.frozen_server import STREAMS, StreamClient, check_streams, start_frozen_server

pytestmark = pytest.mark.slow
CI_S = (0.6, 2.5)
NIGHTLY_S = tuple(0.6 * 100 ** (number / 19) for number in range(20))
"""20 durations from 0.6 s to 60 s."""
IN_CI = [pytest.mark.timeout(180)]
NIGHTLY = [pytest.mark.nightly, pytest.mark.timeout(1800)]
CONDUCTOR_TIMEOUT_S = 5.0
RECOVERY_S = 40.0
KINDS = ("tree", "conductor.0", "a.0", "frontend")


@pytest.mark.parametrize(  # timeouts are marks of the cases: one of the function would hold for all of them
    ("kind", "workers", "durations"),
    [
        pytest.param("tree", ("a", "b"), CI_S, id="tree-two workers", marks=IN_CI),
        pytest.param("a.0", ("a",), CI_S, id="a.0-one worker", marks=IN_CI),
        *(
            pytest.param(kind, workers, NIGHTLY_S, id=f"{kind}-{len(workers)}-nightly", marks=NIGHTLY)
            for kind in KINDS
            for workers in (("a",), ("a", "b"))
        ),
    ],
)
def test_a_freeze_costs_no_process(tmp_path, kind, workers, durations, report):
    gaps = []
    with start_frozen_server(tmp_path, *workers) as server:
        before = server.pids()
        for seconds in durations:
            pids = server.pids()
            kind_now = next(peer for peer in (*pids, "tree") if peer.split(".")[0] == kind.split(".")[0])
            clients = [StreamClient(server.url) for _ in range(STREAMS)]
            wait_until(lambda clients=clients: all(client.letters for client in clients))
            with server.frozen(kind_now):
                time.sleep(seconds)
            check_streams(clients, RECOVERY_S)
            gaps.append((seconds, max(client.max_gap_s for client in clients)))
            after = server.pids()
            is_hung = kind == "conductor.0" and seconds > CONDUCTOR_TIMEOUT_S - 1
            same = {peer for peer in before if not (is_hung and peer.startswith("conductor"))}
            assert {peer: after.get(peer) for peer in same} == {peer: before[peer] for peer in same}, f"{seconds} s"
            before = after
    report(f"freeze of {kind}, {len(workers)} workers: " + ", ".join(f"{s:.1f} s: gap {gap:.1f} s" for s, gap in gaps))


@pytest.mark.timeout(120)
def test_a_hung_conductor_is_replaced_and_streams_continue(tmp_path, report):
    with start_frozen_server(tmp_path, "a", "b") as server:
        before = server.pids()
        clients = [StreamClient(server.url) for _ in range(STREAMS)]
        wait_until(lambda: all(client.letters for client in clients))
        hung_at = time.monotonic()
        with server.frozen("conductor.0"):
            wait_until(lambda: "conductor.1" in server.pids(), 30.0)
            replaced_s = time.monotonic() - hung_at
            check_streams(clients, 60.0)
        after = server.pids()
    gap = max(client.max_gap_s for client in clients)
    report(f"a conductor that hung was replaced after {replaced_s:.1f} s; longest gap {gap:.1f} s")
    assert {peer: after[peer] for peer in ("a.0", "b.0")} == {peer: before[peer] for peer in ("a.0", "b.0")}
    assert replaced_s <= 2 * CONDUCTOR_TIMEOUT_S


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_hung_worker_without_a_replica_is_replaced_within_two_minutes_and_a_half(tmp_path, report):
    with start_frozen_server(tmp_path, "a") as server:
        clients = [StreamClient(server.url) for _ in range(STREAMS)]
        wait_until(lambda: all(client.letters for client in clients))
        hung_at = time.monotonic()
        os.kill(server.pids()["a.0"], signal.SIGSTOP)
        check_streams(clients, 200.0)
        report(f"a worker that hung was replaced and its streams ended after {time.monotonic() - hung_at:.0f} s")
        assert time.monotonic() - hung_at <= 150.0
        assert "a.1" in server.pids()
