"""A front end on a node: its core, and streams that any thread can open, read and close.

It speaks to no client itself. An HTTP server gives each request a listener; a script reads a `Stream`.
"""

from __future__ import annotations

import hashlib
import itertools
import queue
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from mstar.errors import MstarError
from mstar.server.streams import (
    GRANT,
    Action,
    Deliver,
    Ended,
    Event,
    FrontCore,
    Left,
    Opened,
    Received,
    Send,
    Tick,
    Told,
    Took,
    Waits,
)
from mstar.transfer import values
from mstar.walk.emissions import KINDS, Emission
from mstar.wire import messages as m
from mstar.wire.node import Node

T = TypeVar("T")

ANSWER_S = 5.0
"""How long another process may take to answer a question; then it is taken for dead."""
Listener = Callable[[Deliver | Waits | Ended], None]
"""Told of everything that happens to a request, in the thread of the node."""


class NotServed(MstarError):
    """A request was refused, or did not come to its end. `end` says how it ended."""

    def __init__(self, end: m.Finished | m.Refused) -> None:
        self.end = end
        what = end.why if isinstance(end, m.Refused) else f"{end.error}: {end.text}" if end.error else end.status
        super().__init__(what)


def digest(value: Any) -> bytes:
    """A few bytes that are equal only for equal values."""
    return hashlib.blake2b(values.pack(value), digest_size=8).digest()


class FrontEnd:
    """A front end on a node. It is told who conducts which model, and hears itself when they come again."""

    def __init__(self, node: Node, me: m.Peer, conductors: Mapping[str, m.Peer]) -> None:
        self.peer = me
        self._node = node
        self._core = FrontCore(me, conductors, digest)
        self._listeners: dict[str, Listener] = {}
        self._asked: dict[int, tuple[float, Future[Any], Callable[[Any], Any]]] = {}
        """Questions that wait for an answer, by ticket: until when, and how the answer is read."""
        self._numbers = itertools.count()

    # ---------------------------------------------------------------- from any thread
    def open(self, model: str, request: Any, *, tenant: str = "", patience: float = 600.0) -> Stream:
        """Have a request served."""
        rid = self.new_rid()
        stream = Stream(self, rid)
        self.listen(m.Submit(rid, model, m.Value(request), tenant, patience), stream.told)
        return stream

    def new_rid(self) -> str:
        """A name for a request that no other has."""
        return f"{self.peer}-{next(self._numbers)}"

    def listen(self, submit: m.Submit, listener: Listener) -> None:
        """Have a request served, and the listener told."""

        def submitted() -> None:
            self._listeners[submit.rid] = listener
            self._step(time.monotonic(), Opened(submit))

        self._node.call(submitted)

    def say(self, rid: str, value: Any) -> None:
        """The client says more to a request that runs; None: it says no more."""
        self._node.call(lambda: self._step(time.monotonic(), Told(rid, value)))

    def took(self, rid: str, kind: str, count: int) -> None:
        """The client has taken so many emissions of a kind, in all."""
        self._node.call(lambda: self._step(time.monotonic(), Took(rid, kind, count)))

    def close(self, rid: str) -> None:
        """The client wants no more of this request."""

        def left() -> None:
            self._listeners.pop(rid, None)
            self._step(time.monotonic(), Left(rid))

        self._node.call(left)

    def cancel(self, rid: str) -> None:
        """Have a request ended as cancelled; its listener is told so."""

        def told() -> None:
            for conductor in {*self._core.conductors.values()}:  # to whom it is unknown, it is nothing
                self._node.send(self.peer, conductor, m.Cancel(rid))

        self._node.call(told)

    def take_stock(self, peer: m.Peer) -> Future[dict[str, int]]:
        """Ask a process what it holds."""
        return self._ask(peer, m.TakeStock, lambda stock: stock.counts)

    def take_figures(self, peer: m.Peer) -> Future[m.Stock]:
        """Ask a process what it holds, and what its ops came to."""
        return self._ask(peer, m.TakeStock, lambda stock: stock)

    def take_timeline(self, peer: m.Peer, rid: str) -> Future[m.Timeline]:
        """Ask a process what a request did there, and when."""
        return self._ask(peer, lambda ticket: m.TakeTimeline(ticket, rid), lambda timeline: timeline)

    @property
    def conductors(self) -> Mapping[str, m.Peer]:
        """The conductor of each model, in its newest life."""
        return self._core.conductors

    def take_standing(
        self, conductor: m.Peer, worded: Callable[[int], m.Message] = m.TakeStanding
    ) -> Future[m.Standing]:
        """Ask a conductor which of its models are up and which rest; or have one rest, or woken, and then the same."""
        return self._ask(conductor, worded, lambda standing: standing)

    def take_news(self, peer: m.Peer) -> Future[m.News]:
        """Ask a process what happened since it was last asked."""
        return self._ask(peer, m.TakeNews, lambda news: news)

    def _ask(self, peer: m.Peer, worded: Callable[[int], m.Message], read: Callable[[Any], T]) -> Future[T]:
        """Ask a process something. If it does not answer, that is a TimeoutError."""
        ticket, answer = next(self._numbers), Future[T]()
        answer.set_running_or_notify_cancel()  # from here on nobody can cancel it, and it can be answered

        def ask() -> None:
            self._asked[ticket] = (time.monotonic() + ANSWER_S, answer, read)
            if peer == self.peer:
                self._answered(m.Stock(ticket, self._core.stock() | self._node.stock()))
            else:
                self._node.send(self.peer, peer, worded(ticket))

        self._node.call(ask)
        return answer

    # ---------------------------------------------------------------- on the node
    def receive(self, now: float, sender: m.Peer, message: m.Message) -> None:
        """A message has come."""
        if isinstance(message, m.Stock | m.Timeline | m.News | m.Standing):
            self._answered(message)
            return
        if isinstance(message, m.Forget):
            self._node.forget(message.peer)
        self._step(now, Received(sender, message))

    def tick(self, now: float) -> None:
        """Time has passed."""
        for ticket in [ticket for ticket, (until, _, _) in self._asked.items() if until < now]:
            self._asked.pop(ticket)[1].set_exception(TimeoutError("it did not answer"))
        self._step(now, Tick())

    def _answered(self, message: m.Stock | m.Timeline | m.News | m.Standing) -> None:
        if (question := self._asked.pop(message.ticket, None)) is not None:
            _, answer, read = question
            answer.set_result(read(message))

    def _step(self, now: float, event: Event) -> None:
        for action in self._core.step(now, event):
            self._do(action)

    def _do(self, action: Action) -> None:
        if isinstance(action, Send):
            self._node.send(self.peer, action.to, action.message)
        elif isinstance(action, Ended):
            if (listener := self._listeners.pop(action.rid, None)) is not None:
                listener(action)
        elif (listener := self._listeners.get(action.rid)) is not None:
            listener(action)


