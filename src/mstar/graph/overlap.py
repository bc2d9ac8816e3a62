"""Does this graph give one answer under every schedule, and does every schedule end?

A walk is a Kahn network: regions joined by streams run at the same time and share nothing else. These rules keep it
so. They speak of a well-formed graph in the author's words, because authors do break them:

1. a stream is filled before it is read, no node does both, and windows read it once;
2. a node that reads a stream does not wait for the end of one that fills it: not through a state, not through the
   sequence of a modality, not through a value. Streams are bounded, so it would wait for ever;
3. the bodies of an `each` run side by side, so they change nothing they share;
4. a state is used by the one component that owns it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mstar.errors import Problem
from mstar.graph.flow import Access, access, drains, fills, order
from mstar.graph.ir import Call, Each, Fork, New, Node, Open, Value, Walk, Windows, bodies, defines, flat
from mstar.graph.types import StateType

_WORDS = {
    "state": ("use the state %{}", "give each side its own state, or fork() it before the first"),
    "put": ("fill stream ~{}", "let one of the two fill the stream, or use two streams"),
    "get": ("read stream ~{} by get", "let one of the two read the stream, or use two streams"),
    "emit": ("emit {}", "emit each modality from one region, so that its order is fixed"),
}

_TAKE_FROM_STREAM = "take what is needed from the stream itself, or read it after in another walk"


def check_overlap(walk: Walk, *, is_whole: bool = True) -> list[Problem]:
    """Every way in which this walk could give two answers, or none.

    When tracing met problems the graph is not whole: then nothing is said of what it lacks.
    """
    found = [*_bodies(walk.body, is_whole), *_each_conflicts(walk.body), *_state_owners(walk.body)]
    return [Problem(p.site, f"walk `{walk.name}`: {p.message}", p.fix) for p in found]


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
            yield Problem(opened.site, f"stream ~{name} is used before it is opened", "make the Stream first")
        if is_whole and not filling:
            yield Problem(opened.site, f"nothing is put into stream ~{name}", f"{name}.put(value), or remove it")
        elif is_whole and not reading:
            fix = f"for window in windows({name}, ...), or {name}.get(default=...), or remove it"
            yield Problem(opened.site, f"nobody reads stream ~{name}", fix)
        yield from _nested_windows(body, name)
        for i in sorted({*filling} & {*reading}):
            what = f"one loop both fills and reads stream ~{name}; it would wait for itself"
            yield Problem(body[i].site, what, "read the stream in a loop of its own, or carry the value")
        if filling and reading and min(reading) < max(filling) and not {*filling} & {*reading}:
            what = f"stream ~{name} is read before all that fills it: nothing would be there yet"
            yield Problem(body[min(reading)].site, what, "write the part that reads after the part that fills")


def _nested_windows(body: tuple[Node, ...], stream: str) -> Iterator[Problem]:
    for node in body:
        for inner in bodies(node):
            for found in flat(inner):
                if isinstance(found, Windows) and found.stream == stream:
                    what = f"the windows of stream ~{stream} are inside a region, which may run them again or never"
                    fix = "read a stream by windows in the body that makes it; inside a loop, use get(default=...)"
                    yield Problem(found.site, what, fix)


def _deadlocks(body: tuple[Node, ...]) -> Iterator[Problem]:
    """Rule 2: find a reader whose start waits for something that cannot happen before it has started."""
    events = _Events(body)
    for r in range(len(body)):
        needed = events.needed(("start", r)) if events.read[r] else set[tuple[str, int]]()
        if ("start", r) in needed:
            waited = [q for q in sorted(events.before[r]) if ("start", r) in events.needed(("end", q))]
            writers = [p for p in events.writers(r) if needed & {("end", p), ("go on", p)}]
            yield _deadlock_problem(body, writers, waited[0], r)


class _Events:
    """What has to happen before what in a body: a node starts, ends, or goes on putting into its streams.

    A bounded stream lets its writer go on only while each reader runs. So a node that fills streams needs their readers
    to have started, and a reader that waits needs what it reads to go on. Gets of one stream take turns: only the first
    need have started for the writer to go on.
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
        found = {("start", node)}
        for stream in self.filled[node]:
            readers = self.readers(stream)
            takes_turns = [n for n in readers if not self.is_windows[n]]
            idle = takes_turns[1:] if what == "go on" else []
            found |= {("start", n) for n in readers if n not in idle}
        needs = "end" if what == "end" and self.is_windows[node] else "go on"
        return found | {(needs, writer) for writer in self.writers(node)}

    def needed(self, event: tuple[str, int]) -> set[tuple[str, int]]:
        """Everything that must have happened before an event; the event itself, if it waits for itself."""
        found: set[tuple[str, int]] = set()
        todo = [event]
        while todo:
            for cause in self.causes(todo.pop()) - found:
                found.add(cause)
                todo.append(cause)
        return found


def _deadlock_problem(body: tuple[Node, ...], writers: list[int], waited: int, r: int) -> Problem:
    """Say why node r, which reads what `writers` fill, waits for node `waited` for ever."""
    reader = access(body[r])
    for p in writers:
        stream = min(fills(body[p]) & drains(body[r]))
        for kind, name in sorted(_conflicts(access(body[p]), reader)):
            words, fix = _WORDS[kind]
            what = f"both sides of stream ~{stream} {words.format(name)}, at {_line(body[p])} and here"
            return Problem(body[r].site, what, fix)
        for name in sorted({value.name for value in defines(body[p])} & reader.reads):
            known = f"known only when the part that fills it ({_line(body[p])}) ends"
            what = f"this reads stream ~{stream} but needs %{name}, which is {known}"
            return Problem(body[r].site, what, _TAKE_FROM_STREAM)
    stream = min(drains(body[r]))
    what = f"this reads stream ~{stream} but waits for {_line(body[waited])}, which cannot end before this has started"
    return Problem(body[r].site, what, _TAKE_FROM_STREAM)


def _conflicts(a: Access, b: Access) -> Iterable[tuple[str, str]]:
    return (a.extends & b.touches) | (a.touches & b.extends)


def _line(node: Node) -> str:
    return "line " + node.site.rpartition(":")[2] if node.site else "another node"


def _each_conflicts(body: tuple[Node, ...]) -> Iterator[Problem]:
    """Rule 3."""
    fixes = {
        "state": "fork() it inside the body: mine = {}.fork()",
        "put": "collect the value, e.collect(x=...), and put it afterwards",
        "get": "read the stream before the each",
        "emit": "collect the value, e.collect(x=...), and emit it afterwards",
    }
    for node in flat(body):
        if isinstance(node, Each):
            for kind, name in sorted(access(node).extends):
                sites = [inner.site for inner in flat(node.body) if (kind, name) in access(inner).extends]
                words = _WORDS[kind][0].format(name)
                what = f"the bodies of an each ({_line(node)}) run side by side, so they cannot all {words}"
                yield Problem(sites[-1], what, fixes[kind].format(name))


def _state_owners(body: tuple[Node, ...]) -> Iterator[Problem]:
    """Rule 4. A state without a `New` came in as an input: its first user owns it."""
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
                        has = owner.setdefault(root.get(arg.name, arg.name), node.component)
                        if has != node.component:
                            what = f"{node.component}.{node.op}({key}=...) was given a state that belongs to `{has}`"
                            yield Problem(node.site, what, f"give it one of its own: self.{node.component}.kv()")
            case _:
                pass
