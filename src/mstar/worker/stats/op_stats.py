"""What each request did at a worker, and what each op came to. It is told of every batch, so it does very little.

A loop of a thousand steps is one span for each of its ops. What nobody asks for is forgotten (see `wire.recent`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mstar.engine.jobs import UNFINISHED, Result
from mstar.plan.tables import Plans
from mstar.wire.messages import Peer
from mstar.wire.span_buffer import SpanBuffer
from mstar.wire.stats import OpTotals, Span, WalkStats
from mstar.worker.stats.live_stats import LiveStats

if TYPE_CHECKING:
    from mstar.worker.requests import WalkRun
    from mstar.worker.scheduling.cost_model import ModelBatchKey
    from mstar.worker.scheduling.policy import ReadyCall


class OpStatsRecorder(SpanBuffer):
    """The spans of requests at one worker, and its figures."""

    def __init__(self, plans: Mapping[str, Plans]) -> None:
        super().__init__()
        self._plans = plans
        self.live_stats = LiveStats()
        self._ops: dict[tuple[str, str, str], OpTotals] = {}

    def ops(self) -> list[OpTotals]:
        """What each op came to until now."""
        return [
            replace(one, walks={walk: replace(count) for walk, count in one.walks.items()})
            for one in self._ops.values()
        ]

    def on_batch(
        self, key: ModelBatchKey, calls: Sequence[ReadyCall], results: Sequence[Result], seconds: float
    ) -> None:
        """A batch has just been run."""
        now, number, size = self.now, key[1], len(calls)
        start, share = now - seconds, seconds / size
        whole = self._op_stats(key)
        whole.batches += 1
        whole.batched_calls += size
        if self.live_stats:
            self.live_stats.on_batch(calls, seconds)
        for waiter, result in zip(calls, results, strict=True):
            tour = waiter.walk_run
            opened = tour.spans.get(number)
            if opened is None:
                opened = tour.spans[number] = self._open_span(tour, key, start)
            span, count = opened
            since = max(span.end, waiter.ready_since)  # a later piece waits since the one before
            if start > since:
                span.wait_s += start - since
                count.wait_s += start - since
            span.end = now
            span.busy_s += seconds
            count.busy_s += share
            span.max_batch_size = max(span.max_batch_size, size)
            if result is not UNFINISHED:
                span.calls += 1
                count.calls += 1

    def on_transfer(self, walk_run: WalkRun, to: Peer, since: float) -> None:
        """Something of a tour has gone to another worker, that was to go since then."""
        opened = walk_run.spans.get(to)
        if opened is None:
            span = self._new_span(walk_run, "transfer", f"to {to.name}", since)
            opened = walk_run.spans[to] = (span, WalkStats())
        span = opened[0]
        span.end = self.now
        span.calls += 1
        span.busy_s += self.now - since
        if self.live_stats:
            self.live_stats.on_transfer(to, self.now - since)

    def _op_stats(self, key: ModelBatchKey) -> OpTotals:
        model, number = key
        batch_key = self._plans[model].keys[number]
        name = (model, batch_key.component, batch_key.op)
        found = self._ops.get(name)
        if found is None:
            found = self._ops[name] = OpTotals(*name)
        return found

    def _open_span(self, walk_run: WalkRun, key: ModelBatchKey, start: float) -> tuple[Span, WalkStats]:
        span = self._new_span(walk_run, "op", str(self._plans[key[0]].keys[key[1]]), start)
        return span, self._op_stats(key).walks.setdefault(walk_run.start.walk_name, WalkStats())

    def _new_span(self, walk_run: WalkRun, what: str, name: str, start: float) -> Span:
        told = walk_run.start
        span = Span(what, name, told.walk_name, told.walk_index, told.attempt, start, -inf)
        walk_run.request.spans.append(span)
        return span
