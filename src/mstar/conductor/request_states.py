"""States of one request that live between its walks: where they are, and which of them its route still refers to."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from mstar.walk.states import State
from mstar.wire.messages import Peer


@dataclass(frozen=True, slots=True)
class StateLocation:
    """The worker that holds a state, and the state's number there."""

    peer: Peer
    number: int


class StateHandle(State):
    """A route's reference to a state on a worker. A new state is created where it is first used.

    The state of a handle that the route has dropped is freed before the next walk of the request.
    """

    def __init__(self, states: RequestStates, component: str, kind: str, location: StateLocation | None = None) -> None:
        self.states = states
        self.component = component
        self.kind = kind
        self.location = location
        self.next_worker: Peer | None = None
        """The worker that is sent parts of it ahead, because the next walk probably uses it there."""
        states.add(self)

    def __del__(self) -> None:
        """Let its state be freed."""
        self.states.remove(self)

    def fork(self) -> StateHandle:
        """Return a handle for a copy of the state as it is now. The copy is made when the next walk starts."""
        return StateHandle(self.states, self.component, self.kind, self.location and self.states.fork(self.location))


class RequestStates:
    """The handles of one request, and what its workers have yet to be told about its states."""

    def __init__(self) -> None:
        self._handles: dict[int, weakref.ref[StateHandle]] = {}
        """By id, those of this attempt that are in use."""
        self.pending_forks: list[tuple[StateLocation, StateLocation]] = []
        """State copies that the route made."""
        self.dropped: list[StateLocation] = []
        """States that nothing refers to."""
        self._last_number = 0

    def add(self, handle: StateHandle) -> None:
        """Track a new handle."""
        self._handles[id(handle)] = weakref.ref(handle)

    def remove(self, handle: StateHandle) -> None:
        """Drop the state of a handle that nothing refers to, unless the handle is of an earlier attempt."""
        if self._handles.pop(id(handle), None) is not None and handle.location is not None:
            self.dropped.append(handle.location)

    def fork(self, original: StateLocation) -> StateLocation:
        """Plan a copy of a state on its worker, and return where it will be."""
        self._last_number -= 1  # workers use positive numbers
        copy = StateLocation(original.peer, self._last_number)
        self.pending_forks.append((original, copy))
        return copy

    def restart(self) -> None:
        """Forget everything: the route starts again, and the workers have released the states."""
        self._handles.clear()
        self.pending_forks.clear()
        self.dropped.clear()

    def locations(self) -> Iterator[StateLocation]:
        """Where the states of the handles are."""
        handles = (reference() for reference in self._handles.values())
        return (handle.location for handle in handles if handle is not None and handle.location is not None)
