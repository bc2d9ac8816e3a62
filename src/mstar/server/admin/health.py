"""What an operator asks: is it alive, is it ready, and what does it do. Nothing here serves a model."""

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
"""How old the figures of other processes may be."""
STATS_TIMEOUT_S = 0.5
"""How long another process may take to tell its figures."""


async def health(exchange: HttpExchange) -> Response:  # noqa: ARG001 - as every surface
    """GET /health: the process answers."""
    return json_response({"status": "ok"})


async def ready(exchange: HttpExchange) -> Response:
    """GET /ready: whether requests can come, or how far the start is."""
    phase = exchange.state.phase
    told = {"phase": phase.name, "done": phase.done, "total": phase.total}
    if phase.name == "ready":
        return json_response(told)
    return json_response(told, 503, {"Retry-After": str(round(NOT_READY_RETRY_AFTER_S))})


async def metrics(exchange: HttpExchange) -> Response:
    """GET /metrics: figures of this process, and of the others."""
    await refresh_stats(exchange.state)
    return Response(generate_latest(_MetricsCollector(exchange.state)), media_type=CONTENT_TYPE_LATEST)


async def refresh_stats(state: ServerState) -> None:
    """Have the figures of other processes, not much older than now."""
    now = time.monotonic()
    if state.bridge is not None and now - state.metrics.refreshed_at > MAX_STATS_AGE_S:
        state.metrics.refreshed_at = now
        peers = [state.bridge.frontend.peer, *state.peers()]
        await asyncio.gather(*(_query_stats(state, peer) for peer in peers))


class _MetricsCollector(Collector):
    """The figures of this process, and what ops came to at the workers."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """All of them, as they are now."""
        yield from self._state.metrics.registry.collect()
        of_op, labels = ["model", "component", "op", "worker"], ["model", "component", "op", "walk", "worker"]
        calls = CounterMetricFamily("mstar_op_calls", "Calls of ops that ran", labels=labels)
        seconds = CounterMetricFamily("mstar_op_seconds", "How long they took, each its share", labels=labels)
        waited = CounterMetricFamily("mstar_op_wait_seconds", "How long they were ready before", labels=labels)
        batches = CounterMetricFamily("mstar_op_batches", "Batches that ran", labels=of_op)
        for worker, ops in self._state.op_stats.items():
            for one in ops:
                batches.add_metric((one.model, one.component, one.op, worker), one.batches)
                for walk, count in one.walks.items():
                    of = (one.model, one.component, one.op, walk, worker)
                    calls.add_metric(of, count.calls)
                    seconds.add_metric(of, count.busy_s)
                    waited.add_metric(of, count.wait_s)
        yield from (calls, seconds, waited, batches)
        yield from self._deadline_metrics()

    def _deadline_metrics(self) -> Iterable[Metric]:
        """What emissions came to that were due at some time."""
        labels = ["model", "kind", "worker"]
        due = CounterMetricFamily("mstar_deadlines", "Emissions that were due at some time", labels=labels)
        late = CounterMetricFamily("mstar_deadline_misses", "Those that came later", labels=labels)
        seconds = CounterMetricFamily("mstar_deadline_lateness_seconds", "How much later", labels=labels)
        forecasts = CounterMetricFamily("mstar_ttfo_predictions", "First emissions that were forecast", labels=labels)
        errors = CounterMetricFamily(
            "mstar_ttfo_prediction_relative_error", "By which part forecasts were wrong, added", labels=labels
        )
        close = CounterMetricFamily(
            "mstar_ttfo_predictions_within_25pct", "Forecasts wrong by a quarter at most", labels=labels
        )
        for worker, kinds in self._state.deadline_stats.items():
            for one in kinds:
                of = (one.model, one.kind, worker)
                due.add_metric(of, one.count)
                late.add_metric(of, one.misses)
                seconds.add_metric(of, one.lateness_s)
                forecasts.add_metric(of, one.predictions)
                errors.add_metric(of, one.relative_error)
                close.add_metric(of, one.within_25pct)
        yield from (due, late, seconds, forecasts, errors, close)


async def _query_stats(state: ServerState, peer: m.Peer) -> None:
    assert state.bridge is not None, "it was looked at before"
    state.metrics.process_stats.labels(peer.name, "restarts").set(peer.incarnation)
    asked = asyncio.wrap_future(state.bridge.frontend.query_stats(peer))
    try:
        stock = await asyncio.wait_for(asyncio.shield(asked), STATS_TIMEOUT_S)  # it may still answer
    except TimeoutError:
        return  # it is being started, or it is dead: its last figures stay
    state.op_stats[peer.name] = stock.ops
    state.deadline_stats[peer.name] = stock.deadlines
    for what, count in stock.counts.items():
        state.metrics.process_stats.labels(peer.name, what).set(count)
