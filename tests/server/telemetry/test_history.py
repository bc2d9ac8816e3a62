"""History of the server's figures: differences of counters over each interval, for one hour."""

import pytest

from mstar.server.telemetry import history
from mstar.server.telemetry.history import History, quantile
from mstar.server.telemetry.metrics import Metrics
from mstar.wire.stats import DeadlineStats, OpTotals


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Server:
    """Metrics of a server, and their history with a clock of its own."""

    def __init__(self):
        self.metrics, self.ops, self.deadlines, self.clock = Metrics(), {}, {}, Clock()
        self.history = History(self.metrics, self.ops, self.deadlines, self.clock)
        self.history.sample(0)

    def end_interval(self, running=0):
        self.clock.now += 10
        self.history.sample(running)
        return {name: values[-1] for name, values in self.history.columns().items()}


@pytest.fixture
def server():
    return Server()


def test_an_idle_interval_has_rates_of_zero_and_no_latency(server):
    sample = server.end_interval()
    assert (sample["responses_per_s"], sample["errors_per_s"], sample["cores"]) == (0, 0, 0)
    assert [sample[name] for name in ("ttfo_p50_s", "ttfo_p99_s", "on_time", "batch_size")] == [None] * 4


def test_rates_are_of_the_interval_and_clients_that_leave_are_no_error(server):
    for reason in ("stop", "a reason of the model", "cancelled", "model_error", "overloaded"):
        server.metrics.responses.labels("m", reason).inc(10)
    server.metrics.response_duration.labels("m").observe(1)
    for _ in range(19):
        server.metrics.response_duration.labels("m").observe(1)
    sample = server.end_interval()
    assert (sample["responses_per_s"], sample["errors_per_s"]) == (5, 2)
    assert server.end_interval()["responses_per_s"] == 0


def test_latency_is_of_the_interval(server):
    for _ in range(100):
        server.metrics.time_to_first_output.labels("m", "Text").observe(0.15)
    assert 0.1 < server.end_interval()["ttfo_p50_s"] <= 0.2
    server.metrics.time_to_first_output.labels("m", "Audio").observe(3)
    assert 2 < server.end_interval()["ttfo_p50_s"] <= 5


def test_deadlines_and_batches_are_summed_over_workers(server):
    server.deadlines |= {"a": [DeadlineStats("m", "Audio", 30, 3)], "b": [DeadlineStats("m", "Audio", 10, 1)]}
    server.ops["a"] = [OpTotals("m", "lm", "decode", 10, {}, 40), OpTotals("m", "lm", "prefill", 10, {}, 20)]
    sample = server.end_interval()
    assert (sample["on_time"], sample["batch_size"]) == (0.9, 3.0)


def test_a_restarted_process_makes_no_negative_figures(server):
    server.ops["a"] = [OpTotals("m", "lm", "decode", 10, {}, 40)]
    server.deadlines["a"] = [DeadlineStats("m", "Audio", 30, 3)]
    server.metrics.processes.update("a", {"cpu_us": 9_000_000, "rss_bytes": 100})
    server.end_interval()
    server.ops["a"] = [OpTotals("m", "lm", "decode", 1, {}, 1)]
    server.deadlines["a"] = [DeadlineStats("m", "Audio", 1, 0)]
    server.metrics.processes.update("a", {"cpu_us": 10_000, "rss_bytes": 60})
    sample = server.end_interval()
    assert (sample["on_time"], sample["batch_size"], sample["cores"], sample["memory_bytes"]) == (None, None, 0, 60)


def test_memory_cpu_and_the_queue_are_sums_of_all_processes(server):
    server.metrics.processes.update("a", {"cpu_us": 5_000_000, "rss_bytes": 100})
    server.metrics.processes.update("conductor", {"cpu_us": 10_000_000, "rss_bytes": 20, "queue": 7})
    sample = server.end_interval(running=3)
    assert (sample["cores"], sample["memory_bytes"], sample["running"], sample["queued"]) == (1.5, 120, 3, 7)


def test_one_hour_is_kept(server):
    for _ in range(history.MAX_SAMPLES + 5):
        server.end_interval()
    columns = server.history.columns()
    assert {len(values) for values in columns.values()} == {history.MAX_SAMPLES}
    assert history.MAX_SAMPLES * history.SAMPLE_INTERVAL_S == 3600


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ({}, 0.5, None),
        ({1.0: 0, float("inf"): 0}, 0.5, None),
        ({1.0: 10, 2.0: 10, float("inf"): 10}, 0.5, 0.5),
        ({1.0: 0, 2.0: 10, float("inf"): 10}, 0.5, 1.5),
        ({1.0: 0, 2.0: 0, float("inf"): 10}, 0.5, 2.0),
    ],
)
def test_quantiles_are_interpolated(buckets, share, expected):
    assert quantile(buckets, share) == expected
