"""Circuit breaker: load shedding in the front end after a conductor has rejected a request as overloaded (429).

The conductor decides which requests to reject and when to retry. The breaker remembers that decision for at most 50 ms
and rejects similar requests before their body is read. There is one circuit for each tenant, model and class
(interactive or best effort). It covers requests with the same or a tighter TTFT target: a looser SLO can still be met.

```text
           429 from the conductor                      open_until has passed
  closed ───────────────────────────▶ open ──────────────────────────────────▶ half-open
    ▲                                  ▲                                           │
    │                                  └────────────── a probe gets a 429 ─────────┤
    └──────────────── more than MAX_PROBES probes in a round, none rejected ───────┘
```

| state | requests of the circuit |
|---|---|
| closed | all are admitted |
| open | all are rejected, for `min(MAX_OPEN_S, retry_after / 2)` |
| half-open | rounds of 1, 2, 4, … 64 probes are admitted, the rest is rejected |

A circuit without a rejection for `FORGET_S` closes: what it knows is out of date.

A round lasts as long as the last rejection took (at most `MAX_PROBE_ROUND_S`): a probe that was not rejected by then is
taken as admitted. The rounds grow slowly because a whole crowd would otherwise enter at once and be rejected.
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
"""Maximum seconds that a circuit stays open. Short, so that freed capacity is used soon."""
MAX_PROBE_ROUND_S = 0.01
"""Maximum seconds of a probe round."""
MAX_PROBES = 64
"""Number of probes in a round after which the circuit closes."""

FORGET_S = 1.0
"""Seconds without a rejection after which a circuit closes. While a server is overloaded, every open time and most
probe rounds end with a rejection, which takes less than 0.1 s."""

CircuitKey = tuple[str, str, bool]
"""Tenant, model, and whether the requests are best effort."""


@dataclass(slots=True)
class _Circuit:
    """A circuit that is open or half-open."""

    rejection: m.RequestRejected
    ttft_s: float
    """TTFT target of the rejected request. The circuit covers requests with the same or a tighter target."""
    open_until: float
    """End of the open state, then of the current probe round."""
    rejected_at: float
    """When the request was rejected."""
    retry_at: float
    """When the conductor expects free capacity."""
    probe_round_s: float
    """Seconds from sending the rejected request to its rejection."""
    probes: int = 0
    """Probes of the current round; 0 while the circuit is open."""
    probes_left: int = 0
    """Probes of the current round that were not admitted yet."""


class CircuitBreaker:
    """All circuits of one front end. A circuit that is not stored is closed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._circuits: dict[CircuitKey, _Circuit] = {}
        self._open_until = -inf

    @property
    def is_open(self) -> bool:
        """Whether any circuit is open or half-open. Cheap: `FastReject` checks it for every request."""
        return self._clock() < self._open_until

    def rejection(self, tenant: str, model: str, slo: Slo) -> ApiError | None:
        """The error for a request that the breaker would reject now, else None."""
        circuit, now = self._find_circuit((tenant, model, slo.best_effort), slo), self._clock()
        if circuit is None or circuit.open_until <= now or circuit.probes_left:
            return None
        wait_s = max(circuit.retry_at, circuit.open_until) - now
        last = circuit.rejection
        return api_error_from(m.RequestRejected(last.rid, last.status, last.reason, wait_s))

    def admit(self, tenant: str, model: str, slo: Slo) -> Callable[[m.RequestRejected], None]:
        """Admit a request, or raise ApiError. Call the result if the conductor rejects the request."""
        if (error := self.rejection(tenant, model, slo)) is not None:
            raise error
        key, now = (tenant, model, slo.best_effort), self._clock()
        if (circuit := self._find_circuit(key, slo)) is not None:
            if circuit.open_until <= now:
                circuit.probes = circuit.probes_left = 2 * circuit.probes or 1
                circuit.open_until = now + circuit.probe_round_s
                self._open_until = max(self._open_until, circuit.open_until)
            circuit.probes_left -= 1
            if circuit.probes > MAX_PROBES:
                del self._circuits[key]
        return functools.partial(self._on_rejected, key, slo, now)

    def _find_circuit(self, key: CircuitKey, slo: Slo) -> _Circuit | None:
        if not self._circuits:  # the server is not overloaded
            return None
        circuit = self._circuits.get(key)
        if circuit is not None and self._clock() - circuit.rejected_at >= FORGET_S:
            del self._circuits[key]
            return None
        return circuit if circuit is not None and _ttft_s(slo) <= circuit.ttft_s else None

    def _on_rejected(self, key: CircuitKey, slo: Slo, sent_at: float, end: m.RequestRejected) -> None:
        """Open the circuit if a request was rejected as overloaded. Other errors do not predict the next request."""
        circuit, now = self._circuits.get(key), self._clock()
        if end.status == 429 and (circuit is None or circuit.open_until <= now or circuit.ttft_s <= _ttft_s(slo)):
            until = now + min(MAX_OPEN_S, end.retry_after_s / 2)
            round_s = min(MAX_PROBE_ROUND_S, now - sent_at)
            self._circuits[key] = _Circuit(end, _ttft_s(slo), until, now, now + end.retry_after_s, round_s)
            self._open_until = max(self._open_until, until)


def _ttft_s(slo: Slo) -> float:
    return inf if slo.ttft_s is None else slo.ttft_s
