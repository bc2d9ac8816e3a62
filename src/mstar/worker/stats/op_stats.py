"""Per-request trace spans and per-op totals of a worker.

It runs for every batch, so each call costs a few dictionary lookups. A loop of a thousand steps is one span per op.
Spans of finished requests are kept for a while (see `wire.span_buffer`) and sent only on request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from msgspec.structs import replace

from mstar.engine.jobs import UNFINISHED, Result
from mstar.plan.tables import Plans
from mstar.wire.messages import Peer
from mstar.wire.span_buffer import SpanBuffer
from mstar.wire.stats import OpTotals, Span, WalkStats
from mstar.worker.batch_watchdog import RunningBatch
from mstar.worker.requests import LookaheadRun, WalkRun
from mstar.worker.scheduling.cost_model import ModelBatchKey
from mstar.worker.scheduling.ready_call import ReadyCall
from mstar.worker.stats.live_stats import LiveStats


class OpStatsRecorder(SpanBuffer):
    """Spans of requests at one worker, and totals of its ops. The core sets `now` at each step."""

    def __init__(self, plans: Mapping[str, Plans]) -> None:
        super().__init__()
        self._plans = plans
        self.live_stats = LiveStats()
        self._ops: dict[tuple[str, str, str], OpTotals] = {}

    def ops(self, running: RunningBatch | None = None) -> list[OpTotals]:
        """Copy of the totals of each op, with the age of the batch that runs."""
        copies = {
            name: replace(
                totals,
                walks={walk: replace(stats) for walk, stats in totals.walks.items()},
                lookahead_s=dict(totals.lookahead_s),
            )
            for name, totals in self._ops.items()
        }
        if running is not None:  # an op whose first batch runs has no totals yet
            name = (running.model, running.component, running.op)
            copies.setdefault(name, OpTotals(*name)).running_s = running.seconds
        return [*copies.values()]

    def on_batch(
        self, key: ModelBatchKey, calls: Sequence[ReadyCall], results: Sequence[Result], seconds: float
    ) -> None:
        """Record a batch that has just finished."""
        now, key_number, size = self.now, key[1], len(calls)
        start, share = now - seconds, seconds / size
        totals = self._op_totals(key)
        totals.batches += 1
        totals.batched_calls += size
        if self.live_stats:
            self.live_stats.on_batch(calls, seconds)
        for call, result in zip(calls, results, strict=True):
            walk_run = call.walk_run
            recorded = walk_run.spans.get(key_number)
            if recorded is None:
                recorded = walk_run.spans[key_number] = self._open_span(walk_run, key, start)
            span, stats = recorded
            # A later chunk waits since the end of the one before. No `max`: this is done for each call of each batch.
            since = span.end if span.end > call.ready_since else call.ready_since  # noqa: FURB136
            if start > since:
                span.wait_s += start - since
                stats.wait_s += start - since
            span.end = now
            span.busy_s += seconds
            stats.busy_s += share
            if size > span.max_batch_size:  # noqa: PLR1730
                span.max_batch_size = size
            if walk_run.lookahead is not None:
                seconds_by_key = walk_run.lookahead.seconds
                seconds_by_key[key_number] = seconds_by_key.get(key_number, 0.0) + share
            if result is not UNFINISHED:
                span.calls += 1
                stats.calls += 1

    def on_lookahead_ended(self, model: str, lookahead: LookaheadRun) -> None:
        """Add the compute time of a lookahead to the totals of its ops, under its outcome."""
        for key_number, seconds in lookahead.seconds.items():
            by_outcome = self._op_totals((model, key_number)).lookahead_s
            by_outcome[lookahead.outcome] = by_outcome.get(lookahead.outcome, 0.0) + seconds
        lookahead.seconds.clear()

    def on_transfer(self, walk_run: WalkRun, to: Peer, since: float) -> None:
        """Record a transfer to another worker that was requested at `since` and is sent now."""
        recorded = walk_run.spans.get(to)
        if recorded is None:
            span = self._new_span(walk_run, "transfer", f"to {to.name}", since)
            recorded = walk_run.spans[to] = (span, WalkStats())
        span = recorded[0]
        span.end = self.now
        span.calls += 1
        span.busy_s += self.now - since
        if self.live_stats:
            self.live_stats.on_transfer(to, self.now - since)

    def _op_totals(self, key: ModelBatchKey) -> OpTotals:
        model, key_number = key
        batch_key = self._plans[model].keys[key_number]
        name = (model, batch_key.component, batch_key.op)
        totals = self._ops.get(name)
        if totals is None:
            totals = self._ops[name] = OpTotals(*name)
        return totals

    def _open_span(self, walk_run: WalkRun, key: ModelBatchKey, start: float) -> tuple[Span, WalkStats]:
        span = self._new_span(walk_run, "op", str(self._plans[key[0]].keys[key[1]]), start)
        return span, self._op_totals(key).walks.setdefault(walk_run.start.walk_name, WalkStats())

    def _new_span(self, walk_run: WalkRun, kind: str, name: str, start_at: float) -> Span:
        start = walk_run.start
        span = Span(kind, name, start.walk_name, start.walk_index, start.attempt, start_at, -inf)
        walk_run.request.spans.append(span)
        return span
