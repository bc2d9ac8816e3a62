"""Front-end actor: runs the front-end core on the actor loop; any thread can submit, read and cancel requests.

It does not talk to clients itself. The HTTP server passes a listener for each request; a script reads a
`RequestStream`. It also sends queries (statistics, spans, activity) to other processes and matches the replies.
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
from mstar.wire.transport.actor_loop import SLOW_TICKS, ActorLoop

T = TypeVar("T")

QUERY_TIMEOUT_S = 5.0
"""Seconds to wait for the reply to a query."""
MAX_PLAIN_CHARS = 32
"""Maximum characters of a text that is stored itself instead of its hash, which takes about as much memory."""
_REPLIES = (m.StatsReply, m.SpansReply, m.ActivityReply, m.ModelStatusReply)
_OUTPUTS = (Deliver, AwaitingInput)
Listener = Callable[[Deliver | AwaitingInput | RequestEnded], None]
"""Called for every event of a request, in the thread of the actor loop."""


class RequestFailed(MstarError):
    """A request was rejected or failed; `end` has the details."""

    def __init__(self, end: m.RequestFinished | m.RequestRejected) -> None:
        self.end = end
        reason = (
            end.reason
            if isinstance(end, m.RequestRejected)
            else f"{end.error_type}: {end.error_message}"
            if end.error_type
            else end.status
        )
        super().__init__(reason)


def digest(value: Any) -> bytes:
    """64-bit hash of a value."""
    return hashlib.blake2b(values.pack(value), digest_size=8).digest()


def short_digest(value: Any) -> Any:
    """The value itself if it is a short text or one integer, as tokens are, else its hash."""
    token: Any = value.item() if getattr(value, "shape", None) == (1,) else value
    is_plain = type(token) is int or (type(token) is str and len(token) <= MAX_PLAIN_CHARS)
    return token if is_plain else digest(value)


class FrontendActor:
    """The front end as an actor. It gets the conductor of each model, and detects restarts of conductors itself."""

    tick_interval = SLOW_TICKS

    def __init__(self, actor_loop: ActorLoop, peer: m.Peer, conductors: Mapping[str, m.Peer]) -> None:
        self.peer = peer
        self._actor_loop = actor_loop
        self.call_after_turn = actor_loop.call_after_turn
        """For the thread of the actor loop: run a function after the messages that have arrived are handled."""
        self._core = FrontendCore(peer, conductors, short_digest)
        self._listeners: dict[str, Listener] = {}
        self._pending_queries: dict[int, tuple[float, Future[Any], Callable[[Any], Any]]] = {}
        """Unanswered queries by correlation id: timeout, future, and the function that reads the reply."""
        self._counter = itertools.count()

    # ---------------------------------------------------------------- from any thread
    def open_stream(self, model: str, request: Any, *, tenant: str = "", timeout_s: float = 600.0) -> RequestStream:
        """Submit a request and return its stream."""
        rid = self.new_rid()
        stream = RequestStream(self, rid)
        self.submit(m.Submit(rid, model, m.Value(request), tenant, timeout_s), stream.push)
        return stream

    def new_rid(self) -> str:
        """A new, unique request id."""
        return f"{self.peer}-{next(self._counter)}"

    def submit(self, submit: m.Submit, listener: Listener) -> None:
        """Submit a request; the listener gets its events."""

        def open_request() -> None:
            self._listeners[submit.rid] = listener
            self._step(time.monotonic(), RequestOpened(submit))

        _run_soon(self._actor_loop, open_request)

    def send_input(self, rid: str, value: Any) -> None:
        """Send more input to a running request; None ends the input."""
        _run_soon(self._actor_loop, lambda: self._step(time.monotonic(), InputSent(rid, value)))

    def report_consumed(self, consumed: Mapping[tuple[str, str], int]) -> None:
        """Report how many emissions the client has consumed so far, by request and kind (backpressure)."""

        def step_each() -> None:
            for (rid, kind), count in consumed.items():
                self._step(time.monotonic(), OutputsConsumed(rid, kind, count))

        _run_soon(self._actor_loop, step_each)

    def close(self, rid: str) -> None:
        """Cancel a request whose client has disconnected; its listener gets no more events."""

        def close_request() -> None:
            self._listeners.pop(rid, None)
            self._step(time.monotonic(), ClientLeft(rid))

        _run_soon(self._actor_loop, close_request)

    def cancel(self, rid: str) -> None:
        """Cancel a request; its listener gets the end with status `cancelled`."""

        def send_cancel() -> None:
            for conductor in {*self._core.conductors.values()}:  # conductors ignore an unknown request id
                self._actor_loop.send(self.peer, conductor, m.Cancel(rid))

        _run_soon(self._actor_loop, send_cancel)

    def query_counts(self, peer: m.Peer) -> Future[dict[str, int]]:
        """Query the counts of a process."""
        return self._query(peer, m.StatsQuery, lambda reply: reply.counts)

    def query_stats(self, peer: m.Peer, metrics: tuple[str, ...] = ()) -> Future[m.StatsReply]:
        """Query the counts, op statistics and deadline statistics of a process, and these metrics of a front end."""
        return self._query(peer, lambda correlation_id: m.StatsQuery(correlation_id, metrics), lambda reply: reply)

    def query_spans(self, peer: m.Peer, rid: str) -> Future[m.SpansReply]:
        """Query the spans of a request at a process."""
        return self._query(peer, lambda correlation_id: m.SpansQuery(correlation_id, rid), lambda reply: reply)

    @property
    def conductors(self) -> Mapping[str, m.Peer]:
        """Conductor of each model, in its newest incarnation."""
        return self._core.conductors

    def query_model_status(
        self, conductor: m.Peer, make_query: Callable[[int], m.Message] = m.ModelStatusQuery
    ) -> Future[m.ModelStatusReply]:
        """Query the states of a conductor's models; with a load or unload message, change one first."""
        return self._query(conductor, make_query, lambda reply: reply)

    def query_activity(self, peer: m.Peer) -> Future[m.ActivityReply]:
        """Query the activity of a process since the last query."""
        return self._query(peer, m.ActivityQuery, lambda reply: reply)

    def _query(self, peer: m.Peer, make_query: Callable[[int], m.Message], read_reply: Callable[[Any], T]) -> Future[T]:
        """Send a query to a process. The future fails with TimeoutError after QUERY_TIMEOUT_S."""
        correlation_id, future = next(self._counter), Future[T]()
        future.set_running_or_notify_cancel()  # a cancelled future could not take the reply

        def send_query() -> None:
            self._pending_queries[correlation_id] = (time.monotonic() + QUERY_TIMEOUT_S, future, read_reply)
            if peer == self.peer:
                self._on_reply(m.StatsReply(correlation_id, self._core.stats() | self._actor_loop.stats()))
            else:
                self._actor_loop.send(self.peer, peer, make_query(correlation_id))

        _run_soon(self._actor_loop, send_query)
        return future

    # ---------------------------------------------------------------- in the turn of the actor loop
    def receive(self, now: float, sender: m.Peer, message: m.Message) -> None:
        """Handle a message from another process."""
        if not isinstance(message, m.Emit):  # nearly all messages are
            if isinstance(message, _REPLIES):
                self._on_reply(message)
                return
            if isinstance(message, m.PeerDead):
                self._actor_loop.forget(message.peer)
        self._step(now, MessageReceived(sender, message))

    def tick(self, now: float) -> None:
        """Fail overdue queries and advance the core's clock."""
        overdue = [key for key, (timeout_at, _, _) in self._pending_queries.items() if timeout_at < now]
        for correlation_id in overdue:
            _, future, _ = self._pending_queries.pop(correlation_id)
            future.set_exception(TimeoutError(f"no reply within {QUERY_TIMEOUT_S:g} s"))
        self._step(now, Tick())

    def _on_reply(self, message: m.StatsReply | m.SpansReply | m.ActivityReply | m.ModelStatusReply) -> None:
        if (query := self._pending_queries.pop(message.correlation_id, None)) is not None:
            _, future, read_reply = query
            future.set_result(read_reply(message))

    def _step(self, now: float, event: Event) -> None:
        for action in self._core.step(now, event):
            self._execute(action)

    def _execute(self, action: Action) -> None:
        if isinstance(action, _OUTPUTS):
            if (listener := self._listeners.get(action.rid)) is not None:
                listener(action)
        elif isinstance(action, SendMessage):
            self._actor_loop.send(self.peer, action.to, action.message)
        elif (listener := self._listeners.pop(action.rid, None)) is not None:
            listener(action)


