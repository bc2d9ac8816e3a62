"""Metrics of several front ends on one page."""

from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from mstar.server.frontends.merged_metrics import export_families, merge_families
from mstar.server.frontends.siblings import Siblings
from mstar.server.telemetry.history import SAMPLED_METRICS, History
from mstar.server.telemetry.metrics import Metrics


class Page(Collector):
    def __init__(self, *arguments):
        self._arguments = arguments

    def collect(self):
        return merge_families(*self._arguments)


def make_metrics(responses, compat=None):
    metrics = Metrics()
    metrics.register_compat_names(compat)
    metrics.responses.labels("bird", "stop").inc(responses)
    metrics.response_duration.labels("bird").observe(0.1)
    metrics.requests_in_progress.set(responses)
    metrics.processes.update("conductor", {"queue": 5})
    return metrics


def test_each_series_of_a_front_end_has_its_name_and_those_of_the_deployment_have_none():
    own, other = make_metrics(3, "vllm"), make_metrics(4, "vllm")
    lines = generate_latest(Page(own, "front-1", {"front-2": export_families(other)})).decode().splitlines()
    assert 'mstar_responses_total{frontend="front-1",model="bird",reason="stop"} 3.0' in lines
    assert 'mstar_responses_total{frontend="front-2",model="bird",reason="stop"} 4.0' in lines
    assert 'mstar_response_duration_seconds_count{frontend="front-2",model="bird"} 1.0' in lines
    assert 'mstar_queue_length{process="conductor"} 5.0' in lines
    assert "vllm:num_requests_waiting 5.0" in lines
    assert [line for line in lines if line.startswith("vllm:request_success_total{")] == [
        f'vllm:request_success_total{{finished_reason="stop",frontend="front-{number}",model_name="bird"}} {count}'
        for number, count in ((1, 3.0), (2, 4.0))
    ]
    assert len([line for line in lines if line == "# TYPE mstar_responses_total counter"]) == 1


def test_a_few_metrics_can_be_exported():
    families = export_families(make_metrics(3), SAMPLED_METRICS)
    assert [family.name for family in families] == [*SAMPLED_METRICS]
    assert export_families(make_metrics(3), ()) == []


def test_the_overview_counts_the_responses_of_all_front_ends(tmp_path):
    own, other, now = make_metrics(0), make_metrics(0), [0.0]
    siblings = Siblings(tmp_path, 1, 2)

    def families():
        return [family for families in siblings.metrics().values() for family in families]

    history = History(own, {}, {}, lambda: now[0], families)

    def sample(seconds):
        now[0] += seconds
        siblings.update_metrics("front-2", export_families(other, SAMPLED_METRICS))
        history.sample(0)
        return history.columns()["responses_per_s"]

    sample(0)
    own.responses.labels("bird", "stop").inc(10)
    other.responses.labels("bird", "stop").inc(20)
    other.requests_in_progress.set(7)
    assert sample(10) == [3.0]
    assert siblings.active_requests == 7
    other = make_metrics(1)  # restarted
    assert sample(10) == [3.0, 0.0], "an interval with a restart counts as empty"
