"""Race and deadlock check: every schedule of a walk must terminate with the same result.

A walk is a Kahn process network: regions connected by streams run concurrently and share nothing else. Four rules
ensure it. The messages are written for model authors, because authors do break these rules.

1. A stream is filled before it is read, no node does both, and windows read it once.
2. A node that reads a stream does not wait for the end of a node that fills it, neither through a state, nor through
   the order of emissions, nor through a value. Stream buffers are bounded, so this would be a deadlock.
3. The bodies of an `each` run in parallel, so they change no shared resource.
4. A state is used only by the component that owns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mstar.errors import Problem
from mstar.graph.flow import Access, access, drains, fills, order
from mstar.graph.ir import Call, Each, Fork, New, Node, Open, Value, Walk, Windows, bodies, defines, flat
from mstar.graph.types import StateType

_CONFLICTS = {
    "state": ("use the state %{}", "use a separate state on each side, or fork() it before the first"),
    "put": ("put into stream ~{}", "put into the stream on one side only, or use two streams"),
    "get": ("read stream ~{} with get", "read the stream on one side only, or use two streams"),
    "emit": ("emit {}", "emit each modality from one region only, so that its order is defined"),
}
"""For each kind of resource: what both sides do with it, and the fix."""

_USE_THE_STREAM = "put the value into the stream, or read the stream in another walk"


def check_overlap(walk: Walk, *, is_whole: bool = True) -> list[Problem]:
    """All races and deadlocks of a walk.

    `is_whole` is False if tracing had problems: then missing puts and reads of a stream are not reported.
    """
    problems = [*_bodies(walk.body, is_whole), *_each_conflicts(walk.body), *_state_owners(walk.body)]
    return [Problem(p.site, f"walk `{walk.name}`: {p.message}", p.fix) for p in problems]


def _bodies(body: tuple[Node, ...], is_whole: bool) -> Iterator[Problem]:
    yield from _stream_order(body, is_whole)
    yield from _deadlocks(body)
    for node in body:
        for inner in bodies(node):
            yield from _bodies(inner, is_whole)


def _stream_order(body: tuple[Node, ...], is_whole: bool) -> Iterator[Problem]:
    """Rule 1, for the streams opened in this body."""
    for start, opened in enumerate(body):
        if not isinstance(opened, Open):
            continue
        name = opened.stream
        filling = [i for i, node in enumerate(body) if name in fills(node)]
        reading = [i for i, node in enumerate(body) if name in drains(node)]
        if any(i < start for i in (*filling, *reading)):
            yield Problem(opened.site, f"stream ~{name} is used before it is created", "create the Stream first")
        if is_whole and not filling:
            fix = f"call {name}.put(value), or remove the stream"
            yield Problem(opened.site, f"stream ~{name} is never filled", fix)
        elif is_whole and not reading:
            fix = f"use for window in windows({name}, ...) or {name}.get(default=...), or remove the stream"
            yield Problem(opened.site, f"stream ~{name} is never read", fix)
        yield from _nested_windows(body, name)
        for i in sorted({*filling} & {*reading}):
            what = f"deadlock: one loop both fills and reads stream ~{name}"
            yield Problem(body[i].site, what, "read the stream in another loop, or carry the value")
        if filling and reading and min(reading) < max(filling) and not {*filling} & {*reading}:
            what = f"stream ~{name} is read before the last code that fills it"
            yield Problem(body[min(reading)].site, what, "move the code that reads after all code that fills")


def _nested_windows(body: tuple[Node, ...], stream: str) -> Iterator[Problem]:
    for node in body:
        for inner in bodies(node):
            for nested in flat(inner):
                if isinstance(nested, Windows) and nested.stream == stream:
                    what = f"windows of stream ~{stream} inside a region, which can run them several times or never"
                    fix = "use windows in the body that creates the stream; inside a loop, use get(default=...)"
                    yield Problem(nested.site, what, fix)


def _deadlocks(body: tuple[Node, ...]) -> Iterator[Problem]:
    """Rule 2: find readers whose start waits for an event that needs this start."""
    events = _Events(body)
    for r in range(len(body)):
        needed = events.needed(("start", r)) if events.read[r] else set[tuple[str, int]]()
        if ("start", r) in needed:
            waited = [q for q in sorted(events.before[r]) if ("start", r) in events.needed(("end", q))]
            writers = [p for p in events.writers(r) if needed & {("end", p), ("progress", p)}]
            yield _deadlock_problem(body, writers, waited[0], r)


class _Events:
    """Causality of events in a body: the start, end and progress (further puts) of each node.

    A writer of a bounded stream can progress only while each reader runs. So a node that fills streams needs their
    readers to have started, and a waiting reader needs its writers to progress. Several nodes that `get` from one
    stream run in turn: only the first must have started for the writer to progress.
    """

    def __init__(self, body: tuple[Node, ...]) -> None:
        self.before = order(body)
        self.filled = [fills(node) for node in body]
        self.read = [drains(node) for node in body]
        self.is_windows = [isinstance(node, Windows) for node in body]

    def readers(self, stream: str) -> list[int]:
        return [n for n, streams in enumerate(self.read) if stream in streams]

    def writers(self, node: int) -> list[int]:
        return [n for n, streams in enumerate(self.filled) if streams & self.read[node]]

    def causes(self, event: tuple[str, int]) -> set[tuple[str, int]]:
        what, node = event
        if what == "start":
            return {("end", earlier) for earlier in self.before[node]}
        causes = {("start", node)}
        for stream in self.filled[node]:
            readers = self.readers(stream)
            takes_turns = [n for n in readers if not self.is_windows[n]]
            idle = takes_turns[1:] if what == "progress" else []
            causes |= {("start", n) for n in readers if n not in idle}
        needs = "end" if what == "end" and self.is_windows[node] else "progress"
        return causes | {(needs, writer) for writer in self.writers(node)}

    def needed(self, event: tuple[str, int]) -> set[tuple[str, int]]:
        """All events that must happen before an event; includes the event itself if there is a cycle."""
        needed: set[tuple[str, int]] = set()
        todo = [event]
        while todo:
            for cause in self.causes(todo.pop()) - needed:
                needed.add(cause)
                todo.append(cause)
        return needed


def _deadlock_problem(body: tuple[Node, ...], writers: list[int], waited: int, r: int) -> Problem:
    """The reason why node r, which reads the streams of `writers`, deadlocks with node `waited`."""
    reader = access(body[r])
    for p in writers:
        stream = min(fills(body[p]) & drains(body[r]))
        for kind, name in sorted(_conflicts(access(body[p]), reader)):
            action, fix = _CONFLICTS[kind]
            what = f"both sides of stream ~{stream} {action.format(name)}, at {_line(body[p])} and here"
            return Problem(body[r].site, what, fix)
        for name in sorted({value.name for value in defines(body[p])} & reader.reads):
            source = f"the result of the code that fills it ({_line(body[p])})"
            what = f"deadlock: this reads stream ~{stream} but needs %{name}, {source}"
            return Problem(body[r].site, what, _USE_THE_STREAM)
    stream = min(drains(body[r]))
    waits = f"waits for {_line(body[waited])}, which cannot finish before this starts"
    what = f"deadlock: this reads stream ~{stream} but {waits}"
    return Problem(body[r].site, what, _USE_THE_STREAM)


def _conflicts(a: Access, b: Access) -> Iterable[tuple[str, str]]:
    return (a.extends & b.touches) | (a.touches & b.extends)


def _line(node: Node) -> str:
    return "line " + node.site.rpartition(":")[2] if node.site else "another node"


def _each_conflicts(body: tuple[Node, ...]) -> Iterator[Problem]:
    """Rule 3."""
    fixes = {
        "state": "fork the state inside the body: own = {}.fork()",
        "put": "collect the value with e.collect(x=...), and put it after the each",
        "get": "read the stream before the each",
        "emit": "collect the value with e.collect(x=...), and emit it after the each",
    }
    for node in flat(body):
        if isinstance(node, Each):
            for kind, name in sorted(access(node).extends):
                sites = [inner.site for inner in flat(node.body) if (kind, name) in access(inner).extends]
                action = _CONFLICTS[kind][0].format(name)
                what = f"the bodies of an each ({_line(node)}) run in parallel, so they cannot all {action}"
                yield Problem(sites[-1], what, fixes[kind].format(name))


def _state_owners(body: tuple[Node, ...]) -> Iterator[Problem]:
    """Rule 4. A state without a `New` is an input of the walk; the first component that uses it is its owner."""
    root: dict[str, str] = {}
    owner: dict[str, str] = {}
    for node in flat(body):
        match node:
            case New():
                owner[node.out.name] = node.component
            case Fork():
                root[node.out.name] = root.get(node.src.name, node.src.name)
            case Call():
                for key, arg in node.args:
                    if isinstance(arg, Value) and isinstance(arg.type, StateType):
                        component = owner.setdefault(root.get(arg.name, arg.name), node.component)
                        if component != node.component:
                            what = f"{node.component}.{node.op}({key}=...) got a state that belongs to `{component}`"
                            yield Problem(node.site, what, f"create one with self.{node.component}.kv()")
            case _:
                pass
