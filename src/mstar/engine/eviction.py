"""LRU eviction of states from component memory (KV pages).

It chooses which state leaves when memory runs out. How a state is swapped out and restored is up to its component.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from mstar.walk.component import Component
from mstar.walk.states import State


class LruEviction:
    """Evictable states, least recently used first. It holds weak references only."""

    def __init__(self) -> None:
        self._states: dict[int, tuple[weakref.ref[State], Component]] = {}  # by id: a state need not be hashable
        self._evicted: dict[int, weakref.ref[State]] = {}
        self._first: set[int] = set()
        """By id, states that are evicted before all others."""

    def touch(self, component: Component, states: Iterable[State]) -> None:
        """Mark states of a component as used now."""
        tracked = self._states
        for state in states:
            if state.is_evictable:
                key = id(state)
                tracked[key] = tracked.pop(key, None) or (
                    weakref.ref(state, lambda _, key=key: self._forget(key)),
                    component,
                )

    def _forget(self, key: int) -> None:
        self._states.pop(key, None)
        self._evicted.pop(key, None)
        self._first.discard(key)

    def set_first(self, states: Iterable[State], is_first: bool) -> None:
        """Evict states before all others, or in the usual order again."""
        keys = {id(state) for state in states if id(state) in self._states}
        self._first = self._first | keys if is_first else self._first - keys

    def owner(self, state: State) -> Component | None:
        """Component of an evictable state; None if the state was never used."""
        return self._states[id(state)][1] if id(state) in self._states else None

    def next_victim(self, component: Component, pinned: Iterable[State]) -> State | None:
        """The state of a component to evict; None if only `pinned` states are resident."""
        pinned_ids, victim = {id(state) for state in pinned}, None
        for key, (ref, owner) in list(self._states.items()):
            state = ref()
            if owner is component and state is not None and state.is_resident and key not in pinned_ids:
                if not self._first or key in self._first:
                    return state
                victim = victim or state
        return victim

    def note_evicted(self, state: State) -> None:
        """Note that a state was evicted."""
        self._evicted[id(state)] = self._states[id(state)][0]

    def take_evicted(self) -> list[State]:
        """States evicted since the last call that still exist, in order of eviction."""
        if not self._evicted:  # nearly always
            return []
        evicted, self._evicted = self._evicted, {}
        return [state for ref in evicted.values() if (state := ref()) is not None]
