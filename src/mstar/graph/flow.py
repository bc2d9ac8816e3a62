"""Dependency analysis: which nodes of a body must run in program order, and which can run concurrently.

Two nodes of a body are ordered if the later one uses a value of the earlier one, or if both access the same ordered
resource (a state, one end of a stream, the emissions of one modality) and at least one of them changes it. All other
pairs can run concurrently. The checker, the planner and every runtime use this one rule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from mstar.graph.ir import (
    Call,
    Emit,
    Get,
    Node,
    Open,
    Put,
    Windows,
    binds,
    defines,
    flat,
    operands,
    results,
)
from mstar.graph.types import StateType

Resource = tuple[str, str]
"""An ordered resource: ("state", name), ("put", stream), ("get", stream) or ("emit", kind)."""


@dataclass(frozen=True, slots=True)
class Access:
    """Values and resources of the enclosing body that a node and its bodies use."""

    reads: frozenset[str]
    """Names of values defined outside the node."""
    extends: frozenset[Resource]
    """Resources that it changes."""
    views: frozenset[Resource]
    """Resources that it only reads."""

    @property
    def touches(self) -> frozenset[Resource]:
        """Resources that it changes or reads."""
        return self.extends | self.views


def access(node: Node) -> Access:
    """Compute the access of a node to its enclosing body."""
    reads: set[str] = set()
    extends: set[Resource] = set()
    views: set[Resource] = set()
    local: set[str] = set()
    streams: set[str] = set()
    for inner in flat((node,)):
        used = [*operands(inner), *results(inner)]
        reads.update(value.name for value in used)
        views.update(("state", value.name) for value in used if isinstance(value.type, StateType))
        local.update(value.name for value in (*binds(inner), *(defines(inner) if inner is not node else ())))
        match inner:
            case Call():
                extends.update(("state", value.name) for value in inner.extends)
            case Put():
                extends.add(("put", inner.stream))
            case Get():
                extends.add(("get", inner.stream))
            case Emit():
                extends.add(("emit", inner.kind))
            case Open():
                streams.add(inner.stream)
            case _:
                pass
    inner_only = {("state", name) for name in local} | {(end, name) for name in streams for end in ("put", "get")}
    return Access(frozenset(reads - local), frozenset(extends - inner_only), frozenset(views - extends - inner_only))


def fills(node: Node) -> frozenset[str]:
    """Streams of the enclosing body that a node puts into."""
    return frozenset(name for end, name in access(node).extends if end == "put")


def drains(node: Node) -> frozenset[str]:
    """Streams of the enclosing body that a node reads with `get` or windows."""
    inside = [*flat((node,))]
    own = {inner.stream for inner in inside if isinstance(inner, Open)}
    return frozenset(inner.stream for inner in inside if isinstance(inner, Get | Windows)) - own


def order(body: Iterable[Node]) -> list[frozenset[int]]:
    """For each node of a body, the indices of the earlier nodes that must finish before it starts."""
    defined_by: dict[str, int] = {}
    writer: dict[Resource, int] = {}
    readers: defaultdict[Resource, set[int]] = defaultdict(set)
    waits: list[frozenset[int]] = []
    for index, node in enumerate(body):
        accessed = access(node)
        before = {defined_by[name] for name in accessed.reads if name in defined_by}
        before |= {writer[resource] for resource in accessed.touches if resource in writer}
        for resource in accessed.extends:
            before |= readers.pop(resource, set())
            writer[resource] = index
        for resource in accessed.views:
            readers[resource].add(index)
        defined_by.update({value.name: index for value in defines(node)})
        waits.append(frozenset(before - {index}))
    return waits
