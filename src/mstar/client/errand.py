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

from mstar.client.errors import Busy, ClientError, Cut, Diverged, NotReady, Unreachable, refusal
from mstar.client.frames import decoded

E = TypeVar("E")
R = TypeVar("R")
Event = TypeVar("Event", covariant=True)

FIRST_S, LONGEST_S = 0.1, 5.0
"""How long to wait before the second try, and at most before any."""


# ---------------------------------------------------------------- what is done, and what comes of it
@dataclass(frozen=True, slots=True)
class Ask:
    """Send a request, and be told Answered or Lost."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: Mapping[str, Any]
    """The body, under the names that httpx2 has for its kinds."""


@dataclass(frozen=True, slots=True)
class More:
    """Read on, and be told bytes, which are empty at the end, or Lost."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Answered:
    """The head of an answer."""

    status: int
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection is no more."""

    why: str
    is_sent: bool
    """Whether the server may have been asked."""


Act = Ask | More | Pause
Told = Answered | Lost | bytes | None


# ---------------------------------------------------------------- calls
@dataclass(frozen=True, slots=True)
class Piece(Generic[Event]):
    """Part of an answer: bytes of a lane, and the event that those of them make that are new."""

    lane: str
    content: bytes
    event: Callable[[bytes], Event]


class Reader(Protocol[Event, R]):
    """Reads one answer. `result` is there once it is complete."""

    result: R | None

    def feed(self, data: bytes) -> Iterable[Piece[Event]]:
        """Read on."""
        ...

    def end(self) -> None:
        """No more bytes come."""


@dataclass(frozen=True, slots=True)
class Call(Generic[E, R]):
    """A request, and how its answer is read."""

    ask: Ask
    reader: Callable[[Answered], Reader[E, R]]
    is_repeatable: bool = False
    """Whether it gives the same when it is asked again."""
    is_harmless: bool = True
    """Whether it may be asked again when nobody knows if it was heard."""
    answers: frozenset[int] = field(default=frozenset({200, 201}))

    @property
    def request_id(self) -> str:
        """Under which the server knows it."""
        return self.ask.headers["X-Request-Id"]


def errand(call: Call[E, R], patience_s: float) -> Generator[Act | E, Told, R]:
    """Have one answer. Raises what `mstar.client.errors` has."""
    ledger, patience = Ledger(), Patience(patience_s)
    while True:
        ledger.rewind()
        told = yield call.ask
        if isinstance(told, Answered) and told.status in call.answers:
            reader, data = call.reader(told), b"?"
            while data:  # to the end, so that the connection can be used again
                told = yield More()
                if not isinstance(told, bytes):
                    break
                data = told
                for piece in reader.feed(data):
                    if fresh := ledger.fresh(piece.lane, piece.content):
                        patience.renew()
                        yield piece.event(fresh)
                if not data:
                    reader.end()
            if reader.result is not None:
                ledger.finish()
                return reader.result
        error = yield from _trouble(call, told)
        if ledger.is_begun and not call.is_repeatable:
            raise Cut(str(error).partition("\n")[0])
        yield Pause(patience.wait(error))


def _trouble(call: Call[Any, Any], told: Told) -> Generator[Act, Told, ClientError]:
    """What went wrong. Raised if it would do no good, or harm, to try again."""
    if isinstance(told, Answered):
        error = refusal(told.status, decoded((yield from _rest())), call.request_id, told.headers)
        if not isinstance(error, Busy):
            raise error
        return error
    lost = told if isinstance(told, Lost) else Lost("the answer ended before its end", is_sent=True)
    if lost.is_sent and not call.is_harmless:
        raise Unreachable(lost.why)
    return Unreachable(lost.why)


def _rest() -> Generator[Act, Told, bytes]:
    data = bytearray()
    while isinstance(more := (yield More()), bytes) and more:
        data += more
    return bytes(data)


def until_ready(call: Call[E, R], is_ready: Callable[[R], str], within_s: float) -> Generator[Act | E, Told, R]:
    """Ask until the answer is that all is ready; `is_ready` says what is the matter, if something is."""
    left, what = within_s, "not there"
    while True:
        try:
            answer = yield from errand(call, 0.0)
            what = is_ready(answer)
            if not what:
                return answer
        except (Busy, Unreachable):
            what = "not there"
        if left <= 0:
            raise NotReady(within_s, what)
        yield Pause(FIRST_S)
        left -= FIRST_S


# ---------------------------------------------------------------- what the caller has
class _Lane:
    def __init__(self) -> None:
        self.size = 0
        self._hash = blake2b(digest_size=16)

    def add(self, content: bytes) -> None:
        self.size += len(content)
        self._hash.update(content)

    @property
    def digest(self) -> bytes:
        return self._hash.digest()


class Ledger:
    """What was delivered, lane by lane, as sizes and digests. What comes again is held back, if it is the same."""

    def __init__(self) -> None:
        self._had: dict[str, _Lane] = {}
        self._again: dict[str, _Lane] = {}
        """The same lanes as they come once more; a lane that has caught up is the one in `_had`."""

    @property
    def is_begun(self) -> bool:
        """Whether the caller has anything."""
        return bool(self._had)

    def rewind(self) -> None:
        """Everything comes again from its beginning."""
        self._again = {lane: _Lane() for lane in self._had}

    def fresh(self, name: str, content: bytes) -> bytes:
        """What of it is new. Raises Diverged."""
        if not content:
            return b""
        had = self._had.setdefault(name, _Lane())
        again = self._again.setdefault(name, had)
        if again is had:
            had.add(content)
            return content
        known = content[: had.size - again.size]
        again.add(known)
        if again.size < had.size:
            return b""
        if again.digest != had.digest:
            raise Diverged(name, had.size, again.size)
        self._again[name] = had
        fresh = content[len(known) :]
        had.add(fresh)
        return fresh

    def finish(self) -> None:
        """Nothing more comes. Raises Diverged if there was more before."""
        for name, had in self._had.items():
            if (again := self._again[name]) is not had:
                raise Diverged(name, had.size, again.size)


class Patience:
    """How long may still be waited before the next part of an answer."""

    def __init__(self, seconds: float) -> None:
        self._whole = seconds
        self.renew()

    def renew(self) -> None:
        """Something came."""
        self._left, self._delay = self._whole, FIRST_S

    def wait(self, error: ClientError) -> float:
        """How long to wait before the next try, never less than the server says. Raises the error if it is too long."""
        told = error.retry_after if isinstance(error, Busy) else None
        seconds = (self._delay if told is None else told) * random.uniform(1.0, 1.5)  # so that not all come at once
        self._delay = min(2 * self._delay, LONGEST_S)
        if seconds > self._left:
            raise error
        self._left -= seconds
        return seconds