def _run_soon(actor_loop: ActorLoop, function: Callable[[], None]) -> None:
    """Run a function in the turn of an actor loop: at once if the loop waits, else in its thread.

    A wake-up of that thread would cost more than what most of these functions do.
    """
    if not actor_loop.try_run(function):
        actor_loop.call_soon(function)


class RequestStream:
    """Blocking reader of one request: iterate it for its emissions; `end` and `result` are set afterwards."""

    def __init__(self, frontend: FrontendActor, rid: str) -> None:
        self.rid = rid
        self.end: m.RequestFinished | m.RequestRejected | None = None
        self.turn_result: Any = None
        """Result of the last turn."""
        self._frontend = frontend
        self._queue: queue.SimpleQueue[Deliver | AwaitingInput | RequestEnded] = queue.SimpleQueue()
        self._consumed: defaultdict[str, int] = defaultdict(int)

    def push(self, event: Deliver | AwaitingInput | RequestEnded) -> None:
        """Queue an event. Called in the thread of the actor loop."""
        self._queue.put(event)

    def send_input(self, value: Any) -> None:
        """Send more input; None ends the input."""
        self._frontend.send_input(self.rid, value)

    def turn(self, timeout: float | None = None) -> Iterator[Deliver]:
        """Deliveries of the current turn. Raises queue.Empty if none arrives within `timeout` seconds."""
        while self.end is None:
            event = self._queue.get(timeout=timeout)
            if isinstance(event, RequestEnded):
                self.end = event.end
                return
            if isinstance(event, AwaitingInput):
                self.turn_result = event.answer
                return
            self._consumed[event.kind] += 1
            if self._consumed[event.kind] % (CREDIT_INTERVAL // 2) == 0:
                self._frontend.report_consumed({(self.rid, event.kind): self._consumed[event.kind]})
            yield event

    def events(self, timeout: float | None = None) -> Iterator[Deliver]:
        """All deliveries until the end. Ends the input whenever the request waits for more."""
        while self.end is None:
            yield from self.turn(timeout)
            if self.end is None:
                self.send_input(None)

    def __iter__(self) -> Iterator[Emission]:
        """Emissions of the request. Raises RequestFailed if it was rejected or failed."""
        for event in self.events():
            yield KINDS[event.kind](event.value, **dict(event.clock))
        if not isinstance(self.end, m.RequestFinished) or self.end.status != "ok":
            assert self.end is not None
            raise RequestFailed(self.end)

    @property
    def result(self) -> Any:
        """Return value of the route, None unless the request finished."""
        return self.end.result.content if isinstance(self.end, m.RequestFinished) else None

    def close(self) -> None:
        """Cancel the request."""
        self._frontend.close(self.rid)
