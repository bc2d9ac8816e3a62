"""Inputs of simulated clients to running requests, and a check of the answers they receive.

The expected output depends on the walk in which an input is accepted. It is recomputed after each input.
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
    """All client inputs of one simulation."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._unacknowledged: defaultdict[str, deque[ClientInput]] = defaultdict(deque)
        self._accepted: Counter[str] = Counter()
        """By request, the number of inputs that a conductor accepted."""
        self._answered: dict[str, int] = {}
        """By request, the number of inputs that were answered."""

    def on_input(self, client: SimClient, value: int | None) -> None:
        """A client sends an input, to a route that waits for it or to one that is busy."""
        client_input = ClientInput(value, NEVER_INTERRUPTS, dict(client.delivered))
        unacknowledged = self._unacknowledged[client.rid]
        is_awaited = self._answered.get(client.rid) == len(client.accepted_inputs) + len(unacknowledged)
        (client.accepted_inputs if is_awaited else unacknowledged).append(client_input)
        self._update_expected(client)

    def on_accepted(self, client: SimClient, accepted: m.InputAccepted) -> None:
        """Record the walk in which an input was accepted. Later conductors repeat the message."""
        self._accepted[client.rid] = max(self._accepted[client.rid], accepted.index + 1)
        if accepted.index == len(client.accepted_inputs) and self._unacknowledged[client.rid]:
            client.accepted_inputs.append(replace(self._unacknowledged[client.rid].popleft(), walk=accepted.walk_index))
            self._update_expected(client)

    def on_end(self, client: SimClient) -> None:
        """Discard inputs that arrived after the request had ended."""
        del client.accepted_inputs[self._accepted[client.rid] :]
        self._update_expected(client)

    def _update_expected(self, client: SimClient) -> None:
        view = self._history.requests[client.rid]
        if view.expected_streams is None:
            return
        view.expected_streams, view.expected_result, _ = expected_outcome(client)

    def on_answer(self, client: SimClient, number: int, answer: Any) -> None:
        """Check the answer to the first `number` inputs."""
        answers = expected_outcome(client)[2]
        self._answered[client.rid] = number
        if number > len(client.accepted_inputs) or digest(answer) != answers[number]:
            expected = answers[number : number + 1]
            raise Violation(f"I1 {client.rid} got answer {answer} after {number} inputs, expected {expected}")
