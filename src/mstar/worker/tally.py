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
from mstar.wire.figures import OpCount, Span, WalkCount
from mstar.wire.messages import Peer
from mstar.wire.recent import Recent
from mstar.worker.watch import Watch

if TYPE_CHECKING:
    from mstar.worker.costs import Key
    from mstar.worker.order import Waiter
    from mstar.worker.tours import Tour


class Tally(Recent):
    """The spans of requests at one worker, and its figures."""

    def __init__(self, plans: Mapping[str, Plans]) -> None:
        super().__init__()
        self._plans = plans
        self.watch = Watch()
        self._ops: dict[tuple[str, str, str], OpCount] = {}

    def ops(self) -> list[OpCount]:
        """What each op came to until now."""
        return [
            replace(one, walks={walk: replace(count) for walk, count in one.walks.items()})
            for one in self._ops.values()
        ]

    def ran(self, key: Key, waiters: Sequence[Waiter], results: Sequence[Result], seconds: float) -> None:
        """A batch has just been run."""
        now, number, size = self.now, key[1], len(waiters)
        start, share = now - seconds, seconds / size
        whole = self._count(key)
        whole.batches += 1
        whole.members += size
        if self.watch:
            self.watch.ran(waiters, seconds)
        for waiter, result in zip(waiters, results, strict=True):
            tour = waiter.tour
            opened = tour.spans.get(number)
            if opened is None:
                opened = tour.spans[number] = self._open(tour, key, start)
            span, count = opened
            since = max(span.end, waiter.since)  # a later piece waits since the one before
            if start > since:
                span.waited += start - since
                count.waited += start - since
            span.end = now
            span.busy += seconds
            count.seconds += share
            span.batch = max(span.batch, size)
            if result is not UNFINISHED:
                span.calls += 1
                count.calls += 1

    def passed(self, tour: Tour, to: Peer, since: float) -> None:
        """Something of a tour has gone to another worker, that was to go since then."""
        opened = tour.spans.get(to)
        if opened is None:
            span = self._span(tour, "transfer", f"to {to.name}", since)
            opened = tour.spans[to] = (span, WalkCount())
        span = opened[0]
        span.end = self.now
        span.calls += 1
        span.busy += self.now - since
        if self.watch:
            self.watch.passed(to, self.now - since)

    def _count(self, key: Key) -> OpCount:
        model, number = key
        batch_key = self._plans[model].keys[number]
        name = (model, batch_key.component, batch_key.op)
        found = self._ops.get(name)
        if found is None:
            found = self._ops[name] = OpCount(*name)
        return found

    def _open(self, tour: Tour, key: Key, start: float) -> tuple[Span, WalkCount]:
        span = self._span(tour, "op", str(self._plans[key[0]].keys[key[1]]), start)
        return span, self._count(key).walks.setdefault(tour.start.name, WalkCount())

    def _span(self, tour: Tour, what: str, name: str, start: float) -> Span:
        told = tour.start
        span = Span(what, name, told.name, told.walk, told.attempt, start, -inf)
        tour.guest.spans.append(span)
        return span
