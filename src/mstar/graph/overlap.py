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


def check_overlap(walk: Walk, *, is_whole: bool = True) -> list[Problem]:
    """Every way in which this walk could give two answers, or none.

    When tracing met problems the graph is not whole: then nothing is said of what it lacks.
    """
    found = [*_bodies(walk.body, is_whole), *_eaches(walk.body), *_owners(walk.body)]
    return [Problem(p.site, f"walk `{walk.name}`: {p.what}", p.fix) for p in found]


def _bodies(body: tuple[Node, ...], is_whole: bool) -> Iterator[Problem]:
    yield from _streams(body, is_whole)
    yield from _waits(body)
    for node in body:
        for inner in bodies(node):
            yield from _bodies(inner, is_whole)


def _streams(body: tuple[Node, ...], is_whole: bool) -> Iterator[Problem]:
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


def _waits(body: tuple[Node, ...]) -> Iterator[Problem]:
    """Rule 2: find a node that can only start once another has ended which cannot end before it starts."""
    before = order(body)
    feeds = {
        (p, r)
        for p, producer in enumerate(body)
        for r, reader in enumerate(body)
        if p < r and fills(producer) & drains(reader)
    }
    for p, r in sorted(feeds):
        if p in _ends_needed(r, before, feeds):
            yield _waiting(body, p, r)


def _ends_needed(start: int, before: list[frozenset[int]], feeds: set[tuple[int, int]]) -> set[int]:
    """Nodes that must have ended before `start` starts.

    What fills a stream ends only if its readers have started, and a reader ends only after what it reads.
    """
    ended: set[int] = set()
    started: set[int] = set()
    starting, ending = {start}, set[int]()
    while starting or ending:
        if ending:
            node = ending.pop()
            ended.add(node)
            ending |= {p for p, r in feeds if r == node} - ended
            starting |= {node, *(r for p, r in feeds if p == node)} - started
        else:
            node = starting.pop()
            started.add(node)
            ending |= before[node] - ended
    return ended


def _waiting(body: tuple[Node, ...], p: int, r: int) -> Problem:
    stream = sorted(fills(body[p]) & drains(body[r]))[0]
    for thing in sorted(_conflicts(access(body[p]), access(body[r]))):
        words, fix = _WORDS[thing[0]]
        what = f"both sides of stream ~{stream} {words.format(thing[1])}, at {_line(body[p])} and here"
        return Problem(body[r].site, what, fix)
    names = sorted({value.name for value in defines(body[p])} & access(body[r]).reads)
    through = f"needs %{names[0]}, which is" if names else "needs something that is"
    what = f"this reads stream ~{stream} but {through} known only when the part that fills it ({_line(body[p])}) ends"
    return Problem(body[r].site, what, "take what is needed from the stream itself, or read it after in another walk")


def _conflicts(a: Access, b: Access) -> Iterable[tuple[str, str]]:
    return (a.extends & b.touches) | (a.touches & b.extends)


def _line(node: Node) -> str:
    return "line " + node.site.rpartition(":")[2] if node.site else "another node"


def _eaches(body: tuple[Node, ...]) -> Iterator[Problem]:
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


def _owners(body: tuple[Node, ...]) -> Iterator[Problem]:
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
