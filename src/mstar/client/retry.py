"""Retries with exponential backoff and jitter, and exactly-once resumption of interrupted streams (sans-IO).

`request_with_retry` is a generator: it yields effects (`SendRequest`, `ReadMore`, `Sleep`) and receives their results.
The clients execute the effects and pass every other yielded value to the caller.

| failure | retried if |
|---|---|
| overloaded, starting or draining (429, 503) | always, not before Retry-After |
| connection lost, nothing delivered yet | the request was not sent, or is idempotent |
| connection lost in the middle of a stream | the response is deterministic (`ApiCall.is_deterministic`) |
| any other error | never |

A retry sends the whole response again. `ResumeLog` compares its start with what the caller already has and drops it, so
that the caller gets every byte once; a difference raises StreamDiverged. `RetryBudget` limits the total backoff, and
progress resets it.
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

INITIAL_BACKOFF_S = 0.1
"""Seconds before the first retry; doubles with each retry."""
MAX_BACKOFF_S = 5.0
"""Maximum seconds between two tries, without jitter."""


# ---------------------------------------------------------------- effects and their results
@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send a request. Result: ResponseHead or ConnectionLost."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: Mapping[str, Any]
    """The body, as keyword arguments of httpx2 (json, content, data, files)."""


@dataclass(frozen=True, slots=True)
class ReadMore:
    """Read more of the body. Result: bytes, empty at the end, or ConnectionLost."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait. Result: None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Status and headers of a response."""

    status: int
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The connection failed."""

    reason: str
    may_have_been_sent: bool
    """Whether the server can have received the request."""


Effect = SendRequest | ReadMore | Sleep
EffectResult = ResponseHead | ConnectionLost | bytes | None


# ---------------------------------------------------------------- calls
@dataclass(frozen=True, slots=True)
class Chunk(Generic[Event]):
    """Part of a response: bytes of one channel (text, audio, …)."""

    channel: str
    content: bytes
    event: Callable[[bytes], Event]
    """Makes the event for the caller from the bytes that are new."""


class ResponseReader(Protocol[Event, R]):
    """Reads one response. `result` is None until the response is complete."""

    result: R | None

    def feed(self, data: bytes) -> Iterable[Chunk[Event]]:
        """Feed bytes; returns new chunks."""
        ...

    def finish(self) -> None:
        """The body has ended."""


@dataclass(frozen=True, slots=True)
class ApiCall(Generic[E, R]):
    """A request, and how its answer is read."""

    request: SendRequest
    reader: Callable[[ResponseHead], ResponseReader[E, R]]
    is_deterministic: bool = False
    """Whether a retry produces the same response, so that a stream can be resumed."""
    is_idempotent: bool = True
    """Whether it can be sent again if the server can have received it."""
    success_statuses: frozenset[int] = field(default=frozenset({200, 201}))

    @property
    def request_id(self) -> str:
        """The X-Request-Id."""
        return self.request.headers["X-Request-Id"]


def request_with_retry(call: ApiCall[E, R], retry_timeout_s: float) -> Generator[Effect | E, EffectResult, R]:
    """Send a request until its response is complete. Raises an exception of `mstar.client.errors`."""
    resume_log, budget = ResumeLog(), RetryBudget(retry_timeout_s)
    while True:
        resume_log.rewind()
        result = yield call.request
        if isinstance(result, ResponseHead) and result.status in call.success_statuses:
            reader, data = call.reader(result), b"?"
            while data:  # to the end, so that the connection can be reused
                result = yield ReadMore()
                if not isinstance(result, bytes):
                    break
                data = result
                for chunk in reader.feed(data):
                    if new := resume_log.skip_delivered(chunk.channel, chunk.content):
                        budget.reset()
                        yield chunk.event(new)
                if not data:
                    reader.finish()
            if reader.result is not None:
                resume_log.finish()
                return reader.result
        error = yield from _error_from(call, result)
        if resume_log.has_delivered and not call.is_deterministic:
            raise StreamInterrupted(str(error).partition("\n")[0])
        yield Sleep(budget.next_backoff(error))


def _error_from(call: ApiCall[Any, Any], result: EffectResult) -> Generator[Effect, EffectResult, ClientError]:
    """The error of a failed try. Raises it if a retry is useless or unsafe."""
    if isinstance(result, ResponseHead):
        error = to_api_error(result.status, decode_json((yield from _read_rest())), call.request_id, result.headers)
        if not isinstance(error, ServerBusy):
            raise error
        return error
    lost = (
        result
        if isinstance(result, ConnectionLost)
        else ConnectionLost("the response ended early", may_have_been_sent=True)
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
    """Poll until `not_ready_reason` of the response is empty. Raises ServerNotReady after `timeout_s`."""
    remaining_s, reason = timeout_s, "unreachable"
    while True:
        try:
            response = yield from request_with_retry(call, 0.0)
            reason = not_ready_reason(response)
            if not reason:
                return response
        except (ServerBusy, ServerUnreachable):
            reason = "unreachable"
        if remaining_s <= 0:
            raise ServerNotReady(timeout_s, reason)
        yield Sleep(INITIAL_BACKOFF_S)
        remaining_s -= INITIAL_BACKOFF_S


# ---------------------------------------------------------------- delivered data and retry budget
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
    """Sizes and digests of delivered data, by channel. Drops data that a retry repeats."""

    def __init__(self) -> None:
        self._delivered: dict[str, _ChannelDigest] = {}
        self._replayed: dict[str, _ChannelDigest] = {}
        """Channels of the current try. A channel that has caught up is the same object as in `_delivered`."""

    @property
    def has_delivered(self) -> bool:
        """Whether the caller has received any data."""
        return bool(self._delivered)

    def rewind(self) -> None:
        """A new try starts: the response is sent again from its start."""
        self._replayed = {channel: _ChannelDigest() for channel in self._delivered}

    def skip_delivered(self, name: str, content: bytes) -> bytes:
        """The part of `content` that was not delivered yet. Raises StreamDiverged."""
        if not content:
            return b""
        delivered = self._delivered.setdefault(name, _ChannelDigest())
        replayed = self._replayed.setdefault(name, delivered)
        if replayed is delivered:
            delivered.add(content)
            return content
        repeated = content[: delivered.size - replayed.size]
        replayed.add(repeated)
        if replayed.size < delivered.size:
            return b""
        if replayed.digest != delivered.digest:
            raise StreamDiverged(name, delivered.size, replayed.size)
        self._replayed[name] = delivered
        new = content[len(repeated) :]
        delivered.add(new)
        return new

    def finish(self) -> None:
        """The response is complete. Raises StreamDiverged if an earlier try delivered more."""
        for name, delivered in self._delivered.items():
            if (replayed := self._replayed[name]) is not delivered:
                raise StreamDiverged(name, delivered.size, replayed.size)


class RetryBudget:
    """Exponential backoff with jitter, and a limit of its sum."""

    def __init__(self, seconds: float) -> None:
        self._budget_s = seconds
        self.reset()

    def reset(self) -> None:
        """Restore the budget after progress."""
        self._remaining_s, self._backoff_s = self._budget_s, INITIAL_BACKOFF_S

    def next_backoff(self, error: ClientError) -> float:
        """Seconds to wait before the next try, at least Retry-After. Raises the error if the budget is exceeded."""
        retry_after = error.retry_after if isinstance(error, ServerBusy) else None
        jitter = random.uniform(1.0, 1.5)  # spreads the retries of many clients
        seconds = (self._backoff_s if retry_after is None else retry_after) * jitter
        self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)
        if seconds > self._remaining_s:
            raise error
        self._remaining_s -= seconds
        return seconds
