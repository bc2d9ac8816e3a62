"""What clients of one world say to requests that run, and whether what they are told then is right.

What they should be given depends on when they were heard, which a front end learns; so that is decided here, each time.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import replace
from typing import Any

from mstar.sim.history import History, Violation
from mstar.sim.oracle import digest, expected
from mstar.sim.scenario import Client
from mstar.walk.said import AWAITED, Said
from mstar.wire import messages as m


class Talks:
    """All that is said in one world."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._unheard: defaultdict[str, deque[Said]] = defaultdict(deque)
        self._heard: Counter[str] = Counter()
        """How many things of each request were heard by a conductor."""
        self._waits: dict[str, int] = {}
        """How many things that a client said were answered."""

    def says(self, client: Client, value: int | None) -> None:
        """A client says more: to a route that waits for it, or to one that does something."""
        said = Said(value, AWAITED, dict(client.given))
        unheard = self._unheard[client.rid]
        is_awaited = self._waits.get(client.rid) == len(client.said) + len(unheard)
        (client.said if is_awaited else unheard).append(said)
        self._know(client)

    def heard(self, client: Client, heard: m.Heard) -> None:
        """It is known when a client was heard. Later conductors say so again."""
        self._heard[client.rid] = max(self._heard[client.rid], heard.number + 1)
        if heard.number == len(client.said) and self._unheard[client.rid]:
            client.said.append(replace(self._unheard[client.rid].popleft(), walk=heard.walk))
            self._know(client)

    def ended(self, client: Client) -> None:
        """A request has ended: what its client said too late for it does not count."""
        del client.said[self._heard[client.rid] :]
        self._know(client)

    def _know(self, client: Client) -> None:
        seen = self._history.requests[client.rid]
        seen.streams, seen.result, _ = expected(client)

    def waits(self, client: Client, number: int, answer: Any) -> None:
        """A client is told what came of so many things that it said."""
        answers = expected(client)[2]
        self._waits[client.rid] = number
        if number > len(client.said) or digest(answer) != answers[number]:
            raise Violation(f"I1 {client.rid} was told {answer} of {number} things, not {answers[number : number + 1]}")
