"""CPU cost of tokens and requests: growth of CPU times over growth of counts, by process."""

import pytest

from mstar.server.telemetry import process_costs
from mstar.server.telemetry.metrics import Metrics
from mstar.server.telemetry.process_costs import ProcessCosts


class Server:
    """Metrics of a server with one process of each role, sampled every 10 s."""

    def __init__(self):
        self.metrics, self.now = Metrics(), 0.0
        self.costs = ProcessCosts(self.metrics)
        self.end_interval(front=1_000_000, conductor=2_000_000, worker=(3_000_000, 1_000_000))

    def end_interval(self, front, conductor, worker):
        """Sample these CPU times in microseconds; the worker has a second one, inside ops."""
        self.now += 10
        processes = self.metrics.processes
        processes.update("front", {"cpu_us": front}, "frontend")
        processes.update("conductor", {"cpu_us": conductor}, "conductor")
        processes.update("w0", {"cpu_us": worker[0], "op_cpu_us": worker[1]}, "worker")
        self.costs.sample(self.now)

    def count(self, tokens, requests):
        self.metrics.generation_tokens.labels("m").inc(tokens)
        for reason in ("stop", "cancelled"):
            self.metrics.responses.labels("m", reason).inc(requests / 2)

    def by_process(self):
        return {one.process: one for one in self.costs.costs()}


@pytest.fixture
def server():
    return Server()


def test_there_are_no_costs_before_the_end_of_the_first_interval(server):
    assert server.costs.costs() == []


def test_costs_are_the_growth_of_cpu_time_for_each_token_and_request(server):
    server.count(tokens=1000, requests=20)
    server.end_interval(front=1_050_000, conductor=2_002_000, worker=(4_000_000, 1_800_000))
    costs = server.by_process()
    assert {name: one.role for name, one in costs.items()} == {
        "front": "frontend",
        "conductor": "conductor",
        "w0": "worker",
    }
    assert {name: one.cpu_s_per_token for name, one in costs.items()} == pytest.approx(
        {"front": 50e-6, "conductor": 2e-6, "w0": 1e-3}
    )
    assert costs["front"].cpu_s_per_request == pytest.approx(2.5e-3)
    assert {name: one.op_share for name, one in costs.items()} == {
        "front": None,
        "conductor": None,
        "w0": pytest.approx(0.8),
    }
    assert costs["w0"].cores == pytest.approx(0.1)


def test_an_idle_minute_has_no_costs(server):
    server.end_interval(front=1_050_000, conductor=2_002_000, worker=(3_000_000, 1_000_000))
    front, worker = server.by_process()["front"], server.by_process()["w0"]
    assert (front.cpu_s_per_token, front.cpu_s_per_request, front.cores) == (None, None, pytest.approx(0.005))
    assert worker.op_share is None


def test_a_restarted_process_counts_from_zero(server):
    server.count(tokens=100, requests=1)
    server.end_interval(front=1_000_000, conductor=500_000, worker=(3_000_000, 1_000_000))
    assert server.by_process()["conductor"].cpu_s_per_request == pytest.approx(0.5)


def test_a_new_process_counts_from_its_first_sample_and_a_removed_one_is_left_out(server):
    server.metrics.processes.update("w1", {"cpu_us": 60_000_000, "op_cpu_us": 0}, "worker")
    server.count(tokens=100, requests=2)
    server.end_interval(front=1_000_000, conductor=2_000_000, worker=(3_000_000, 1_000_000))
    assert server.by_process()["w1"].cpu_s_per_token == 0
    server.metrics.processes.retain({"front", "conductor", "w0"})
    assert server.by_process().keys() == {"front", "conductor", "w0"}


def test_a_minute_is_kept(server):
    server.count(tokens=100, requests=2)
    for _ in range(process_costs.MAX_INTERVALS + 1):
        server.end_interval(front=2_000_000, conductor=2_000_000, worker=(3_000_000, 1_000_000))
    assert server.by_process()["front"].cpu_s_per_token is None
