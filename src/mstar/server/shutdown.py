"""End of a drain: what still runs ends with an error that its client sees, and is counted with it.

1. During the drain, WebSockets that are idle get an error event and are closed, so that they do not hold up the drain.
   Sessions of which another server has a copy are closed too, idle or not: their clients continue there.
2. When the drain times out, or at a second signal, every open response fails with `shutting_down`: an `error` event
   in a stream, a 503 if the response has not started.
3. What does not end by that (a client that does not read, an event feed, an upload) is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from mstar.server.errors import ApiError

RETRY_AFTER_S = 1.0
"""Retry-After, in seconds, of a request that a shutdown ends."""
ERROR_TIMEOUT_S = 0.5
"""Seconds for open responses to send their error."""
CANCEL_TIMEOUT_S = 0.2
"""Seconds for the others to end after they are cancelled."""
_POLL_S = 0.01


def shutting_down() -> ApiError:
    """The error of a request that a shutdown ends."""
    message = "the server is shutting down; fix: send the request again"
    return ApiError(503, "shutting_down", message, retry_after=RETRY_AFTER_S)


SESSION_MOVED = "session_moved"
"""Error code of a realtime session that continues at another server; also the reason of its close frame."""


def session_moved() -> ApiError:
    """The error of a realtime session that continues at another server."""
    return ApiError(503, SESSION_MOVED, "the session continues at another server; fix: connect with its session_id")


class OpenResponse(Protocol):
    """A response stream."""

    def fail(self, error: Exception) -> None:
        """Raise this error at the reader."""
        ...


class OpenWebSocket(Protocol):
    """A WebSocket session."""

    is_busy: Callable[[], bool]
    """Whether a response is in progress."""
    can_move: Callable[[], bool]
    """Whether it is a session that continues at another server."""

    def interrupt(self, error: ApiError) -> None:
        """Raise this error where the session waits for its next message."""
        ...


class Shutdown:
    """Requests and WebSockets in progress at one front end, and how they end."""

    def __init__(self) -> None:
        self.is_cancelling = False
        """Whether handlers are cancelled because the server stops."""
        self.websockets: set[OpenWebSocket] = set()
        self._tasks: set[asyncio.Task[object]] = set()

    def track(self) -> asyncio.Task[object]:
        """Track the current task, which serves a request, until `untrack`. Returns it."""
        task = asyncio.current_task()
        assert task is not None, "handlers run in tasks"
        self._tasks.add(task)
        return task

    def untrack(self, task: asyncio.Task[object]) -> None:
        """The task has served its request."""
        self._tasks.discard(task)

    def end_idle_websockets(self) -> None:
        """Close every WebSocket that is idle, or whose session continues elsewhere, with an error."""
        for websocket in [*self.websockets]:
            if websocket.can_move():
                websocket.interrupt(session_moved())
            elif not websocket.is_busy():
                websocket.interrupt(shutting_down())

    async def end_all(self, responses: Iterable[OpenResponse], has_active: Callable[[], bool]) -> None:
        """End everything: by an error first, then by cancellation."""
        for response in [*responses]:
            response.fail(shutting_down())
        for websocket in [*self.websockets]:
            websocket.interrupt(shutting_down())
        await _poll(has_active, ERROR_TIMEOUT_S)
        self.is_cancelling = True
        for task in [*self._tasks]:
            task.cancel()
        await _poll(lambda: bool(self._tasks), CANCEL_TIMEOUT_S)

    def take_cancellation(self) -> ApiError | None:
        """The error for a handler that was cancelled by `end_all`, which must not be cancelled any more; else None."""
        task = asyncio.current_task()
        if not self.is_cancelling or task is None:
            return None
        task.uncancel()
        return shutting_down()


async def _poll(condition: Callable[[], bool], timeout_s: float) -> None:
    """Wait until a condition is false."""
    for _ in range(round(timeout_s / _POLL_S)):
        if not condition():
            return
        await asyncio.sleep(_POLL_S)
