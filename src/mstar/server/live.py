"""Requests under way, as asyncio reads them: what a front end's thread is told crosses to the loop here.

One wake-up carries the news of all clients. A client that reads slowly is not read ahead for: what it has taken is
reported as it is written to, and a worker goes no further than its window. Nothing here speaks HTTP.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import Protocol

from mstar.server.front import FrontEnd
from mstar.server.refusals import refusal_of
from mstar.server.streams import GRANT, Deliver, Ended
from mstar.wire import messages as m

__all__ = ["Bridge", "Deliver", "Ended", "FrontEnd", "Live"]


class Bridge:
    """Wakes those of one event loop for whom a front end has news."""

    def __init__(self, front: FrontEnd, loop: asyncio.AbstractEventLoop) -> None:
        self.front = front
        self.loop = loop
        self._roused: deque[Live] = deque()
        self._is_waking = False

    def rouse(self, live: Live) -> None:
        """There is news for this one. Called in the thread of the front end."""
        self._roused.append(live)
        if not self._is_waking:
            self._is_waking = True
            self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_waking = False  # first: whoever is added from here on is either seen below or wakes again
        while self._roused:
            self._roused.popleft().wake()


class Follower(Protocol):
    """Told what becomes of requests, as their client is."""

    def delivered(self, news: Deliver) -> None:
        """Something is handed on."""
        ...

    def ended(self, news: Ended) -> None:
        """One of them has ended."""
        ...

    def dropped(self, rid: str) -> None:
        """Nobody wants more of one of them."""
        ...


class Live:
    """Requests of one client under way. Iterate it for what is delivered, and for how each of them ended well.

    It raises a Refusal as soon as one does not end well. Whoever made it closes it.
    """

    __slots__ = ("_bridge", "_last", "_news", "_open", "_taken", "_waiter", "follower", "rids")

    def __init__(self, bridge: Bridge, submits: Sequence[m.Submit]) -> None:
        self.rids = [submit.rid for submit in submits]
        self.follower: Follower | None = None
        self._bridge = bridge
        self._open = set(self.rids)
        self._news: deque[Deliver | Ended] = deque()
        self._taken: Counter[tuple[str, str]] = Counter()
        self._last: Deliver | None = None
        self._waiter: asyncio.Future[None] | None = None
        for submit in submits:
            bridge.front.listen(submit, self._told)

    def _told(self, news: Deliver | Ended) -> None:
        self._news.append(news)
        self._bridge.rouse(self)

    def wake(self) -> None:
        """Go on, if it waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def number(self, news: Deliver | Ended) -> int:
        """Which of its requests some news is of."""
        return self.rids.index(news.rid)

    async def begun(self) -> None:
        """Wait until there is something to read, so that an early refusal can still be a status."""
        while True:
            while self._news and self._news[0].rid not in self._open:
                self._news.popleft()  # of one that was dropped
            if self._news:
                break
            self._waiter = self._bridge.loop.create_future()
            await self._waiter
        news = self._news[0]
        if isinstance(news, Ended) and (isinstance(news.end, m.Refused) or news.end.status != "ok"):
            if self.follower is not None:
                self.follower.ended(news)
            raise refusal_of(news.end)

    def __aiter__(self) -> Live:
        return self

    async def __anext__(self) -> Deliver | Ended:
        self._took()
        if self._open:
            await self.begun()
            news = self._news.popleft()
            if isinstance(news, Ended):
                self._open.discard(news.rid)
                if self.follower is not None:
                    self.follower.ended(news)
            else:
                self._last = news
                if self.follower is not None:
                    self.follower.delivered(news)
            return news
        raise StopAsyncIteration

    def _took(self) -> None:
        """The client has what was read last."""
        if (news := self._last) is not None:
            self._last = None
            self._taken[news.rid, news.kind] += 1
            taken = self._taken[news.rid, news.kind]
            if taken % GRANT == 0:
                self._bridge.front.took(news.rid, news.kind, taken)

    def drop(self, rid: str) -> None:
        """Want no more of one of them."""
        if rid in self._open:
            self._open.discard(rid)
            self._bridge.front.close(rid)
            if self.follower is not None:
                self.follower.dropped(rid)

    def close(self) -> None:
        """Want no more."""
        for rid in self.rids:
            self.drop(rid)
