"""GET /health (liveness), /ready (readiness) and /metrics (Prometheus).

Statistics of other processes are queried at scrape time, at most every `MAX_STATS_AGE_S` seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response

from mstar.frontend.response_stream import wait_reply
from mstar.process_tuning import process_usage
from mstar.server.frontends.merged_metrics import merge_families
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.state import NOT_READY_RETRY_AFTER_S, ServerState
from mstar.server.status import WorkerProcessStatus, component_devices
from mstar.wire import messages as m
from mstar.wire.queries import ALL_METRICS
from mstar.wire.stats import MetricFamily

MAX_STATS_AGE_S = 2.0
"""Maximum age of the statistics of other processes."""
DEGRADED = "degraded"
"""Phase that /ready reports if the server has started and a model is not ready."""
STATS_TIMEOUT_S = 0.5
"""Seconds to wait for the statistics of another process."""


async def health(exchange: HttpExchange) -> Response:  # noqa: ARG001 - handler signature
    """GET /health: 200 while the process runs."""
    return json_response({"status": "ok"})


async def ready(exchange: HttpExchange) -> Response:
    """GET /ready: 200 if every model that should be loaded can serve, else 503 with the progress or those models.

    With `?model=NAME` it reports on one model.
    """
    name = exchange.request.query_params.get("model")
    return json_response(*readiness(exchange.state, exchange.resolve_model(name).base_name if name else ""))


def readiness(state: ServerState, model: str = "") -> tuple[dict[str, Any], int, dict[str, str]]:
    """Content, status and headers of /ready, for one model or for all. Can be called in any thread."""
    phase, rollout = state.phase, state.rollout()
    content: dict[str, Any] = {"phase": phase.name, "done": phase.done, "total": phase.total}
    if rollout.state:
        content["rollout"] = {"state": rollout.state, "error": rollout.error}
    models = state.model_readiness()
    if model:
        content |= {"model": model, "state": models[model].state}
        not_ready = {} if models[model].is_ready else {model: models[model]}
    else:
        not_ready = {name: one for name, one in models.items() if one.is_missing}
    if phase.name == "ready":
        if not not_ready:
            return content, 200, {}
        content["phase"] = DEGRADED
        content["not_ready"] = {name: {"state": one.state, "workers": one.workers} for name, one in not_ready.items()}
    return content, 503, {"Retry-After": str(round(NOT_READY_RETRY_AFTER_S))}


async def metrics(exchange: HttpExchange) -> Response:
    """GET /metrics: metrics of all processes."""
    state = exchange.state
    await refresh_stats(state)
    content = state.metrics.page.read(lambda: generate_latest(_MetricsCollector(state)))
    return Response(content, media_type=CONTENT_TYPE_LATEST)


async def refresh_stats(state: ServerState) -> None:
    """Query the statistics of all processes, unless the last ones are recent."""
    now = time.monotonic()
    if now - state.metrics.refreshed_at > MAX_STATS_AGE_S:
        state.metrics.refreshed_at = now
        if state.siblings is None:
            await query_all_stats(state)
        else:
            state.siblings.exported = {}  # a page that is read meanwhile has no old values
            state.siblings.exported = await query_all_stats(state, ALL_METRICS)


async def query_all_stats(state: ServerState, names: tuple[str, ...] = ()) -> dict[str, list[MetricFamily]]:
    """Query the statistics of all processes. Returns the metrics with these names of the other front ends, by name."""
    if state.bridge is None:
        return {}
    current = {peer.worker: peer for peer in state.peers()}  # the last process of a worker is the current one
    siblings = () if state.siblings is None else state.siblings.processes
    peers = [state.bridge.frontend.peer, *siblings, *current.values()]
    replies = await asyncio.gather(*(_query_stats(state, peer, names) for peer in peers))
    _drop_stopped(state, {peer.worker for peer in peers})
    return {peer.name: metrics for peer, metrics in zip(peers, replies, strict=True) if metrics}


def _drop_stopped(state: ServerState, running: set[str]) -> None:
    """Remove the statistics of processes that were stopped. Those that are down for a moment keep theirs."""
    kept = running | {name for name, status in state.process_statuses().items() if status.state != "stopped"}
    state.metrics.processes.retain(kept)
    for stats in (state.op_stats, state.deadline_stats):
        for name in [*stats]:
            if name not in kept:
                del stats[name]


class _MetricsCollector(Collector):
    """Metrics of the front end, of ops and of deadlines."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """All metrics with their current values."""
        statuses = self._state.process_statuses()
        for worker, status in statuses.items():
            if status.state != "stopped":
                self._state.metrics.processes.set_restarts(worker, status.restarts)
        yield from self._frontend_metrics()
        yield from self._readiness_metrics(statuses)
        op_labels, labels = ["model", "component", "op", "worker"], ["model", "component", "op", "walk", "worker"]
        calls = CounterMetricFamily("mstar_op_calls", "Op calls", labels=labels)
        seconds = CounterMetricFamily(
            "mstar_op_seconds", "Seconds of computation of op calls; a batch is divided among its calls", labels=labels
        )
        waited = CounterMetricFamily("mstar_op_wait_seconds", "Seconds from ready to start of op calls", labels=labels)
        batches = CounterMetricFamily("mstar_op_batches", "Op batches", labels=op_labels)
        running = GaugeMetricFamily(
            "mstar_op_running_seconds", "Seconds that the current batch of an op has run", labels=op_labels
        )
        lookahead = CounterMetricFamily(
            "mstar_lookahead_seconds",
            "Seconds of computation of walks that were started early, by whether their routes committed them",
            labels=[*op_labels, "outcome"],
        )
        for worker, ops in self._state.op_stats.items():
            for op in ops:
                for outcome, busy_s in op.lookahead_s.items():
                    lookahead.add_metric((op.model, op.component, op.op, worker, outcome), busy_s)
                batches.add_metric((op.model, op.component, op.op, worker), op.batches)
                running.add_metric((op.model, op.component, op.op, worker), op.running_s)
                for walk, totals in op.walks.items():
                    values = (op.model, op.component, op.op, walk, worker)
                    calls.add_metric(values, totals.calls)
                    seconds.add_metric(values, totals.busy_s)
                    waited.add_metric(values, totals.wait_s)
        yield from (calls, seconds, waited, batches, running, lookahead)
        yield from self._deadline_metrics()

    def _frontend_metrics(self) -> Iterable[Metric]:
        """Metrics of this front end, with those of the others if there are several."""
        siblings, metrics = self._state.siblings, self._state.metrics
        if siblings is None:
            return metrics.registry.collect()
        return merge_families(metrics, siblings.own_name, siblings.exported)

    def _readiness_metrics(self, statuses: Mapping[str, WorkerProcessStatus]) -> Iterable[Metric]:
        """Readiness of workers and models. A worker that is not needed has no series, so that no alert fires for it."""
        up = GaugeMetricFamily("mstar_worker_up", "1 while a worker that is needed is up, else 0", labels=["worker"])
        failed = GaugeMetricFamily(
            "mstar_worker_failed_starts", "Failed starts of a worker in a row; 0 once it is up", labels=["worker"]
        )
        next_start = GaugeMetricFamily(
            "mstar_worker_next_start_seconds", "Seconds until a worker that failed is started again", labels=["worker"]
        )
        ready = GaugeMetricFamily("mstar_model_ready", "1 while a model can serve requests, else 0", labels=["model"])
        loaded = GaugeMetricFamily(
            "mstar_component_info",
            "1 for each component that a worker has loaded, with its torch device",
            labels=["model", "component", "worker", "device"],
        )
        for worker, status in statuses.items():
            if status.state != "stopped":
                up.add_metric([worker], int(status.state == "up"))
                failed.add_metric([worker], status.failed_starts)
                next_start.add_metric([worker], status.next_start_in_s)
        for model, served in self._state.served_models.items():
            for worker, devices in component_devices(model, served.model.components(), statuses).items():
                for component, device in devices.items():
                    loaded.add_metric([model, component, worker, device], 1)
        for model, readiness in self._state.model_readiness().items():
            ready.add_metric([model], int(readiness.is_ready))
        rollout = self._state.rollout()
        rollouts = CounterMetricFamily("mstar_rollouts", "Rolling updates, by result", labels=["result"])
        rollouts.add_metric(["completed"], rollout.completed)
        rollouts.add_metric(["failed"], rollout.failed)
        yield from (up, failed, next_start, loaded, ready, rollouts)

    def _deadline_metrics(self) -> Iterable[Metric]:
        """Deadlines of emissions, and predictions of the time to first output."""
        labels = ["model", "kind", "worker"]
        deadlines = CounterMetricFamily("mstar_deadlines", "Emissions with a deadline", labels=labels)
        misses = CounterMetricFamily("mstar_deadline_misses", "Emissions that missed their deadline", labels=labels)
        lateness = CounterMetricFamily(
            "mstar_deadline_lateness_seconds", "Seconds after the deadline, summed", labels=labels
        )
        predictions = CounterMetricFamily(
            "mstar_ttfo_predictions", "Predictions of the time to first output", labels=labels
        )
        errors = CounterMetricFamily(
            "mstar_ttfo_prediction_relative_error", "Relative error of predictions, summed", labels=labels
        )
        accurate = CounterMetricFamily(
            "mstar_ttfo_predictions_within_25pct", "Predictions with an error of at most 25 %", labels=labels
        )
        for worker, kinds in self._state.deadline_stats.items():
            for stats in kinds:
                values = (stats.model, stats.kind, worker)
                deadlines.add_metric(values, stats.count)
                misses.add_metric(values, stats.misses)
                lateness.add_metric(values, stats.lateness_s)
                predictions.add_metric(values, stats.predictions)
                errors.add_metric(values, stats.relative_error)
                accurate.add_metric(values, stats.within_25pct)
        yield from (deadlines, misses, lateness, predictions, errors, accurate)


async def _query_stats(state: ServerState, peer: m.Peer, names: tuple[str, ...]) -> list[MetricFamily]:
    assert state.bridge is not None, "checked by query_all_stats"
    name = peer.worker
    state.metrics.processes.set_restarts(name, peer.incarnation)
    stats = await wait_reply(state.bridge.frontend.query_stats(peer, names), STATS_TIMEOUT_S)
    if stats is None:
        return []  # starting or dead: its last statistics stay
    state.op_stats[name] = stats.ops
    state.deadline_stats[name] = stats.deadlines
    frontend = state.bridge.frontend
    usage = process_usage() if peer == frontend.peer else {}
    conductors = {conductor.name for conductor in frontend.conductors.values()}
    role = "frontend" if peer == frontend.peer else "conductor" if name in conductors else "worker"
    role = role if state.siblings is None else state.siblings.roles.get(name, role)
    state.metrics.processes.update(name, stats.counts | usage, role)
    return stats.metrics
