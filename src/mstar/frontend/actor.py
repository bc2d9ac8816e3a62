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
from mstar.frontend.core import (
    CREDIT_INTERVAL,
    Action,
    AwaitingInput,
    ClientLeft,
    Deliver,
    Event,
    FrontendCore,
    InputSent,
    MessageReceived,
    OutputsConsumed,
    RequestEnded,
    RequestOpened,
    SendMessage,
    Tick,
)
from mstar.transfer import values
from mstar.walk.emissions import KINDS, Emission
from mstar.wire import messages as m
from mstar.wire.transport.actor_loop import ActorLoop

T = TypeVar("T")

QUERY_TIMEOUT_S = 5.0
"""How long another process may take to answer a question; then it is taken for dead."""
Listener = Callable[[Deliver | AwaitingInput | RequestEnded], None]
"""Told of everything that happens to a request, in the thread of the node."""


class RequestFailed(MstarError):
    """A request was refused, or did not come to its end. `end` says how it ended."""

    def __init__(self, end: m.RequestFinished | m.RequestRejected) -> None:
        self.end = end
        what = (
            end.reason
            if isinstance(end, m.RequestRejected)
            else f"{end.error_type}: {end.error_message}"
            if end.error_type
            else end.status
        )
        super().__init__(what)


def digest(value: Any) -> bytes:
    """A few bytes that are equal only for equal values."""
    return hashlib.blake2b(values.pack(value), digest_size=8).digest()


class FrontendActor:
    """A front end on a node. It is told who conducts which model, and hears itself when they come again."""

    def __init__(self, actor_loop: ActorLoop, peer: m.Peer, conductors: Mapping[str, m.Peer]) -> None:
        self.peer = peer
        self._actor_loop = actor_loop
        self._core = FrontendCore(peer, conductors, digest)
        self._listeners: dict[str, Listener] = {}
        self._pending_queries: dict[int, tuple[float, Future[Any], Callable[[Any], Any]]] = {}
        """Questions that wait for an answer, by ticket: until when, and how the answer is read."""
        self._counter = itertools.count()

    # ---------------------------------------------------------------- from any thread
    def open_stream(self, model: str, request: Any, *, tenant: str = "", timeout_s: float = 600.0) -> RequestStream:
        """Have a request served."""
        rid = self.new_rid()
        stream = RequestStream(self, rid)
        self.submit(m.Submit(rid, model, m.Value(request), tenant, timeout_s), stream.push)
        return stream

    def new_rid(self) -> str:
        """A name for a request that no other has."""
        return f"{self.peer}-{next(self._counter)}"

    def submit(self, submit: m.Submit, listener: Listener) -> None:
        """Have a request served, and the listener told."""

        def submitted() -> None:
            self._listeners[submit.rid] = listener
            self._step(time.monotonic(), RequestOpened(submit))

        self._actor_loop.call_soon(submitted)

    def send_input(self, rid: str, value: Any) -> None:
        """The client says more to a request that runs; None: it says no more."""
        self._actor_loop.call_soon(lambda: self._step(time.monotonic(), InputSent(rid, value)))

    def report_consumed(self, rid: str, kind: str, count: int) -> None:
        """The client has taken so many emissions of a kind, in all."""
        self._actor_loop.call_soon(lambda: self._step(time.monotonic(), OutputsConsumed(rid, kind, count)))

    def close(self, rid: str) -> None:
        """The client wants no more of this request."""

        def left() -> None:
            self._listeners.pop(rid, None)
            self._step(time.monotonic(), ClientLeft(rid))

        self._actor_loop.call_soon(left)

    def cancel(self, rid: str) -> None:
        """Have a request ended as cancelled; its listener is told so."""

        def told() -> None:
            for conductor in {*self._core.conductors.values()}:  # to whom it is unknown, it is nothing
                self._actor_loop.send(self.peer, conductor, m.Cancel(rid))

        self._actor_loop.call_soon(told)

    def query_counts(self, peer: m.Peer) -> Future[dict[str, int]]:
        """Ask a process what it holds."""
        return self._query(peer, m.StatsQuery, lambda stock: stock.counts)

    def query_stats(self, peer: m.Peer) -> Future[m.StatsReply]:
        """Ask a process what it holds, and what its ops came to."""
        return self._query(peer, m.StatsQuery, lambda stock: stock)

    def query_spans(self, peer: m.Peer, rid: str) -> Future[m.SpansReply]:
        """Ask a process what a request did there, and when."""
        return self._query(peer, lambda ticket: m.SpansQuery(ticket, rid), lambda timeline: timeline)

    @property
    def conductors(self) -> Mapping[str, m.Peer]:
        """The conductor of each model, in its newest life."""
        return self._core.conductors

    def query_model_status(
        self, conductor: m.Peer, make_query: Callable[[int], m.Message] = m.ModelStatusQuery
    ) -> Future[m.ModelStatusReply]:
        """Ask a conductor which of its models are up and which rest; or have one rest, or woken, and then the same."""
        return self._query(conductor, make_query, lambda standing: standing)

    def query_activity(self, peer: m.Peer) -> Future[m.ActivityReply]:
        """Ask a process what happened since it was last asked."""
        return self._query(peer, m.ActivityQuery, lambda news: news)

    def _query(self, peer: m.Peer, make_query: Callable[[int], m.Message], read_reply: Callable[[Any], T]) -> Future[T]:
        """Ask a process something. If it does not answer, that is a TimeoutError."""
        ticket, answer = next(self._counter), Future[T]()
        answer.set_running_or_notify_cancel()  # from here on nobody can cancel it, and it can be answered

        def ask() -> None:
            self._pending_queries[ticket] = (time.monotonic() + QUERY_TIMEOUT_S, answer, read_reply)
            if peer == self.peer:
                self._on_reply(m.StatsReply(ticket, self._core.stats() | self._actor_loop.stats()))
            else:
                self._actor_loop.send(self.peer, peer, make_query(ticket))

        self._actor_loop.call_soon(ask)
        return answer

    # ---------------------------------------------------------------- on the node
    def receive(self, now: float, sender: m.Peer, message: m.Message) -> None:
        """A message has come."""
        if isinstance(message, m.StatsReply | m.SpansReply | m.ActivityReply | m.ModelStatusReply):
            self._on_reply(message)
            return
        if isinstance(message, m.PeerDead):
            self._actor_loop.forget(message.peer)
        self._step(now, MessageReceived(sender, message))

    def tick(self, now: float) -> None:
        """Time has passed."""
        for ticket in [ticket for ticket, (until, _, _) in self._pending_queries.items() if until < now]:
            self._pending_queries.pop(ticket)[1].set_exception(TimeoutError("it did not answer"))
        self._step(now, Tick())

    def _on_reply(self, message: m.StatsReply | m.SpansReply | m.ActivityReply | m.ModelStatusReply) -> None:
        if (question := self._pending_queries.pop(message.correlation_id, None)) is not None:
            _, answer, read = question
            answer.set_result(read(message))

    def _step(self, now: float, event: Event) -> None:
        for action in self._core.step(now, event):
            self._execute(action)

    def _execute(self, action: Action) -> None:
        if isinstance(action, SendMessage):
            self._actor_loop.send(self.peer, action.to, action.message)
        elif isinstance(action, RequestEnded):
            if (listener := self._listeners.pop(action.rid, None)) is not None:
                listener(action)
        elif (listener := self._listeners.get(action.rid)) is not None:
            listener(action)


