"""Replicas that come and go, in real processes: as many as there is work for, and no stream notices."""

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


def wait_for(what, seconds=30.0):
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


class Load:
    """Streams that come at a rate, whatever happens to those before."""

    def __init__(self, front_end, oracle):
        self.front_end = front_end
        self.oracle = oracle
        self.clients = []
        self._due = time.monotonic()

    def keep(self, rate, seconds, is_enough=lambda: False):
        """Ask so often for so long, or until it is enough."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not is_enough():
            if time.monotonic() >= self._due:
                self.ask()
                self._due = max(self._due, time.monotonic() - 0.1) + 1 / rate
            time.sleep(0.005)

    def ask(self):
        requests = self.oracle.requests
        self.clients.append(Client(self.front_end, "hum", requests[len(self.clients) % len(requests)]))

    def check(self):
        """Every stream is whole, and what the model computes eagerly."""
        for number, client in enumerate(self.clients):
            self.oracle.judge(client.wait(), number)


def test_replicas_follow_the_load(oracle, report):
    with deployment(min_replicas=1) as local:
        load = Load(add_frontend(local), oracle)
        load.keep(3, 2)
        assert running_workers(local) == ["a"]
        begun = time.monotonic()
        load.keep(14, 20, lambda: len(running_workers(local)) > 1)
        grew = time.monotonic() - begun
        assert len(running_workers(local)) > 1
        begun = time.monotonic()
        load.keep(1, 30, lambda: len(running_workers(local)) == 1)
        shrank = time.monotonic() - begun
        assert len(running_workers(local)) == 1
        load.check()
        assert [why for _, _, why in local.recent_exits if "signal" in why] == []
        report(f"a second worker after {grew:.1f} s, one again after {shrank:.1f} s, {len(load.clients)} streams")


def test_200_streams_do_not_notice_that_every_worker_is_replaced(oracle, report):
    with deployment(min_replicas=2, names="abc") as local:
        load = Load(add_frontend(local), oracle)
        before = {peer.name: peer for peer in local.peers()}
        for _ in range(120):
            load.ask()
        renewed = local.reload_weights()
        begun = time.monotonic()
        load.keep(8, 30, renewed.is_set)
        took = time.monotonic() - begun
        assert renewed.is_set()
        assert len(running_workers(local)) >= 2
        after = {peer.name: peer for peer in local.peers()}
        assert all(after[name] != before.get(name) for name in running_workers(local))
        during = len(load.clients)
        while len(load.clients) < 200:
            load.ask()
        load.check()
        report(f"{len(load.clients)} streams, {during} of them before every worker was replaced, after {took:.1f} s")


def test_a_model_at_zero_replicas_starts_for_the_first_request(oracle, report):
    with deployment(min_replicas=0, names="ab") as local:
        load = Load(add_frontend(local), oracle)
        assert running_workers(local) == []
        load.ask()
        load.check()
        first = load.clients[0].seconds
        assert len(running_workers(local)) == 1
        begun = time.monotonic()
        wait_for(lambda: not running_workers(local))
        idle = time.monotonic() - begun
        load.ask()
        load.check()
        report(f"served from zero in {first:.1f} s and {load.clients[1].seconds:.1f} s; asleep after {idle:.1f} s")
