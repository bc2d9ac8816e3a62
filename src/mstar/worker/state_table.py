"""Table of the component states that the worker core refers to. The states themselves live in the engine.

The core holds a `StateRef` per state. When the last reference is dropped, the state's number is queued here, and the
next `free_dropped` tells the engine to free it. The table also records which walk run owns a state, so that a walk run
is preempted when the engine evicts one of its states.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mstar.worker.commands import CreateState, EvictFirst, ExportedState, Fork, Free, LoadState, StateRef
from mstar.worker.outbox import Outbox


class StateOwner(Protocol):
    """A walk run, as far as the state table knows it."""

    number: int
    is_preempted: bool
    is_over: bool

    @property
    def lookahead(self) -> object:
        """None if it is an ordinary walk run."""
        ...


class StateTable:
    """Numbers, owners and lifetimes of states."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._owners: dict[int, StateOwner | None] = {}
        """Owner by state number; None for a state that a route holds between walks."""
        self._preempted: list[StateOwner] = []
        """Owners that were preempted. Some may have resumed or be over."""
        self._dropped: list[int] = []
        """Numbers of states without references, not freed yet."""
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._owners)

    def create(self, owner: StateOwner, model: str, component: str, kind: str, tenant: str) -> StateRef:
        """Create a state of a component."""
        ref = self._new_ref(owner)
        self._outbox.command(CreateState(ref.number, model, component, kind, tenant))
        if owner.lookahead is not None:
            self._outbox.command(EvictFirst((ref.number,), is_first=True))
        return ref

    def fork(self, owner: StateOwner | None, state: StateRef) -> StateRef:
        """Fork a state: an independent copy, taken before any later command changes the original."""
        ref = self._new_ref(owner)
        self._outbox.command(Fork(state.number, ref.number))
        if owner is not None and owner.lookahead is not None:
            self._outbox.command(EvictFirst((ref.number,), is_first=True))
        return ref

    def load(self, owner: StateOwner, model: str, exported: ExportedState, tenant: str) -> StateRef:
        """Create a state from the export of another worker."""
        ref = self._new_ref(owner)
        self._outbox.command(LoadState(ref.number, model, exported, tenant))
        if owner.lookahead is not None:
            self._outbox.command(EvictFirst((ref.number,), is_first=True))
        return ref

    def keep(self, owner: StateOwner) -> None:
        """Evict the states of a committed lookahead in the usual order from now on."""
        if owned := tuple(number for number, other in self._owners.items() if other is owner):
            self._outbox.command(EvictFirst(owned, is_first=False))

    def preempt_owners(self, evicted: Iterable[int]) -> None:
        """Preempt the walk runs whose states the engine evicted. A lookahead is not resumed: its worker drops it."""
        for number in evicted:
            owner = self._owners.get(number)
            if owner is not None:
                if not owner.is_preempted and not owner.is_over and owner.lookahead is None:
                    self._preempted.append(owner)
                owner.is_preempted = True

    def preempted_owners(self) -> list[StateOwner]:
        """Walk runs that are preempted and not over."""
        if self._preempted:  # seldom: this is called for each walk that ends
            self._preempted = [owner for owner in self._preempted if owner.is_preempted and not owner.is_over]
        return self._preempted

    def free_dropped(self) -> None:
        """Tell the engine to free the states that have no reference left."""
        if self._dropped:
            freed = tuple(self._dropped)
            self._dropped.clear()
            for number in freed:
                self._owners.pop(number, None)
            self._outbox.command(Free(freed))

    def _new_ref(self, owner: StateOwner | None) -> StateRef:
        self._last_number += 1
        self._owners[self._last_number] = owner
        return StateRef(self._last_number, self._dropped)
