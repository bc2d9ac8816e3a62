"""State: per-request memory inside a component, such as a KV cache.

This module defines the interface that component authors implement: fork, snapshot and rollback, export for migration,
eviction (swap-out). The content is up to the component: a test double has a list, a language model has KV cache pages.
Where a state lives is up to the runtime.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Self


class State:
    """Memory that a component creates, its ops read and extend, and the runtime forks, moves, evicts and frees.

    The defaults copy plain Python attributes. A state with a cheaper way, such as one made of pages, overrides them.
    """

    is_evictable: ClassVar[bool] = False
    """Whether it can be swapped out of the component's memory (`evict`) and back in (`Component.restore`)."""
    tenant: str = ""
    """Tenant of its request. A prefix cache shares content only between states of one tenant."""
    is_resident: bool = True
    """Whether ops can use it now; an evicted state must be restored first."""

    def fork(self) -> Self:
        """An independent copy of this state."""
        return copy.deepcopy(self)

    def snapshot(self) -> Any:
        """The content that `rollback` restores. A snapshot is used at most once."""
        return copy.deepcopy(vars(self))

    def rollback(self, snapshot: Any) -> None:
        """Restore the snapshot, after an op that was extending the state has failed."""
        vars(self).clear()
        vars(self).update(snapshot)

    def export(self) -> Any:
        """Its content as a serializable value, from which `Component.load_state` creates a state on any worker."""
        return copy.deepcopy(vars(self))

    def evict(self) -> None:
        """Release its memory in the component, so that `Component.restore` can undo it. Called if `is_evictable`."""
        raise NotImplementedError


class KV(State):
    """KV cache of one request in one component."""
