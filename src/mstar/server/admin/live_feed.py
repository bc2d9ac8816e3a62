"""Live feed: polls all processes ten times a second and publishes changes to subscribers (pub/sub, for GET /v1/events).

It polls only while there is a subscriber. A subscriber that reads too slowly loses updates and then gets a full
snapshot. `snapshot` decides what an update contains.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from mstar.server.admin.snapshot import ClusterSnapshot, ClusterSource, SnapshotDelta
from mstar.wire.messages import ActivityReply

POLL_INTERVAL_S = 0.1
"""Seconds between two polls of a process."""
KEEPALIVE_S = 1.0
"""Seconds without a change before an update is published anyway."""
MAX_SUBSCRIBERS = 16
"""Maximum number of subscribers of one tenant."""
MAX_QUEUED_UPDATES = 4
"""Maximum number of updates queued for a slow subscriber."""


class Subscriber:
    """One open event stream."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(MAX_QUEUED_UPDATES)
        self.is_behind = True
        """Whether the next update must be a full snapshot: it is new, or it lost an update."""

    def publish(self, delta: SnapshotDelta, snapshot: ClusterSnapshot) -> None:
        """Queue an update; drop it if the queue is full."""
        if self.queue.full():
            self.is_behind = True
            return
        self.queue.put_nowait(delta.for_tenant(self.tenant, snapshot.requests.values() if self.is_behind else None))
        self.is_behind = False


class LiveFeed:
    """Polls processes and publishes changes while there are subscribers."""

    def __init__(self, source: ClusterSource) -> None:
        self._source = source
        self._subscribers: list[Subscriber] = []
        self._task: asyncio.Task[None] | None = None

    def count(self, tenant: str) -> int:
        """Number of subscribers of a tenant."""
        return sum(subscriber.tenant == tenant for subscriber in self._subscribers)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Add a subscriber. The first one starts the polling."""
        self._subscribers.append(subscriber)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a subscriber. The last one stops the polling."""
        self._subscribers.remove(subscriber)
        if not self._subscribers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        snapshot, queries = ClusterSnapshot(), PendingQueries()
        published_at = 0.0
        while True:
            delta = snapshot.update(self._source, queries.take_replies())
            queries.send(self._source)
            now = time.monotonic()
            has_changes = (
                delta.changed
                or delta.ended
                or delta.payload["ops"]
                or any(subscriber.is_behind for subscriber in self._subscribers)
            )
            if has_changes or now - published_at >= KEEPALIVE_S:
                published_at = now
                for subscriber in self._subscribers:
                    subscriber.publish(delta, snapshot)
            await asyncio.sleep(POLL_INTERVAL_S)


class PendingQueries:
    """Unanswered queries by process. A busy process gets no second query before it has answered the first."""

    def __init__(self) -> None:
        self._pending: dict[str, asyncio.Future[ActivityReply]] = {}

    def send(self, source: ClusterSource) -> None:
        """Query every process that has no unanswered query."""
        if source.bridge is not None:
            for peer in source.peers():
                if peer.name not in self._pending:
                    reply = asyncio.wrap_future(source.bridge.frontend.query_activity(peer))
                    # Read the exception: after the last subscriber has left, no other code does.
                    reply.add_done_callback(lambda future: future.cancelled() or future.exception())
                    self._pending[peer.name] = reply

    def take_replies(self) -> dict[str, ActivityReply]:
        """Replies since the last call, by process. Failed queries are dropped."""
        done = {name: reply for name, reply in self._pending.items() if reply.done()}
        for name in done:
            del self._pending[name]
        return {name: reply.result() for name, reply in done.items() if reply.exception() is None}
