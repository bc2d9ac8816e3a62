"""Those who look on, and the asking of processes for their sake: ten times a second while there is anybody, else never.

Who reads too slowly misses moments, and is then told everything anew. See `overview` for what is told.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from mstar.server.overview import Moment, Overview
from mstar.wire.messages import News

if TYPE_CHECKING:
    from mstar.server.door import Door

EVERY_S = 0.1
"""How often processes are asked."""
QUIET_S = 1.0
"""After so many seconds something is told even if nothing has changed."""
BEHIND = 4
"""So many moments wait for who reads slowly."""


class Viewer:
    """One who looks on."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(BEHIND)
        self.is_behind = True
        """Whether everything has to be told, because it missed something."""

    def tell(self, moment: Moment, overview: Overview) -> None:
        """Something is new."""
        if self.queue.full():
            self.is_behind = True
            return
        self.queue.put_nowait(moment.as_told(self.tenant, overview.seen.values() if self.is_behind else None))
        self.is_behind = False


class Watch:
    """Asks processes for news while somebody looks on."""

    def __init__(self) -> None:
        self._viewers: list[Viewer] = []
        self._task: asyncio.Task[None] | None = None

    def join(self, door: Door, viewer: Viewer) -> None:
        """One more looks on."""
        self._viewers.append(viewer)
        if self._task is None:
            self._task = asyncio.create_task(self._run(door))

    def leave(self, viewer: Viewer) -> None:
        """One has left."""
        self._viewers.remove(viewer)
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, door: Door) -> None:
        overview, questions = Overview(), Questions()
        told_at = 0.0
        while True:
            moment = overview.look(door, questions.answers())
            questions.ask(door)
            now = time.monotonic()
            is_new = moment.changed or moment.ended or moment.told["ops"] or any(one.is_behind for one in self._viewers)
            if is_new or now - told_at >= QUIET_S:
                told_at = now
                for viewer in self._viewers:
                    viewer.tell(moment, overview)
            await asyncio.sleep(EVERY_S)


class Questions:
    """What was asked and not answered: a process that is busy is not asked again before it has answered."""

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Future[News]] = {}

    def ask(self, door: Door) -> None:
        """Ask everybody who has answered what was asked before."""
        if door.bridge is not None:
            for peer in door.peers():
                if peer.name not in self._asked:
                    self._asked[peer.name] = asked = asyncio.wrap_future(door.bridge.front.take_news(peer))
                    # If all viewers have left, nobody else looks at it.
                    asked.add_done_callback(lambda one: one.cancelled() or one.exception())

    def answers(self) -> dict[str, News]:
        """What was answered since the last time, by process."""
        done = {name: one for name, one in self._asked.items() if one.done()}
        for name in done:
            del self._asked[name]
        return {name: one.result() for name, one in done.items() if one.exception() is None}
