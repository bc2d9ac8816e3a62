"""Those who look on, and the asking of processes for their sake: ten times a second while there is anybody, else never.

Who reads too slowly misses moments, and is then told everything anew. See `overview` for what is told.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from mstar.server.admin.snapshot import ClusterSnapshot, SnapshotDelta
from mstar.wire.messages import ActivityReply

if TYPE_CHECKING:
    from mstar.server.state import ServerState

POLL_INTERVAL_S = 0.1
"""How often processes are asked."""
KEEPALIVE_S = 1.0
"""After so many seconds something is told even if nothing has changed."""
MAX_QUEUED_UPDATES = 4
"""So many moments wait for who reads slowly."""


class Subscriber:
    """One who looks on."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(MAX_QUEUED_UPDATES)
        self.is_behind = True
        """Whether everything has to be told, because it missed something."""

    def publish(self, delta: SnapshotDelta, snapshot: ClusterSnapshot) -> None:
        """Something is new."""
        if self.queue.full():
            self.is_behind = True
            return
        self.queue.put_nowait(delta.for_tenant(self.tenant, snapshot.requests.values() if self.is_behind else None))
        self.is_behind = False


class LiveFeed:
    """Asks processes for news while somebody looks on."""

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, state: ServerState, subscriber: Subscriber) -> None:
        """One more looks on."""
        self._subscribers.append(subscriber)
        if self._task is None:
            self._task = asyncio.create_task(self._run(state))

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """One has left."""
        self._subscribers.remove(subscriber)
        if not self._subscribers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, state: ServerState) -> None:
        overview, questions = ClusterSnapshot(), PendingQueries()
        told_at = 0.0
        while True:
            moment = overview.update(state, questions.take_replies())
            questions.send(state)
            now = time.monotonic()
            is_new = (
                moment.changed
                or moment.ended
                or moment.payload["ops"]
                or any(one.is_behind for one in self._subscribers)
            )
            if is_new or now - told_at >= KEEPALIVE_S:
                told_at = now
                for viewer in self._subscribers:
                    viewer.publish(moment, overview)
            await asyncio.sleep(POLL_INTERVAL_S)


class PendingQueries:
    """What was asked and not answered: a process that is busy is not asked again before it has answered."""

    def __init__(self) -> None:
        self._pending: dict[str, asyncio.Future[ActivityReply]] = {}

    def send(self, state: ServerState) -> None:
        """Ask everybody who has answered what was asked before."""
        if state.bridge is not None:
            for peer in state.peers():
                if peer.name not in self._pending:
                    self._pending[peer.name] = asked = asyncio.wrap_future(state.bridge.frontend.query_activity(peer))
                    # If all viewers have left, nobody else looks at it.
                    asked.add_done_callback(lambda one: one.cancelled() or one.exception())

    def take_replies(self) -> dict[str, ActivityReply]:
        """What was answered since the last time, by process."""
        done = {name: one for name, one in self._pending.items() if one.done()}
        for name in done:
            del self._pending[name]
        return {name: one.result() for name, one in done.items() if one.exception() is None}