class Stream:
    """One request, read by one thread: iterate it for its emissions; `end` and `result` are there afterwards."""

    def __init__(self, front_end: FrontEnd, rid: str) -> None:
        self.rid = rid
        self.end: m.Finished | m.Refused | None = None
        self.answer: Any = None
        """What it was told last before it may say more."""
        self._front_end = front_end
        self._told: queue.SimpleQueue[Deliver | Waits | Ended] = queue.SimpleQueue()
        self._taken: defaultdict[str, int] = defaultdict(int)

    def told(self, news: Deliver | Waits | Ended) -> None:
        """Something has happened; the front end says so."""
        self._told.put(news)

    def say(self, value: Any) -> None:
        """Say more to it; None: no more is said."""
        self._front_end.say(self.rid, value)

    def turn(self, timeout: float | None = None) -> Iterator[Deliver]:
        """What is delivered until it waits for more, or to the end. Raises queue.Empty if nothing comes for so long."""
        while self.end is None:
            news = self._told.get(timeout=timeout)
            if isinstance(news, Ended):
                self.end = news.end
                return
            if isinstance(news, Waits):
                self.answer = news.answer
                return
            self._taken[news.kind] += 1
            if self._taken[news.kind] % (GRANT // 2) == 0:
                self._front_end.took(self.rid, news.kind, self._taken[news.kind])
            yield news

    def events(self, timeout: float | None = None) -> Iterator[Deliver]:
        """What is delivered until the end. If it waits for more it is told that there is none."""
        while self.end is None:
            yield from self.turn(timeout)
            if self.end is None:
                self.say(None)

    def __iter__(self) -> Iterator[Emission]:
        """Its emissions. Raises NotServed unless it ends well."""
        for news in self.events():
            yield KINDS[news.kind](news.value, **dict(news.clock))
        if not isinstance(self.end, m.Finished) or self.end.status != "ok":
            assert self.end is not None
            raise NotServed(self.end)

    @property
    def result(self) -> Any:
        """What its route gave, once it has ended well."""
        return self.end.result.it if isinstance(self.end, m.Finished) else None

    def close(self) -> None:
        """Want no more of it."""
        self._front_end.close(self.rid)
