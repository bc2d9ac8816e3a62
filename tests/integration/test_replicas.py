"""Autoscaling and rolling updates in real processes: no stream is interrupted."""

import time

import pytest

from bench.scaling import MODEL
from mstar.launch.local_launcher import LocalLauncher
from mstar.walk.load import load_model
from tests.integration.deployment_clients import REQUEST_TIMEOUT_S, Client, Oracle, add_frontend, wait_for_clients

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCALING_TIMEOUT_S = 90.0
"""Seconds to wait for started, stopped or replaced workers.

How long that takes follows from the time of a start: a worker is kept for three times as long before it is stopped.
"""


@pytest.fixture(scope="module")
def oracle():
    return Oracle(load_model(str(MODEL)), [(key, 2 + key % 3) for key in range(6)])


def deployment(min_replicas, names="abcd", **options):
    workers = ", ".join(f'"{name}"' for name in names)
    placement = f"[place]\ngenerator = {{ workers = [{workers}], min_replicas = {min_replicas} }}"
    return LocalLauncher({"hum": str(MODEL)}, {"hum": placement}, **options)


def running_workers(local):
    return sorted(name for name, state in local.health().items() if state == "up" and name != "conductor")


def wait_for(condition):
    deadline = time.monotonic() + SCALING_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"condition not met within {SCALING_TIMEOUT_S} s"
        time.sleep(0.05)


class Load:
    """Open-loop load: requests at a fixed rate, independent of their completion."""

    def __init__(self, front_end, oracle):
        self.front_end = front_end
        self.oracle = oracle
        self.clients = []
        self._due = time.monotonic()

    def keep(self, rate, seconds, is_enough=lambda: False):
        """Submit at a rate for some seconds, or until `is_enough`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not is_enough():
            if time.monotonic() >= self._due:
                self.submit()
                self._due = max(self._due, time.monotonic() - 0.1) + 1 / rate
            time.sleep(0.005)

    def submit(self):
        requests = self.oracle.requests
        request = requests[len(self.clients) % len(requests)]
        self.clients.append(Client(self.front_end, "hum", request, timeout_s=REQUEST_TIMEOUT_S))

    def check(self):
        """Check every stream against the eager run."""
        wait_for_clients(self.clients)
        for number, client in enumerate(self.clients):
            self.oracle.check(client, number)


def test_replicas_follow_the_load(oracle, report):
    # Without a standby: the light load must not compete with its imports, or streams are late and a replica starts.
    with deployment(min_replicas=1, names="ab", standby=False) as local:
        load = Load(add_frontend(local), oracle)
        load.keep(3, 2)
        assert running_workers(local) == ["a"]
        start = time.monotonic()
        load.keep(14, SCALING_TIMEOUT_S, lambda: len(running_workers(local)) > 1)
        scale_up_s = time.monotonic() - start
        assert len(running_workers(local)) > 1
        start = time.monotonic()
        load.keep(1, SCALING_TIMEOUT_S, lambda: len(running_workers(local)) == 1)
        scale_down_s = time.monotonic() - start
        assert len(running_workers(local)) == 1
        load.check()
        assert [reason for _, _, reason in local.recent_exits if "killed by" in reason] == []
        report(f"scale-up after {scale_up_s:.1f} s, scale-down after {scale_down_s:.1f} s, {len(load.clients)} streams")


@pytest.mark.nightly
def test_a_rolling_update_does_not_interrupt_200_streams(oracle, report):
    with deployment(min_replicas=2, names="abc") as local:
        load = Load(add_frontend(local), oracle)
        before = {peer.name: peer for peer in local.peers()}
        for _ in range(120):
            load.submit()
        weights_rolled = local.reload_weights()
        start = time.monotonic()
        load.keep(8, SCALING_TIMEOUT_S, weights_rolled.is_set)
        duration_s = time.monotonic() - start
        assert weights_rolled.is_set()
        assert len(running_workers(local)) >= 2
        after = {peer.name: peer for peer in local.peers()}
        assert all(after[name] != before.get(name) for name in after if name != "conductor")
        during = len(load.clients)
        while len(load.clients) < 200:
            load.submit()
        load.check()
        report(
            f"{len(load.clients)} streams, {during} of them before every worker was replaced, after {duration_s:.1f} s"
        )


def test_streams_of_the_only_worker_are_not_interrupted_by_its_successor(report):
    oracle = Oracle(load_model(str(MODEL)), [(key, 40) for key in range(2)])
    with deployment(min_replicas=1, names="a") as local:
        load = Load(add_frontend(local), oracle)
        load.submit()
        weights_rolled = local.reload_weights()
        load.keep(0.5, SCALING_TIMEOUT_S, weights_rolled.is_set)  # a stream takes 1.6 s
        assert weights_rolled.is_set()
        assert [(peer.name, peer.incarnation) for peer in local.peers()] == [("conductor", 0), ("a+", 0)]
        load.check()
        report(f"{len(load.clients)} streams, longest gap {max(client.max_gap_s for client in load.clients):.2f} s")


@pytest.mark.nightly
def test_a_model_at_zero_replicas_starts_for_the_first_request(oracle, report):
    with deployment(min_replicas=0, names="ab") as local:
        load = Load(add_frontend(local), oracle)
        assert running_workers(local) == []
        load.submit()
        load.check()
        first = load.clients[0].duration_s
        assert len(running_workers(local)) == 1
        start = time.monotonic()
        wait_for(lambda: not running_workers(local))
        idle = time.monotonic() - start
        load.submit()
        load.check()
        report(f"served from zero in {first:.1f} s, {load.clients[1].duration_s:.1f} s; scaled to zero in {idle:.1f} s")
