"""The latch: for a moment after a refusal, requests that would be refused too are refused before they are read.

Who is refused first, and when it is worth coming again, a conductor decides; here that is only remembered. A refusal
says nothing of other keys or other models, nor of who can wait for longer, nor of batch work if it was none. When the
moment is over one request is let through, then two, then four, each time when those before would have been refused by
then and were not: else a whole crowd would go in to be refused.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from mstar.server.refusals import Refusal, refusal_of
from mstar.wire import messages as m
from mstar.wire.pace import Pace

SHUT_S = 0.05
"""For so long at most: what has become free since then must not stay so."""
ROUND_S = 0.01
"""Who was not refused after so long is taken to be let in."""
WIDEST = 64
"""When so many were let through at once and none was refused, the door is open."""

Key = tuple[str, str, bool]
"""Whose requests, for which model, and whether they are batch work."""


@dataclass(slots=True)
class _Shut:
    """A refusal: whom it holds for, how long, and when it is worth coming again."""

    end: m.Refused
    wanted_s: float
    """Who wants the first of its answer so soon, or sooner."""
    until: float
    again: float
    round_s: float
    """How many seconds it took until the refusal was there."""
    width: int = 0
    """How many are let through in the round that ends then, and how many of these have not come yet."""
    room: int = 0


class Latch:
    """What was refused a moment ago."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shut: dict[Key, _Shut] = {}
        self._until = -inf

    @property
    def is_shut(self) -> bool:
        """Whether anybody would be refused now."""
        return self._clock() < self._until

    def refusal(self, tenant: str, model: str, pace: Pace) -> Refusal | None:
        """What to tell who wants this now, if it would be refused."""
        held, now = self._held((tenant, model, pace.is_batch), pace), self._clock()
        if held is None or held.until <= now or held.room:
            return None
        wait = max(held.again, held.until) - now
        return refusal_of(m.Refused(held.end.rid, held.end.status, held.end.why, wait))

    def enter(self, tenant: str, model: str, pace: Pace) -> Callable[[m.Refused], None]:
        """Let a request through, or raise a Refusal; what is given is to be told if it is refused then."""
        if (refusal := self.refusal(tenant, model, pace)) is not None:
            raise refusal
        key, now = (tenant, model, pace.is_batch), self._clock()
        if (held := self._held(key, pace)) is not None:
            if held.until <= now:
                held.width = held.room = 2 * held.width or 1
                held.until = now + held.round_s
                self._until = max(self._until, held.until)
            held.room -= 1
            if held.width > WIDEST:
                del self._shut[key]
        return functools.partial(self._refused, key, pace, now)

    def _held(self, key: Key, pace: Pace) -> _Shut | None:
        held = self._shut.get(key)
        return held if held is not None and _wanted_s(pace) <= held.wanted_s else None

    def _refused(self, key: Key, pace: Pace, asked: float, end: m.Refused) -> None:
        """A request was refused. That it is too much for now holds for the next one, too; anything else does not."""
        held, now = self._shut.get(key), self._clock()
        if end.status == 429 and (held is None or held.until <= now or held.wanted_s <= _wanted_s(pace)):
            until = now + min(SHUT_S, end.retry_after / 2)
            round_s = min(ROUND_S, now - asked)
            self._shut[key] = _Shut(end, _wanted_s(pace), until, now + end.retry_after, round_s)
            self._until = max(self._until, until)


def _wanted_s(pace: Pace) -> float:
    return inf if pace.first_s is None else pace.first_s
