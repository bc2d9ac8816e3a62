"""Residents: the states that could leave their component's memory, in order of last use.

It decides who leaves when pages run out. How a state leaves and comes back is its component's business.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from mstar.walk.component import Component
from mstar.walk.states import State


class LruEviction:
    """The living states that can leave, least recently used first. It keeps none of them alive."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[weakref.ref[State], Component]] = {}  # by id: a state may not be hashable
        self._evicted: dict[int, weakref.ref[State]] = {}

    def touch(self, component: Component, states: Iterable[State]) -> None:
        """These states of a component are used now."""
        known = self._states
        for state in states:
            if state.is_evictable:
                key = id(state)
                known[key] = known.pop(key, None) or (
                    weakref.ref(state, lambda _, key=key: self._forget(key)),
                    component,
                )

    def _forget(self, key: int) -> None:
        self._states.pop(key, None)
        self._evicted.pop(key, None)

    def owner(self, state: State) -> Component | None:
        """The component of a state that can leave, once it was used."""
        return self._states[id(state)][1] if id(state) in self._states else None

    def evict_one(self, component: Component, pinned: Iterable[State]) -> bool:
        """Let the state of this component leave that was not used for longest; False if all but `staying` have left."""
        kept = {id(state) for state in pinned}
        for ref, owner in list(self._states.values()):
            state = ref()
            if owner is component and state is not None and state.is_resident and id(state) not in kept:
                state.evict()
                assert not state.is_resident, f"a {type(state).__name__} was told to leave and is still there"
                self._evicted[id(state)] = ref
                return True
        return False

    def take_evicted(self) -> list[State]:
        """The living states that had to leave since this was last asked, in that order."""
        evicted, self._evicted = self._evicted, {}
        return [state for ref in evicted.values() if (state := ref()) is not None]
