"""Requests under way, as asyncio reads them: what a front end's thread is told crosses to the loop here.

One wake-up carries the news of all clients. A client that reads slowly is not read ahead for: what it has taken is
reported as it is written to, and a worker goes no further than its window. Nothing here speaks HTTP.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Protocol

from mstar.frontend.actor import FrontendActor
from mstar.frontend.core import CREDIT_INTERVAL, AwaitingInput, Deliver, RequestEnded
from mstar.wire import messages as m

__all__ = ["Deliver", "FrontendActor", "LoopBridge", "RequestEnded", "ResponseStream"]


class LoopBridge:
    """Wakes those of one event loop for whom a front end has news."""

    def __init__(
        self,
        frontend: FrontendActor,
        loop: asyncio.AbstractEventLoop,
        to_error: Callable[[m.RequestFinished | m.RequestRejected], Exception],
    ) -> None:
        self.frontend = frontend
        self.loop = loop
        self.to_error = to_error
        """Makes the exception that a reader gets for a request that was rejected or failed."""
        self._pending: deque[ResponseStream] = deque()
        self._is_scheduled = False

    def notify(self, stream: ResponseStream) -> None:
        """There is news for this one. Called in the thread of the front end."""
        self._pending.append(stream)
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        self._is_scheduled = False  # first: whoever is added from here on is either seen below or wakes again
        while self._pending:
            self._pending.popleft().notify()


class ResponseObserver(Protocol):
    """Told what becomes of requests, as their client is."""

    def on_output(self, event: Deliver) -> None:
        """Something is handed on."""
        ...

    def on_end(self, event: RequestEnded) -> None:
        """One of them has ended."""
        ...

    def on_cancel(self, rid: str) -> None:
        """Nobody wants more of one of them."""
        ...


class ResponseStream:
    """Requests of one client under way. Iterate it for what is delivered, and for how each of them ended well.

    It raises a Refusal as soon as one does not end well. Whoever made it closes it. A client that `goes_on` with its
    request reads it turn by turn; one that does not is taken to say no more.
    """

    __slots__ = (
        *("_bridge", "_consumed", "_events", "_inputs_sent", "_last_delivered", "_multi_turn", "_open", "_waiter"),
        *("observer", "result", "rids"),
    )

    def __init__(self, bridge: LoopBridge, submits: Sequence[m.Submit], *, multi_turn: bool = False) -> None:
        self.rids = [submit.rid for submit in submits]
        self.observer: ResponseObserver | None = None
        self.result: Any = None
        """What the last request that ended gave, or was answered at the end of a turn."""
        self._inputs_sent = 0
        self._bridge = bridge
        self._multi_turn = multi_turn
        self._open = set(self.rids)
        self._events: deque[Deliver | AwaitingInput | RequestEnded] = deque()
        self._consumed: Counter[tuple[str, str]] = Counter()
        self._last_delivered: Deliver | None = None
        self._waiter: asyncio.Future[None] | None = None
        for submit in submits:
            bridge.frontend.submit(submit, self.push)

    def push(self, event: Deliver | AwaitingInput | RequestEnded) -> None:
        if isinstance(event, AwaitingInput) and not self._multi_turn:
            self._bridge.frontend.send_input(event.rid, None)
            return
        self._events.append(event)
        self._bridge.notify(self)

    def notify(self) -> None:
        """Go on, if it waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def index_of(self, event: Deliver | RequestEnded) -> int:
        """Which of its requests some news is of."""
        return self.rids.index(event.rid)

    async def wait_first(self) -> None:
        """Wait until there is something to read, so that an early refusal can still be a status."""
        while True:
            while self._events and self._events[0].rid not in self._open:
                self._events.popleft()  # of one that was dropped
            if self._events:
                break
            self._waiter = self._bridge.loop.create_future()
            await self._waiter
        news = self._events[0]
        if isinstance(news, RequestEnded) and (isinstance(news.end, m.RequestRejected) or news.end.status != "ok"):
            if self.observer is not None:
                self.observer.on_end(news)
            raise self._bridge.to_error(news.end)

    def __aiter__(self) -> ResponseStream:
        return self

    async def __anext__(self) -> Deliver | RequestEnded:
        while self._open:
            news = await self._next_event()
            if not isinstance(news, AwaitingInput):
                return news
        self._acknowledge_last()
        raise StopAsyncIteration

    async def turn(self) -> AsyncGenerator[Deliver]:
        """What is delivered until the request has done all that it was told and waits for more, or has ended."""
        while self._open:
            news = await self._next_event()
            if isinstance(news, Deliver):
                yield news
            elif isinstance(news, AwaitingInput) and news.number >= self._inputs_sent:
                return

    async def _next_event(self) -> Deliver | AwaitingInput | RequestEnded:
        self._acknowledge_last()
        await self.wait_first()
        news = self._events.popleft()
        if isinstance(news, RequestEnded):
            self._open.discard(news.rid)
            self.result = news.end.result.content if isinstance(news.end, m.RequestFinished) else None
            if self.observer is not None:
                self.observer.on_end(news)
        elif isinstance(news, AwaitingInput):
            self.result = news.answer
        else:
            self._last_delivered = news
            if self.observer is not None:
                self.observer.on_output(news)
        return news

    def send_input(self, value: Any) -> None:
        """Say more to the request."""
        self._inputs_sent += 1
        self._bridge.frontend.send_input(self.rids[0], value)

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, or will have when what is there was read."""
        return not self._open or any(isinstance(news, RequestEnded) for news in self._events)

    def _acknowledge_last(self) -> None:
        """The client has what was read last."""
        if (news := self._last_delivered) is not None:
            self._last_delivered = None
            self._consumed[news.rid, news.kind] += 1
            taken = self._consumed[news.rid, news.kind]
            if taken % CREDIT_INTERVAL == 0:
                self._bridge.frontend.report_consumed(news.rid, news.kind, taken)

    def cancel(self, rid: str) -> None:
        """Want no more of one of them."""
        if rid in self._open:
            self._open.discard(rid)
            self._bridge.frontend.close(rid)
            if self.observer is not None:
                self.observer.on_cancel(rid)

    def close(self) -> None:
        """Want no more."""
        for rid in self.rids:
            self.cancel(rid)
