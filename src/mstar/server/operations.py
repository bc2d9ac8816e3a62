"""What an operator asks: is it alive, is it ready, and what does it do. Nothing here serves a model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response

from mstar.server.door import STARTING_S, Door
from mstar.server.visit import Visit, answered
from mstar.wire import messages as m

STALE_S = 2.0
"""How old the figures of other processes may be."""
ANSWER_S = 0.5
"""How long another process may take to tell its figures."""


async def health(visit: Visit) -> Response:  # noqa: ARG001 - as every surface
    """GET /health: the process answers."""
    return answered({"status": "ok"})


async def ready(visit: Visit) -> Response:
    """GET /ready: whether requests can come, or how far the start is."""
    phase = visit.door.phase
    told = {"phase": phase.name, "done": phase.done, "total": phase.total}
    if phase.name == "ready":
        return answered(told)
    return answered(told, 503, {"Retry-After": str(round(STARTING_S))})


async def metrics(visit: Visit) -> Response:
    """GET /metrics: figures of this process, and of the others."""
    await refresh(visit.door)
    return Response(generate_latest(_Figures(visit.door)), media_type=CONTENT_TYPE_LATEST)


async def refresh(door: Door) -> None:
    """Have the figures of other processes, not much older than now."""
    now = time.monotonic()
    if door.bridge is not None and now - door.meters.asked > STALE_S:
        door.meters.asked = now
        peers = [door.bridge.front.peer, *door.peers()]
        await asyncio.gather(*(_ask(door, peer) for peer in peers))


class _Figures(Collector):
    """The figures of this process, and what ops came to at the workers."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def collect(self) -> Iterable[Metric]:
        """All of them, as they are now."""
        yield from self._door.meters.registry.collect()
        of_op, labels = ["model", "component", "op", "worker"], ["model", "component", "op", "walk", "worker"]
        calls = CounterMetricFamily("mstar_op_calls", "Calls of ops that ran", labels=labels)
        seconds = CounterMetricFamily("mstar_op_seconds", "How long they took, each its share", labels=labels)
        waited = CounterMetricFamily("mstar_op_wait_seconds", "How long they were ready before", labels=labels)
        batches = CounterMetricFamily("mstar_op_batches", "Batches that ran", labels=of_op)
        for worker, ops in self._door.ops.items():
            for one in ops:
                batches.add_metric((one.model, one.component, one.op, worker), one.batches)
                for walk, count in one.walks.items():
                    of = (one.model, one.component, one.op, walk, worker)
                    calls.add_metric(of, count.calls)
                    seconds.add_metric(of, count.seconds)
                    waited.add_metric(of, count.waited)
        yield from (calls, seconds, waited, batches)
        yield from self._due()

    def _due(self) -> Iterable[Metric]:
        """What emissions came to that were due at some time."""
        labels = ["model", "kind", "worker"]
        due = CounterMetricFamily("mstar_due_emissions", "Emissions that were due at some time", labels=labels)
        late = CounterMetricFamily("mstar_late_emissions", "Those that came later", labels=labels)
        seconds = CounterMetricFamily("mstar_late_seconds", "How much later", labels=labels)
        forecasts = CounterMetricFamily("mstar_forecasts", "First emissions that were forecast", labels=labels)
        errors = CounterMetricFamily(
            "mstar_forecast_errors", "By which part forecasts were wrong, added", labels=labels
        )
        close = CounterMetricFamily("mstar_close_forecasts", "Forecasts wrong by a quarter at most", labels=labels)
        for worker, kinds in self._door.kinds.items():
            for one in kinds:
                of = (one.model, one.kind, worker)
                due.add_metric(of, one.count)
                late.add_metric(of, one.late)
                seconds.add_metric(of, one.late_s)
                forecasts.add_metric(of, one.forecasts)
                errors.add_metric(of, one.missed)
                close.add_metric(of, one.close)
        yield from (due, late, seconds, forecasts, errors, close)


async def _ask(door: Door, peer: m.Peer) -> None:
    assert door.bridge is not None, "it was looked at before"
    door.meters.held.labels(peer.name, "restarts").set(peer.incarnation)
    asked = asyncio.wrap_future(door.bridge.front.take_figures(peer))
    try:
        stock = await asyncio.wait_for(asyncio.shield(asked), ANSWER_S)  # it may still answer
    except TimeoutError:
        return  # it is being started, or it is dead: its last figures stay
    door.ops[peer.name] = stock.ops
    door.kinds[peer.name] = stock.kinds
    for what, count in stock.counts.items():
        door.meters.held.labels(peer.name, what).set(count)
