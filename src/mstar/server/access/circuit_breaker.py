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

from mstar.server.errors import ApiError, api_error_from
from mstar.wire import messages as m
from mstar.wire.slo import Slo

MAX_OPEN_S = 0.05
"""For so long at most: what has become free since then must not stay so."""
MAX_PROBE_ROUND_S = 0.01
"""Who was not refused after so long is taken to be let in."""
MAX_PROBES = 64
"""When so many were let through at once and none was refused, the door is open."""

CircuitKey = tuple[str, str, bool]
"""Whose requests, for which model, and whether they are batch work."""


@dataclass(slots=True)
class _OpenCircuit:
    """A refusal: whom it holds for, how long, and when it is worth coming again."""

    rejection: m.RequestRejected
    ttft_s: float
    """Who wants the first of its answer so soon, or sooner."""
    open_until: float
    retry_at: float
    probe_round_s: float
    """How many seconds it took until the refusal was there."""
    probes: int = 0
    """How many are let through in the round that ends then, and how many of these have not come yet."""
    probes_left: int = 0


class CircuitBreaker:
    """What was refused a moment ago."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._circuits: dict[CircuitKey, _OpenCircuit] = {}
        self._open_until = -inf

    @property
    def is_open(self) -> bool:
        """Whether anybody would be refused now."""
        return self._clock() < self._open_until

    def rejection(self, tenant: str, model: str, slo: Slo) -> ApiError | None:
        """What to tell who wants this now, if it would be refused."""
        held, now = self._find_circuit((tenant, model, slo.best_effort), slo), self._clock()
        if held is None or held.open_until <= now or held.probes_left:
            return None
        wait = max(held.retry_at, held.open_until) - now
        return api_error_from(m.RequestRejected(held.rejection.rid, held.rejection.status, held.rejection.reason, wait))

    def admit(self, tenant: str, model: str, slo: Slo) -> Callable[[m.RequestRejected], None]:
        """Let a request through, or raise a Refusal; what is given is to be told if it is refused then."""
        if (refusal := self.rejection(tenant, model, slo)) is not None:
            raise refusal
        key, now = (tenant, model, slo.best_effort), self._clock()
        if (held := self._find_circuit(key, slo)) is not None:
            if held.open_until <= now:
                held.probes = held.probes_left = 2 * held.probes or 1
                held.open_until = now + held.probe_round_s
                self._open_until = max(self._open_until, held.open_until)
            held.probes_left -= 1
            if held.probes > MAX_PROBES:
                del self._circuits[key]
        return functools.partial(self._on_rejected, key, slo, now)

    def _find_circuit(self, key: CircuitKey, slo: Slo) -> _OpenCircuit | None:
        held = self._circuits.get(key)
        return held if held is not None and _ttft_s(slo) <= held.ttft_s else None

    def _on_rejected(self, key: CircuitKey, slo: Slo, sent_at: float, end: m.RequestRejected) -> None:
        """A request was refused. That it is too much for now holds for the next one, too; anything else does not."""
        held, now = self._circuits.get(key), self._clock()
        if end.status == 429 and (held is None or held.open_until <= now or held.ttft_s <= _ttft_s(slo)):
            until = now + min(MAX_OPEN_S, end.retry_after_s / 2)
            round_s = min(MAX_PROBE_ROUND_S, now - sent_at)
            self._circuits[key] = _OpenCircuit(end, _ttft_s(slo), until, now + end.retry_after_s, round_s)
            self._open_until = max(self._open_until, until)


def _ttft_s(slo: Slo) -> float:
    return inf if slo.ttft_s is None else slo.ttft_s
