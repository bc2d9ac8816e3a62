"""What a client says to a request that runs, and how its route hears it.

A route awaits `self.more()` for what the client says next, and a walk that it awaits `until_more()` is cut if the
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


AWAITED: Final = 1 << 62
"""The `Said.walk` of what was said when the route waited for it: it cuts nothing."""


class Cut(Enum):
    """What a walk gives that was cut."""

    CUT = "cut"


CUT: Final = Cut.CUT


class More:
    """What a route awaits: whatever the client says next. `answer` is what it is told of what it said before."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    def __await__(self) -> Generator[More, Any, Any]:
        return (yield self)


@dataclass(frozen=True, slots=True)
class Said:
    """One thing that a client said. None is the last: it says no more."""

    value: Any
    walk: int = 0
    """The number of the walk that ran, or was next, when it was heard: this one is cut by it, and no earlier one."""
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many emissions of each kind the client had when it said so."""


class Ears:
    """What was said to one request, in order, and how much of it the route has heard."""

    def __init__(self, said: Sequence[Said] = ()) -> None:
        self.said = list(said)
        self.heard = 0

    @property
    def has_more(self) -> bool:
        """Whether there is something that the route has not heard."""
        return self.heard < len(self.said)

    def hear(self) -> Any:
        """The next thing for the route; None, now and from now on, if no more is said."""
        if not self.has_more or self.said[self.heard].value is None:
            return None
        self.heard += 1
        return self.said[self.heard - 1].value

    def cutting(self, walk: int) -> Said | None:
        """What cuts the walk with this number, if it may be cut."""
        if not self.has_more:
            return None
        said = self.said[self.heard]
        return said if said.value is not None and said.walk <= walk else None


def totals_after(before: Mapping[str, int], said: Said) -> dict[str, int]:
    """How many emissions of each kind there are after a cut: what the client had, and all of walks that had ended."""
    kinds = before.keys() | said.counts.keys()
    return {kind: max(before.get(kind, 0), said.counts.get(kind, 0)) for kind in sorted(kinds)}


def kept(emissions: Sequence[E], before: Sequence[E], said: Said) -> list[E]:
    """Of a walk that was cut: those emissions that the client had, after those of walks before."""
    seen, found = Counter(type(one).__name__ for one in before), list[E]()
    for one in emissions:
        seen[kind := type(one).__name__] += 1
        if seen[kind] <= said.counts.get(kind, 0):
            found.append(one)
    return found
