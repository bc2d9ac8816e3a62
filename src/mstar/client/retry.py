"""One request until its answer is there: when to ask, when to ask again, and what the caller has already.

An errand is a generator that says what is to be done next and is told what came of it; it does no IO and has no clock.
Whoever drives it hands everything else that it yields to the caller. A refusal for lack of room, and an answer that
was lost before its caller had anything of it, is asked for again. A stream that was cut is asked for again only if it
may be: what the caller has is compared and held back, so that nothing is delivered twice and nothing else is passed
off as the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Generic, Protocol, TypeVar

from mstar.client.errors import (
    ClientError,
    ServerBusy,
    ServerNotReady,
    ServerUnreachable,
    StreamDiverged,
    StreamInterrupted,
    to_api_error,
)
from mstar.client.stream_parsing import decode_json

E = TypeVar("E")
R = TypeVar("R")
Event = TypeVar("Event", covariant=True)

INITIAL_BACKOFF_S, MAX_BACKOFF_S = 0.1, 5.0
"""How long to wait before the second try, and at most before any."""


# ---------------------------------------------------------------- what is done, and what comes of it
@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send a request, and be told Answered or Lost."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: Mapping[str, Any]
    """The body, under the names that httpx2 has for its kinds."""


@dataclass(frozen=True, slots=True)
class ReadMore:
    """Read on, and be told bytes, which are empty at the end, or Lost."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The head of an answer."""

    status: int
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The connection is no more."""

    reason: str
    may_have_been_sent: bool
    """Whether the server may have been asked."""


Effect = SendRequest | ReadMore | Sleep
EffectResult = ResponseHead | ConnectionLost | bytes | None


# ---------------------------------------------------------------- calls
@dataclass(frozen=True, slots=True)
class Chunk(Generic[Event]):
    """Part of an answer: bytes of a lane, and the event that those of them make that are new."""

    channel: str
    content: bytes
    event: Callable[[bytes], Event]


class ResponseReader(Protocol[Event, R]):
    """Reads one answer. `result` is there once it is complete."""

    result: R | None

    def feed(self, data: bytes) -> Iterable[Chunk[Event]]:
        """Read on."""
        ...

    def finish(self) -> None:
        """No more bytes come."""


@dataclass(frozen=True, slots=True)
class ApiCall(Generic[E, R]):
    """A request, and how its answer is read."""

    request: SendRequest
    reader: Callable[[ResponseHead], ResponseReader[E, R]]
    is_deterministic: bool = False
    """Whether it gives the same when it is asked again."""
    is_idempotent: bool = True
    """Whether it may be asked again when nobody knows if it was heard."""
    success_statuses: frozenset[int] = field(default=frozenset({200, 201}))

    @property
    def request_id(self) -> str:
        """Under which the server knows it."""
        return self.request.headers["X-Request-Id"]


def request_with_retry(call: ApiCall[E, R], retry_timeout_s: float) -> Generator[Effect | E, EffectResult, R]:
    """Have one answer. Raises what `mstar.client.errors` has."""
    ledger, patience = ResumeLog(), RetryBudget(retry_timeout_s)
    while True:
        ledger.rewind()
        told = yield call.request
        if isinstance(told, ResponseHead) and told.status in call.success_statuses:
            reader, data = call.reader(told), b"?"
            while data:  # to the end, so that the connection can be used again
                told = yield ReadMore()
                if not isinstance(told, bytes):
                    break
                data = told
                for piece in reader.feed(data):
                    if fresh := ledger.skip_delivered(piece.channel, piece.content):
                        patience.reset()
                        yield piece.event(fresh)
                if not data:
                    reader.finish()
            if reader.result is not None:
                ledger.finish()
                return reader.result
        error = yield from _error_from(call, told)
        if ledger.has_delivered and not call.is_deterministic:
            raise StreamInterrupted(str(error).partition("\n")[0])
        yield Sleep(patience.next_backoff(error))


def _error_from(call: ApiCall[Any, Any], result: EffectResult) -> Generator[Effect, EffectResult, ClientError]:
    """What went wrong. Raised if it would do no good, or harm, to try again."""
    if isinstance(result, ResponseHead):
        error = to_api_error(result.status, decode_json((yield from _read_rest())), call.request_id, result.headers)
        if not isinstance(error, ServerBusy):
            raise error
        return error
    lost = (
        result
        if isinstance(result, ConnectionLost)
        else ConnectionLost("the answer ended before its end", may_have_been_sent=True)
    )
    if lost.may_have_been_sent and not call.is_idempotent:
        raise ServerUnreachable(lost.reason)
    return ServerUnreachable(lost.reason)


def _read_rest() -> Generator[Effect, EffectResult, bytes]:
    data = bytearray()
    while isinstance(more := (yield ReadMore()), bytes) and more:
        data += more
    return bytes(data)


def poll_until_ready(
    call: ApiCall[E, R], not_ready_reason: Callable[[R], str], timeout_s: float
) -> Generator[Effect | E, EffectResult, R]:
    """Ask until the answer is that all is ready; `is_ready` says what is the matter, if something is."""
    left, what = timeout_s, "not there"
    while True:
        try:
            answer = yield from request_with_retry(call, 0.0)
            what = not_ready_reason(answer)
            if not what:
                return answer
        except (ServerBusy, ServerUnreachable):
            what = "not there"
        if left <= 0:
            raise ServerNotReady(timeout_s, what)
        yield Sleep(INITIAL_BACKOFF_S)
        left -= INITIAL_BACKOFF_S


# ---------------------------------------------------------------- what the caller has
class _ChannelDigest:
    def __init__(self) -> None:
        self.size = 0
        self._hash = blake2b(digest_size=16)

    def add(self, content: bytes) -> None:
        self.size += len(content)
        self._hash.update(content)

    @property
    def digest(self) -> bytes:
        return self._hash.digest()


class ResumeLog:
    """What was delivered, lane by lane, as sizes and digests. What comes again is held back, if it is the same."""

    def __init__(self) -> None:
        self._delivered: dict[str, _ChannelDigest] = {}
        self._replayed: dict[str, _ChannelDigest] = {}
        """The same lanes as they come once more; a lane that has caught up is the one in `_had`."""

    @property
    def has_delivered(self) -> bool:
        """Whether the caller has anything."""
        return bool(self._delivered)

    def rewind(self) -> None:
        """Everything comes again from its beginning."""
        self._replayed = {lane: _ChannelDigest() for lane in self._delivered}

    def skip_delivered(self, name: str, content: bytes) -> bytes:
        """What of it is new. Raises Diverged."""
        if not content:
            return b""
        had = self._delivered.setdefault(name, _ChannelDigest())
        again = self._replayed.setdefault(name, had)
        if again is had:
            had.add(content)
            return content
        known = content[: had.size - again.size]
        again.add(known)
        if again.size < had.size:
            return b""
        if again.digest != had.digest:
            raise StreamDiverged(name, had.size, again.size)
        self._replayed[name] = had
        fresh = content[len(known) :]
        had.add(fresh)
        return fresh

    def finish(self) -> None:
        """Nothing more comes. Raises Diverged if there was more before."""
        for name, had in self._delivered.items():
            if (again := self._replayed[name]) is not had:
                raise StreamDiverged(name, had.size, again.size)


class RetryBudget:
    """How long may still be waited before the next part of an answer."""

    def __init__(self, seconds: float) -> None:
        self._budget_s = seconds
        self.reset()

    def reset(self) -> None:
        """Something came."""
        self._remaining_s, self._backoff_s = self._budget_s, INITIAL_BACKOFF_S

    def next_backoff(self, error: ClientError) -> float:
        """How long to wait before the next try, never less than the server says. Raises the error if it is too long."""
        told = error.retry_after if isinstance(error, ServerBusy) else None
        seconds = (self._backoff_s if told is None else told) * random.uniform(1.0, 1.5)  # so that not all come at once
        self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)
        if seconds > self._remaining_s:
            raise error
        self._remaining_s -= seconds
        return seconds
