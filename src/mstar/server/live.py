"""Requests under way, as asyncio reads them: what a front end's thread is told crosses to the loop here.

One wake-up carries the news of all clients. A client that reads slowly is not read ahead for: what it has taken is
reported as it is written to, and a worker goes no further than its window. Nothing here speaks HTTP.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from mstar.server.front import FrontEnd
from mstar.server.refusals import refusal_of
from mstar.server.streams import GRANT, Deliver, Ended, Waits
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

    It raises a Refusal as soon as one does not end well. Whoever made it closes it. A client that `goes_on` with its
    request reads it turn by turn; one that does not is taken to say no more.
    """

    __slots__ = (
        *("_bridge", "_goes_on", "_last", "_news", "_open", "_said", "_taken", "_waiter"),
        *("follower", "result", "rids"),
    )

    def __init__(self, bridge: Bridge, submits: Sequence[m.Submit], *, goes_on: bool = False) -> None:
        self.rids = [submit.rid for submit in submits]
        self.follower: Follower | None = None
        self.result: Any = None
        """What the last request that ended gave, or was answered at the end of a turn."""
        self._said = 0
        self._bridge = bridge
        self._goes_on = goes_on
        self._open = set(self.rids)
        self._news: deque[Deliver | Waits | Ended] = deque()
        self._taken: Counter[tuple[str, str]] = Counter()
        self._last: Deliver | None = None
        self._waiter: asyncio.Future[None] | None = None
        for submit in submits:
            bridge.front.listen(submit, self._told)

    def _told(self, news: Deliver | Waits | Ended) -> None:
        if isinstance(news, Waits) and not self._goes_on:
            self._bridge.front.say(news.rid, None)
            return
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
        while self._open:
            news = await self._next()
            if not isinstance(news, Waits):
                return news
        self._took()
        raise StopAsyncIteration

    async def turn(self) -> AsyncGenerator[Deliver]:
        """What is delivered until the request has done all that it was told and waits for more, or has ended."""
        while self._open:
            news = await self._next()
            if isinstance(news, Deliver):
                yield news
            elif isinstance(news, Waits) and news.number >= self._said:
                return

    async def _next(self) -> Deliver | Waits | Ended:
        self._took()
        await self.begun()
        news = self._news.popleft()
        if isinstance(news, Ended):
            self._open.discard(news.rid)
            self.result = news.end.result.it if isinstance(news.end, m.Finished) else None
            if self.follower is not None:
                self.follower.ended(news)
        elif isinstance(news, Waits):
            self.result = news.answer
        else:
            self._last = news
            if self.follower is not None:
                self.follower.delivered(news)
        return news

    def say(self, value: Any) -> None:
        """Say more to the request."""
        self._said += 1
        self._bridge.front.say(self.rids[0], value)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or will have when what is there was read."""
        return not self._open or any(isinstance(news, Ended) for news in self._news)

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
