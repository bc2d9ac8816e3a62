"""Metrics of several front ends on one page."""

import asyncio
from concurrent.futures import Future
from math import inf
from types import SimpleNamespace

from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from mstar.server.admin import health
from mstar.server.admin.overview import take_sample
from mstar.server.frontends.merged_metrics import export_families, merge_families
from mstar.server.frontends.siblings import Siblings
from mstar.server.state import ServerState
from mstar.server.telemetry.history import SAMPLED_SERIES, History
from mstar.server.telemetry.metrics import Metrics
from mstar.wire.message import Peer
from mstar.wire.queries import ALL_METRICS, StatsReply


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
    metrics.generation_tokens.labels("bird").inc(0)
    metrics.time_to_first_output.labels("bird", "Text").observe(0.1)
    metrics.processes.update("conductor", {"queue": 5})
    return metrics


def test_each_series_of_a_front_end_has_its_name_and_those_of_the_deployment_have_none():
    own, other = make_metrics(3, "vllm"), make_metrics(4, "vllm")
    lines = (
        generate_latest(Page(own, "front-1", {"front-2": export_families(other, ALL_METRICS)})).decode().splitlines()
    )
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


def test_a_few_series_can_be_exported():
    families = export_families(make_metrics(3), SAMPLED_SERIES)
    assert {name for family in families for name, _, _ in family.samples} == {*SAMPLED_SERIES}
    assert export_families(make_metrics(3), ()) == []


def test_the_overview_counts_all_front_ends(tmp_path):
    own, other, now = make_metrics(0), make_metrics(0), [0.0]
    siblings = Siblings(tmp_path, 1, 2, Peer("launcher", 0))
    siblings.peers = [Peer("front-2", 0)]

    def families():
        return [family for families in siblings.sampled.values() for family in families]

    history = History(own, {}, {}, lambda: now[0], families)

    def sample(seconds):
        now[0] += seconds
        own.processes.update("front-2", {"cpu_us": round(now[0] * 1e5)}, "frontend")
        siblings.sampled["front-2"] = export_families(other, SAMPLED_SERIES)
        history.sample(0)
        return history.columns()["responses_per_s"]

    sample(0)
    own.responses.labels("bird", "stop").inc(10)
    other.responses.labels("bird", "stop").inc(20)
    other.generation_tokens.labels("bird").inc(40)
    own.generation_tokens.labels("bird").inc(60)
    other.requests_in_progress.set(7)
    assert sample(10) == [3.0]
    assert siblings.active_requests == 7
    (cost,) = history.process_costs.costs()
    assert (cost.process, cost.cpu_s_per_token) == ("front-2", 0.01), "tokens of both front ends"
    other = make_metrics(1)  # restarted
    assert sample(10) == [3.0, 0.0], "an interval with a restart counts as empty"
    assert history.process_costs.costs()[0].cpu_s_per_token == 0.02
    siblings.peers = []
    assert siblings.active_requests == 0, "it has stopped"


class StubFrontend:
    """Gets prepared replies, by process. The others do not answer."""

    peer, conductors = Peer("front-1", 0), {"bird": Peer("conductor", 0)}

    def __init__(self, **replies):
        self.replies = replies

    def query_stats(self, peer, names):
        future = Future()
        if (counts := self.replies.get(peer.name.replace("-", "_"))) is not None:
            metrics = export_families(make_metrics(4), names) if peer.name == "front-2" else []
            future.set_result(StatsReply(1, counts, metrics=metrics))
        return future


def test_a_front_end_that_does_not_answer_has_no_series_but_those_of_its_process(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "STATS_TIMEOUT_S", 0.01)
    state = ServerState({})
    state.siblings = Siblings(tmp_path, 1, 2, Peer("launcher", 0))
    state.siblings.peers = [Peer("front-2", 1)]
    frontend = StubFrontend(front_1={}, front_2={"cpu_us": 1_500_000}, launcher={"cpu_us": 250_000})
    state.bridge = SimpleNamespace(frontend=frontend)

    def read_page():
        state.metrics.refreshed_at = -inf
        asyncio.run(health.refresh_stats(state))
        return generate_latest(health._MetricsCollector(state)).decode().splitlines()

    response = 'mstar_responses_total{frontend="front-2",model="bird",reason="stop"} 4.0'
    usage = [
        'mstar_process_cpu_seconds_total{process="front-2",role="frontend"} 1.5',
        'mstar_process_cpu_seconds_total{process="launcher",role="launcher"} 0.25',
        'mstar_process_restarts_total{process="front-2"} 1.0',
    ]
    assert {response, *usage} <= {*read_page()}
    del frontend.replies["front_2"]
    lines = {*read_page()}
    assert {*usage} <= lines
    assert response not in lines, "an older value than on another page would look like a restart"


def test_a_new_front_end_does_not_count_what_others_have_counted_before(tmp_path):
    state = ServerState({})
    state.siblings = Siblings(tmp_path, 1, 2, Peer("launcher", 0))
    state.siblings.peers = [Peer("front-2", 0)]

    def sample():
        asyncio.run(take_sample(state))
        return state.history.columns()["responses_per_s"]

    assert sample() == [], "it is starting"
    state.bridge = SimpleNamespace(frontend=StubFrontend(front_1={}, front_2={"cpu_us": 10**9}, launcher={}))
    assert sample() == []
    assert sample() == [0.0]
    assert {one.process: one.cores for one in state.history.process_costs.costs()}["front-2"] == 0.0
