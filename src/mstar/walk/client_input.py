"""Client input to a running request: multi-turn conversations and interruption (barge-in).

A route awaits `self.next_input()` for the next input of the client. A walk awaited with `interruptible()` is
interrupted when an input arrives while it runs: its states are rolled back to its start, and of its emissions only
those count that the client had received when it sent the input. Transport is not part of this module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

E = TypeVar("E")


NEVER_INTERRUPTS: Final = 1 << 62
"""`ClientInput.walk` of an input that the route was waiting for: it interrupts no walk."""


class Interrupted(Enum):
    """Result of an interrupted walk."""

    INTERRUPTED = "interrupted"


INTERRUPTED: Final = Interrupted.INTERRUPTED


class NextInput:
    """Awaitable for the next client input. `answer` is the result of the turn that ends here."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    def __await__(self) -> Generator[NextInput, Any, Any]:
        return (yield self)


@dataclass(frozen=True, slots=True)
class ClientInput:
    """One input of the client to a running request. The value None closes the inputs."""

    value: Any
    walk: int = 0
    """Index of the walk that was running, or next, when the input arrived. The input interrupts no earlier walk."""
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of emissions of each kind that the client had received when it sent the input."""


class InputLog:
    """Client inputs of one request in order, with the number that the route has consumed."""

    def __init__(self, inputs: Sequence[ClientInput] = ()) -> None:
        self.inputs = list(inputs)
        self.consumed = 0

    @property
    def has_unread(self) -> bool:
        """Whether the route has not consumed all inputs."""
        return self.consumed < len(self.inputs)

    def consume(self) -> Any:
        """The next input value; None, permanently, when there are no more or the client has closed its inputs."""
        if not self.has_unread or self.inputs[self.consumed].value is None:
            return None
        self.consumed += 1
        return self.inputs[self.consumed - 1].value

    def find_interruption(self, walk: int) -> ClientInput | None:
        """The input that interrupts the walk with this index, if it is interruptible."""
        if not self.has_unread:
            return None
        next_input = self.inputs[self.consumed]
        return next_input if next_input.value is not None and next_input.walk <= walk else None


def emission_totals_after(before: Mapping[str, int], interruption: ClientInput) -> dict[str, int]:
    """Number of emissions of each kind after an interruption: all of finished walks, and those the client received."""
    kinds = before.keys() | interruption.counts.keys()
    return {kind: max(before.get(kind, 0), interruption.counts.get(kind, 0)) for kind in sorted(kinds)}


def received_emissions(emissions: Sequence[E], before: Sequence[E], interruption: ClientInput) -> list[E]:
    """The emissions of an interrupted walk that the client had received; `before` are those of earlier walks."""
    totals = Counter(type(emission).__name__ for emission in before)
    received: list[E] = []
    for emission in emissions:
        totals[kind := type(emission).__name__] += 1
        if totals[kind] <= interruption.counts.get(kind, 0):
            received.append(emission)
    return received
