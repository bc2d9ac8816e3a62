"""What a client says to a request that runs, and how its route hears it.

A route awaits `self.next_input()` for what the client says next, and a walk that it awaits `interruptible()` is cut if the
client says something meanwhile. Such a walk leaves states as they were when it began, and of what it emits the client
keeps what it had when it spoke. How words get here is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

E = TypeVar("E")


NEVER_INTERRUPTS: Final = 1 << 62
"""The `ClientInput.walk` of what was said when the route waited for it: it cuts nothing."""


class Interrupted(Enum):
    """What a walk gives that was cut."""

    INTERRUPTED = "interrupted"


INTERRUPTED: Final = Interrupted.INTERRUPTED


class NextInput:
    """What a route awaits: whatever the client says next. `answer` is what it is told of what it said before."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    def __await__(self) -> Generator[NextInput, Any, Any]:
        return (yield self)


@dataclass(frozen=True, slots=True)
class ClientInput:
    """One thing that a client said. None is the last: it says no more."""

    value: Any
    walk: int = 0
    """The number of the walk that ran, or was next, when it was heard: this one is cut by it, and no earlier one."""
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many emissions of each kind the client had when it said so."""


class InputLog:
    """What was said to one request, in order, and how much of it the route has heard."""

    def __init__(self, inputs: Sequence[ClientInput] = ()) -> None:
        self.inputs = list(inputs)
        self.consumed = 0

    @property
    def has_unread(self) -> bool:
        """Whether there is something that the route has not heard."""
        return self.consumed < len(self.inputs)

    def consume(self) -> Any:
        """The next thing for the route; None, now and from now on, if no more is said."""
        if not self.has_unread or self.inputs[self.consumed].value is None:
            return None
        self.consumed += 1
        return self.inputs[self.consumed - 1].value

    def find_interruption(self, walk: int) -> ClientInput | None:
        """What cuts the walk with this number, if it may be cut."""
        if not self.has_unread:
            return None
        said = self.inputs[self.consumed]
        return said if said.value is not None and said.walk <= walk else None


def emission_totals_after(before: Mapping[str, int], interruption: ClientInput) -> dict[str, int]:
    """How many emissions of each kind there are after a cut: what the client had, and all of walks that had ended."""
    kinds = before.keys() | interruption.counts.keys()
    return {kind: max(before.get(kind, 0), interruption.counts.get(kind, 0)) for kind in sorted(kinds)}


def received_emissions(emissions: Sequence[E], before: Sequence[E], interruption: ClientInput) -> list[E]:
    """Of a walk that was cut: those emissions that the client had, after those of walks before."""
    seen, found = Counter(type(one).__name__ for one in before), list[E]()
    for one in emissions:
        seen[kind := type(one).__name__] += 1
        if seen[kind] <= interruption.counts.get(kind, 0):
            found.append(one)
    return found
