"""GET /health (liveness), /ready (readiness) and /metrics (Prometheus).

Statistics of other processes are queried at scrape time, at most every `MAX_STATS_AGE_S` seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response

from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.state import NOT_READY_RETRY_AFTER_S, ServerState
from mstar.wire import messages as m

MAX_STATS_AGE_S = 2.0
"""Maximum age of the statistics of other processes."""
STATS_TIMEOUT_S = 0.5
"""Seconds to wait for the statistics of another process."""


async def health(exchange: HttpExchange) -> Response:  # noqa: ARG001 - handler signature
    """GET /health: 200 while the process runs."""
    return json_response({"status": "ok"})


async def ready(exchange: HttpExchange) -> Response:
    """GET /ready: 200 if the server accepts requests, else 503 with the start-up progress."""
    phase = exchange.state.phase
    content = {"phase": phase.name, "done": phase.done, "total": phase.total}
    if phase.name == "ready":
        return json_response(content)
    return json_response(content, 503, {"Retry-After": str(round(NOT_READY_RETRY_AFTER_S))})


async def metrics(exchange: HttpExchange) -> Response:
    """GET /metrics: metrics of all processes."""
    await refresh_stats(exchange.state)
    return Response(generate_latest(_MetricsCollector(exchange.state)), media_type=CONTENT_TYPE_LATEST)


async def refresh_stats(state: ServerState) -> None:
    """Query the statistics of all processes, unless the last ones are recent."""
    now = time.monotonic()
    if state.bridge is not None and now - state.metrics.refreshed_at > MAX_STATS_AGE_S:
        state.metrics.refreshed_at = now
        peers = [state.bridge.frontend.peer, *state.peers()]
        await asyncio.gather(*(_query_stats(state, peer) for peer in peers))


class _MetricsCollector(Collector):
    """Metrics of the front end, of ops and of deadlines."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """All metrics with their current values."""
        yield from self._state.metrics.registry.collect()
        op_labels, labels = ["model", "component", "op", "worker"], ["model", "component", "op", "walk", "worker"]
        calls = CounterMetricFamily("mstar_op_calls", "Op calls", labels=labels)
        seconds = CounterMetricFamily(
            "mstar_op_seconds", "Seconds of computation of op calls; a batch is divided among its calls", labels=labels
        )
        waited = CounterMetricFamily("mstar_op_wait_seconds", "Seconds from ready to start of op calls", labels=labels)
        batches = CounterMetricFamily("mstar_op_batches", "Op batches", labels=op_labels)
        for worker, ops in self._state.op_stats.items():
            for op in ops:
                batches.add_metric((op.model, op.component, op.op, worker), op.batches)
                for walk, totals in op.walks.items():
                    values = (op.model, op.component, op.op, walk, worker)
                    calls.add_metric(values, totals.calls)
                    seconds.add_metric(values, totals.busy_s)
                    waited.add_metric(values, totals.wait_s)
        yield from (calls, seconds, waited, batches)
        yield from self._deadline_metrics()

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


async def _query_stats(state: ServerState, peer: m.Peer) -> None:
    assert state.bridge is not None, "checked by refresh_stats"
    state.metrics.processes.set_restarts(peer.name, peer.incarnation)
    reply = asyncio.wrap_future(state.bridge.frontend.query_stats(peer))
    try:
        stats = await asyncio.wait_for(asyncio.shield(reply), STATS_TIMEOUT_S)  # a late reply still resolves it
    except TimeoutError:
        return  # starting or dead: its last statistics stay
    state.op_stats[peer.name] = stats.ops
    state.deadline_stats[peer.name] = stats.deadlines
    state.metrics.processes.update(peer.name, stats.counts)
