"""State: per-request memory inside a component, such as a KV cache.

This module defines the interface that component authors implement: fork, snapshot and rollback, export for migration,
eviction (swap-out). The content is up to the component: a test double has a list, a language model has KV cache pages.
Where a state lives is up to the runtime.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, ClassVar, Self, TypeVar, cast

C = TypeVar("C")


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
        return _deep_copy(self)

    def snapshot(self) -> Any:
        """The content that `rollback` restores. A snapshot is used at most once."""
        return _deep_copy(vars(self))

    def rollback(self, snapshot: Any) -> None:
        """Restore the snapshot, after an op that was extending the state has failed."""
        vars(self).clear()
        vars(self).update(snapshot)

    def export(self) -> Any:
        """Its content as a serializable value, from which `Component.load_state` creates a state on any worker."""
        return _deep_copy(vars(self))

    def export_ahead(self, to: str) -> Any:  # noqa: ARG002 - for subclasses
        """A part of its content that does not change any more and that this worker was not sent, or None.

        `load_ahead` accepts it there while ops still extend this state. Then `export_rest` is shorter.
        """
        return None

    def load_ahead(self, exported: Any) -> None:
        """Keep a part that `export_ahead` returned, outside of this state, which is new and empty: the state that
        needs it is loaded later. Without it, that one must be computed again, so it can be dropped at any time."""

    def export_rest(self, to: str) -> Any:  # noqa: ARG002 - for subclasses
        """What `Component.load_state` needs at a worker that was sent the results of `export_ahead`."""
        return self.export()

    def evict(self) -> None:
        """Release its memory in the component, so that `Component.restore` can undo it. Called if `is_evictable`."""
        raise NotImplementedError


class KV(State):
    """KV cache of one request in one component."""


def _deep_copy(value: C) -> C:
    """An independent copy. Tensors with an autograd graph are copied without it; they have no copy of their own."""
    try:
        return copy.deepcopy(value)
    except RuntimeError:
        graph_tensors = [each for each in _values_in(value) if not getattr(each, "is_leaf", True)]
        if not graph_tensors:
            raise
    return copy.deepcopy(value, {id(tensor): tensor.detach().clone() for tensor in graph_tensors})


def _values_in(value: Any) -> Iterator[Any]:
    """The values in nested containers and in the attributes of objects."""
    seen, todo = set[int](), list[Any]([value])
    while todo:
        current: Any = todo.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, dict):
            todo.extend(cast("dict[Any, Any]", current).values())
        elif isinstance(current, list | tuple | set | frozenset):
            todo.extend(cast("list[Any]", current))
        elif hasattr(current, "__dict__") and not isinstance(current, type):
            todo.extend(cast("dict[str, Any]", vars(current)).values())
