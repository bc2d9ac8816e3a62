"""States: memory that a request keeps inside a component, handled as a value.

This module says what a state is to an author. What is in one is the component's business: a toy keeps a list, the
engine keeps pages. Nothing here knows where a state lives.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Self


class State:
    """Memory made by a component, extended and read by its ops, forked, moved and freed by the runtime.

    What is here suits any plain Python object; a state that can do better, such as one made of pages, overrides it.
    """

    is_evictable: ClassVar[bool] = False
    """Whether it can give its memory in the component up for a while (`evict`, `Component.restore`)."""
    tenant: str = ""
    """Whose it is. What is shared by content is shared only among the states of one tenant."""
    is_resident: bool = True
    """Whether ops can use it now; one that has left must be brought back first."""

    def fork(self) -> Self:
        """A state that starts as a copy of this one and goes its own way."""
        return copy.deepcopy(self)

    def snapshot(self) -> Any:
        """What `rollback` needs, to forget all that happens from now on. A mark is used at most once."""
        return copy.deepcopy(vars(self))

    def rollback(self, snapshot: Any) -> None:
        """Be again what it was at the mark: an op that was extending it has failed."""
        vars(self).clear()
        vars(self).update(snapshot)

    def export(self) -> Any:
        """All of it as a value that can be sent; `Component.load_state` makes a state of that, here or elsewhere."""
        return copy.deepcopy(vars(self))

    def evict(self) -> None:
        """Give its memory in the component up, in a way that the component can undo. Only asked of what `is_evictable`."""
        raise NotImplementedError


class KV(State):
    """The attention cache of one request in one component."""
