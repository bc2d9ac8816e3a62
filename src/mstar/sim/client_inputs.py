"""What clients of one world say to requests that run, and whether what they are told then is right.

What they should be given depends on when they were heard, which a front end learns; so that is decided here, each time.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import replace
from typing import Any

from mstar.sim.history import History, Violation
from mstar.sim.oracle import digest, expected_outcome
from mstar.sim.scenario import SimClient
from mstar.walk.client_input import NEVER_INTERRUPTS, ClientInput
from mstar.wire import messages as m


class ClientInputs:
    """All that is said in one world."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._unacknowledged: defaultdict[str, deque[ClientInput]] = defaultdict(deque)
        self._accepted: Counter[str] = Counter()
        """How many things of each request were heard by a conductor."""
        self._answered: dict[str, int] = {}
        """How many things that a client said were answered."""

    def on_input(self, client: SimClient, value: int | None) -> None:
        """A client says more: to a route that waits for it, or to one that does something."""
        said = ClientInput(value, NEVER_INTERRUPTS, dict(client.delivered))
        unheard = self._unacknowledged[client.rid]
        is_awaited = self._answered.get(client.rid) == len(client.accepted_inputs) + len(unheard)
        (client.accepted_inputs if is_awaited else unheard).append(said)
        self._update_expected(client)

    def on_accepted(self, client: SimClient, heard: m.InputAccepted) -> None:
        """It is known when a client was heard. Later conductors say so again."""
        self._accepted[client.rid] = max(self._accepted[client.rid], heard.index + 1)
        if heard.index == len(client.accepted_inputs) and self._unacknowledged[client.rid]:
            client.accepted_inputs.append(replace(self._unacknowledged[client.rid].popleft(), walk=heard.walk_index))
            self._update_expected(client)

    def on_end(self, client: SimClient) -> None:
        """A request has ended: what its client said too late for it does not count."""
        del client.accepted_inputs[self._accepted[client.rid] :]
        self._update_expected(client)

    def _update_expected(self, client: SimClient) -> None:
        seen = self._history.requests[client.rid]
        seen.expected_streams, seen.expected_result, _ = expected_outcome(client)

    def on_answer(self, client: SimClient, number: int, answer: Any) -> None:
        """A client is told what came of so many things that it said."""
        answers = expected_outcome(client)[2]
        self._answered[client.rid] = number
        if number > len(client.accepted_inputs) or digest(answer) != answers[number]:
            raise Violation(f"I1 {client.rid} was told {answer} of {number} things, not {answers[number : number + 1]}")
