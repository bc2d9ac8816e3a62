"""Autoscaling and rolling updates in real processes: no stream is interrupted."""

import time

import pytest

from bench.scaling import MODEL
from mstar.launch.local_launcher import LocalLauncher
from mstar.walk.load import load_model
from tests.integration.deployment_clients import Client, Oracle, add_frontend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def oracle():
    return Oracle(load_model(str(MODEL)), [(key, 2 + key % 3) for key in range(6)])


def deployment(min_replicas, names="abcd"):
    workers = ", ".join(f'"{name}"' for name in names)
    return LocalLauncher(
        {"hum": str(MODEL)}, {"hum": f"[place]\ngenerator = {{ workers = [{workers}], min_replicas = {min_replicas} }}"}
    )


def running_workers(local):
    return sorted(name for name, state in local.health().items() if state == "up" and name != "conductor")


def wait_for(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"condition not met within {seconds} s"
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
        self.clients.append(Client(self.front_end, "hum", requests[len(self.clients) % len(requests)]))

    def check(self):
        """Check every stream against the eager run."""
        for number, client in enumerate(self.clients):
            self.oracle.check(client.wait(), number)


def test_replicas_follow_the_load(oracle, report):
    with deployment(min_replicas=1) as local:
        load = Load(add_frontend(local), oracle)
        load.keep(3, 2)
        assert running_workers(local) == ["a"]
        start = time.monotonic()
        load.keep(14, 20, lambda: len(running_workers(local)) > 1)
        scale_up_s = time.monotonic() - start
        assert len(running_workers(local)) > 1
        start = time.monotonic()
        load.keep(1, 30, lambda: len(running_workers(local)) == 1)
        scale_down_s = time.monotonic() - start
        assert len(running_workers(local)) == 1
        load.check()
        assert [reason for _, _, reason in local.recent_exits if "killed by" in reason] == []
        report(f"scale-up after {scale_up_s:.1f} s, scale-down after {scale_down_s:.1f} s, {len(load.clients)} streams")


def test_a_rolling_update_does_not_interrupt_200_streams(oracle, report):
    with deployment(min_replicas=2, names="abc") as local:
        load = Load(add_frontend(local), oracle)
        before = {peer.name: peer for peer in local.peers()}
        for _ in range(120):
            load.submit()
        weights_rolled = local.reload_weights()
        start = time.monotonic()
        load.keep(8, 30, weights_rolled.is_set)
        duration_s = time.monotonic() - start
        assert weights_rolled.is_set()
        assert len(running_workers(local)) >= 2
        after = {peer.name: peer for peer in local.peers()}
        assert all(after[name] != before.get(name) for name in running_workers(local))
        during = len(load.clients)
        while len(load.clients) < 200:
            load.submit()
        load.check()
        report(
            f"{len(load.clients)} streams, {during} of them before every worker was replaced, after {duration_s:.1f} s"
        )


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
