"""What orders the nodes of a body: the values, states, streams and emissions they share.

Two nodes of one body must run in program order when the later uses a value of the earlier, or when both touch the
same ordered thing (a state, the end of a stream, the client's sequence of one modality) and at least one changes it.
All other pairs may run at the same time. The interpreter, the planner and the checker all use this one rule.
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
"""Something touched in order: ("state", name), ("put", stream), ("get", stream) or ("emit", kind)."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a node, with everything inside it, takes from the body it stands in."""

    reads: frozenset[str]
    """Names of values made outside the node."""
    extends: frozenset[Resource]
    """Ordered things it changes."""
    views: frozenset[Resource]
    """Ordered things it only looks at."""

    @property
    def touches(self) -> frozenset[Resource]:
        """Ordered things it changes or looks at."""
        return self.extends | self.views


def access(node: Node) -> Access:
    """What a node takes from outside itself."""
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
    gone = {("state", name) for name in local} | {(end, name) for name in streams for end in ("put", "get")}
    return Access(frozenset(reads - local), frozenset(extends - gone), frozenset(views - extends - gone))


def fills(node: Node) -> frozenset[str]:
    """Streams, made outside the node, that it puts into."""
    return frozenset(name for end, name in access(node).extends if end == "put")


def drains(node: Node) -> frozenset[str]:
    """Streams, made outside the node, that it reads by `get` or by windows."""
    inside = [*flat((node,))]
    own = {inner.stream for inner in inside if isinstance(inner, Open)}
    return frozenset(inner.stream for inner in inside if isinstance(inner, Get | Windows)) - own


def order(body: Iterable[Node]) -> list[frozenset[int]]:
    """For each node of a body, the earlier nodes that must end before it starts."""
    made: dict[str, int] = {}
    writer: dict[Resource, int] = {}
    readers: defaultdict[Resource, set[int]] = defaultdict(set)
    waits: list[frozenset[int]] = []
    for index, node in enumerate(body):
        has = access(node)
        before = {made[name] for name in has.reads if name in made}
        before |= {writer[thing] for thing in has.touches if thing in writer}
        for thing in has.extends:
            before |= readers.pop(thing, set())
            writer[thing] = index
        for thing in has.views:
            readers[thing].add(index)
        made.update({value.name: index for value in defines(node)})
        waits.append(frozenset(before - {index}))
    return waits
