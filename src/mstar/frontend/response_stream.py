"""Response streams for asyncio: the outputs of running requests as async iterators.

Events cross from the thread of the actor loop to the event loop; one wake-up carries the events of all streams.
Backpressure: an output counts as consumed once the client's connection has taken it, and a worker runs only a limited
number of outputs ahead (`max_undelivered_outputs`). Nothing here knows HTTP.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from mstar.frontend.actor import FrontendActor
from mstar.frontend.core import CREDIT_INTERVAL, AwaitingInput, Deliver, RequestEnded
from mstar.wire import messages as m

__all__ = ["Deliver", "FrontendActor", "LoopBridge", "RequestEnded", "ResponseStream", "wait_reply"]

T = TypeVar("T")

MAX_PENDING_STREAMS = 128
"""Streams with new events for which the event loop wakes up before all messages that have arrived are handled."""


async def wait_reply(future: Future[T], timeout_s: float) -> T | None:
    """Wait for the reply to a query; None if it does not arrive in time."""
    reply = asyncio.wrap_future(future)
    # A reply that comes too late is read here, or asyncio logs that its exception was never retrieved.
    reply.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.wait_for(asyncio.shield(reply), timeout_s)
    except TimeoutError:
        return None


class LoopBridge:
    """Wakes the streams of one event loop that have new events."""

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
        self.open_streams: set[ResponseStream] = set()
        """Streams that are not closed."""
        self._pending: deque[ResponseStream] = deque()
        self._is_scheduled = False
        self._consumed: dict[tuple[str, str], int] = {}

    def notify(self, stream: ResponseStream) -> None:
        """Schedule a wake-up of this stream. Called in the thread of the actor loop.

        The event loop wakes up after the messages that have arrived are handled: before, it would only compete with
        this thread for the GIL.
        """
        self._pending.append(stream)
        if not self._is_scheduled:
            self._is_scheduled = True
            self.frontend.call_after_turn(self._wake_loop)
        elif len(self._pending) == MAX_PENDING_STREAMS:
            self._wake_loop()

    def _wake_loop(self) -> None:
        self.loop.call_soon_threadsafe(self._flush)

    def report_consumed(self, consumed: Mapping[tuple[str, str], int]) -> None:
        """Report consumed outputs, by request and kind. One message carries those of all streams in a turn."""
        if not self._consumed:
            self.loop.call_soon(self._report)
        self._consumed |= consumed

    def _report(self) -> None:
        consumed, self._consumed = self._consumed, {}
        self.frontend.report_consumed(consumed)

    def _flush(self) -> None:
        self._is_scheduled = False  # first: a stream added from now on is popped below or schedules a flush
        while self._pending:
            self._pending.popleft().notify()


class ResponseObserver(Protocol):
    """Observes the outputs and the end of requests."""

    def on_output(self, event: Deliver) -> None:
        """An output is handed to the client."""
        ...

    def on_end(self, event: RequestEnded) -> None:
        """A request has ended."""
        ...

    def on_cancel(self, rid: str, error: Exception | None) -> None:
        """A request was cancelled by its client, or ended by the server with this error."""
        ...


class ResponseStream:
    """Running requests of one client. Iterate it for the deliveries and the successful end of each request.

    It raises the error of the first request that fails. The creator must close it. With `multi_turn`, read it turn by
    turn and send more input; without, the input of a request ends as soon as it waits for more.
    """

    __slots__ = (
        *("_bridge", "_credits", "_delivered", "_events", "_inputs_sent", "_multi_turn", "_open", "_waiter"),
        *("_failure", "_preparation", "observer", "on_outputs", "result", "rids", "to_error"),
    )

    def __init__(
        self,
        bridge: LoopBridge,
        submits: Sequence[m.Submit],
        *,
        multi_turn: bool = False,
        prepare: Callable[[m.Submit], Awaitable[m.Submit]] | None = None,
    ) -> None:
        """Submit the requests; with `prepare`, each only after this has completed it."""
        self.rids = [submit.rid for submit in submits]
        self.observer: ResponseObserver | None = None
        self.on_outputs: Callable[[], None] | None = None
        """Called in the event loop for outputs that arrive while a task waits for them in `wait_ready`. It takes them
        with `poll`; the task is woken up for the rest: to resume it costs more than to send a token."""
        self.result: Any = None
        """Result of the last request or turn that ended."""
        self._inputs_sent = 0
        self.to_error = bridge.to_error
        self._bridge = bridge
        self._multi_turn = multi_turn
        self._open = set(self.rids)
        self._events: deque[Deliver | AwaitingInput | RequestEnded] = deque()
        self._delivered: dict[tuple[str, str], int] = {}
        """Outputs that were read, by request and kind."""
        self._credits: dict[tuple[str, str], int] = {}
        """Outputs to report as consumed with the next read: the connection has not taken them before."""
        self._waiter: asyncio.Future[None] | None = None
        self._failure: Exception | None = None
        """Error of `prepare`, or with which the server ends it."""
        bridge.open_streams.add(self)
        self._preparation: asyncio.Task[None] | None = None
        if prepare is not None:
            self._preparation = bridge.loop.create_task(self._prepare_and_submit(submits, prepare))
            return
        for submit in submits:
            bridge.frontend.submit(submit, self.push)

    async def _prepare_and_submit(
        self, submits: Sequence[m.Submit], prepare: Callable[[m.Submit], Awaitable[m.Submit]]
    ) -> None:
        try:
            for submit in submits:
                prepared = await prepare(submit)
                if submit.rid in self._open:  # the client can have left meanwhile
                    self._bridge.frontend.submit(prepared, self.push)
        except Exception as error:  # noqa: BLE001 - the reader gets it
            self.fail(error)

    def push(self, event: Deliver | AwaitingInput | RequestEnded) -> None:
        """Queue an event. Called in the thread of the actor loop."""
        if isinstance(event, AwaitingInput) and not self._multi_turn:
            self._bridge.frontend.send_input(event.rid, None)
            return
        self._events.append(event)
        self._bridge.notify(self)

    def notify(self) -> None:
        """Hand outputs to `on_outputs` or wake the reader, if it waits. Called in the event loop."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self.on_outputs is not None:
            try:
                self.on_outputs()
            except Exception as error:  # noqa: BLE001 - the reader gets it
                self._failure = error
            self._report_consumed()
            if self._open and not self._events and self._failure is None:
                return
        waiter.set_result(None)

    def index_of(self, event: Deliver | RequestEnded) -> int:
        """Index of the request of an event."""
        return self.rids.index(event.rid)

    async def wait_first(self) -> None:
        """Wait for the first event. Raises the error of a failed request, in time for an HTTP status."""
        while True:
            if self._failure is not None:
                raise self._failure
            while self._events and self._events[0].rid not in self._open:
                self._events.popleft()  # of a cancelled request
            if self._events:
                break
            if not self._open:  # `on_outputs` has taken the last ones
                return
            self._waiter = self._bridge.loop.create_future()
            await self._waiter
        event = self._events[0]
        if isinstance(event, RequestEnded) and _has_failed(event):
            if self.observer is not None:
                self.observer.on_end(event)
            raise self.to_error(event.end)

    def __aiter__(self) -> ResponseStream:
        return self

    async def __anext__(self) -> Deliver | RequestEnded:
        while self._open:
            event = await self._next_event()
            if not isinstance(event, AwaitingInput):
                return event
        self._report_consumed()
        raise StopAsyncIteration

    async def wait_ready(self) -> bool:
        """Wait for an event that `poll` returns; what it has returned before is consumed. False after the end.

        Raises the error of a failed request.
        """
        self._report_consumed()
        if not self._open:
            return False
        await self.wait_first()
        return True

    def poll(self, *, outputs_only: bool = False) -> Deliver | RequestEnded | None:
        """The next event, if it has arrived. None for that of a failed request, whose error the next wait raises.

        With `outputs_only`, None for any event but an output.
        """
        while self._events and self._failure is None:
            event = self._events[0]
            if event.rid not in self._open:
                self._events.popleft()  # of a cancelled request
            elif isinstance(event, Deliver):  # first: nearly all events are
                return self._take_output(event)
            elif outputs_only or (isinstance(event, RequestEnded) and _has_failed(event)):
                return None
            elif not isinstance(taken := self._take(), AwaitingInput):
                return taken
        return None

    async def turn(self) -> AsyncGenerator[Deliver]:
        """Deliveries until the request has answered all inputs or has ended."""
        while self._open:
            event = await self._next_event()
            if isinstance(event, Deliver):
                yield event
            elif isinstance(event, AwaitingInput) and event.number >= self._inputs_sent:
                return

    async def _next_event(self) -> Deliver | AwaitingInput | RequestEnded:
        self._report_consumed()
        await self.wait_first()
        return self._take()

    def _take(self) -> Deliver | AwaitingInput | RequestEnded:
        event = self._events[0]
        if isinstance(event, Deliver):
            return self._take_output(event)
        self._events.popleft()
        if isinstance(event, RequestEnded):
            self._open.discard(event.rid)
            self.result = event.end.result.content if isinstance(event.end, m.RequestFinished) else None
            if self.observer is not None:
                self.observer.on_end(event)
        else:
            self.result = event.answer
        return event

    def _take_output(self, event: Deliver) -> Deliver:
        """Take the first event, which is this one."""
        self._events.popleft()
        key = event.rid, event.kind
        self._delivered[key] = count = self._delivered.get(key, 0) + 1
        if not count % CREDIT_INTERVAL:
            self._credits[key] = count
        if self.observer is not None:
            self.observer.on_output(event)
        return event

    def send_input(self, value: Any) -> None:
        """Send more input to the first request."""
        self._inputs_sent += 1
        self._bridge.frontend.send_input(self.rids[0], value)

    @property
    def is_finished(self) -> bool:
        """Whether all requests have ended, or will have once the queued events are read."""
        return not self._open or any(isinstance(event, RequestEnded) for event in self._events)

    def _report_consumed(self) -> None:
        """Report consumed outputs, every CREDIT_INTERVAL of them."""
        if self._credits:
            self._bridge.report_consumed(self._credits)
            self._credits.clear()

    def cancel(self, rid: str) -> None:
        """Cancel one of the requests."""
        if rid in self._open:
            self._open.discard(rid)
            self._bridge.frontend.close(rid)
            if self.observer is not None:
                self.observer.on_cancel(rid, self._failure)

    def fail(self, error: Exception) -> None:
        """Raise an error at the reader, now or when it reads again. Called in the event loop."""
        self._failure = error
        self.notify()

    def close(self) -> None:
        """Cancel all requests that have not ended."""
        self._bridge.open_streams.discard(self)
        self.on_outputs = None  # else a cycle would keep the response
        if self._preparation is not None:
            self._preparation.cancel()
        for rid in self.rids:
            self.cancel(rid)


def _has_failed(event: RequestEnded) -> bool:
    return isinstance(event.end, m.RequestRejected) or event.end.status != "ok"