class RequestStream:
    """One request, read by one thread: iterate it for its emissions; `end` and `result` are there afterwards."""

    def __init__(self, frontend: FrontendActor, rid: str) -> None:
        self.rid = rid
        self.end: m.RequestFinished | m.RequestRejected | None = None
        self.turn_result: Any = None
        """What it was told last before it may say more."""
        self._frontend = frontend
        self._queue: queue.SimpleQueue[Deliver | AwaitingInput | RequestEnded] = queue.SimpleQueue()
        self._consumed: defaultdict[str, int] = defaultdict(int)

    def push(self, event: Deliver | AwaitingInput | RequestEnded) -> None:
        """Something has happened; the front end says so."""
        self._queue.put(event)

    def send_input(self, value: Any) -> None:
        """Say more to it; None: no more is said."""
        self._frontend.send_input(self.rid, value)

    def turn(self, timeout: float | None = None) -> Iterator[Deliver]:
        """What is delivered until it waits for more, or to the end. Raises queue.Empty if nothing comes for so long."""
        while self.end is None:
            news = self._queue.get(timeout=timeout)
            if isinstance(news, RequestEnded):
                self.end = news.end
                return
            if isinstance(news, AwaitingInput):
                self.turn_result = news.answer
                return
            self._consumed[news.kind] += 1
            if self._consumed[news.kind] % (CREDIT_INTERVAL // 2) == 0:
                self._frontend.report_consumed(self.rid, news.kind, self._consumed[news.kind])
            yield news

    def events(self, timeout: float | None = None) -> Iterator[Deliver]:
        """What is delivered until the end. If it waits for more it is told that there is none."""
        while self.end is None:
            yield from self.turn(timeout)
            if self.end is None:
                self.send_input(None)

    def __iter__(self) -> Iterator[Emission]:
        """Its emissions. Raises NotServed unless it ends well."""
        for news in self.events():
            yield KINDS[news.kind](news.value, **dict(news.clock))
        if not isinstance(self.end, m.RequestFinished) or self.end.status != "ok":
            assert self.end is not None
            raise RequestFailed(self.end)

    @property
    def result(self) -> Any:
        """What its route gave, once it has ended well."""
        return self.end.result.content if isinstance(self.end, m.RequestFinished) else None

    def close(self) -> None:
        """Want no more of it."""
        self._frontend.close(self.rid)
